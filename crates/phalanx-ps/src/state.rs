//! What each message of a worker does to one ps. No I/O, and time is passed in.

use crate::{
    RunSpec,
    arena::Arena,
    ending::{Ending, MayGo},
    kept::{Found, Keeper, layout},
    ledger::Ledger,
    membership::{Member, Membership, Ticket},
    store::{Applying, NotApplied, NotFinite, Pieces, PushId, Store},
    values::Values,
    wire::{Goodbye, Hello, PROTOCOL, Progress, Welcome},
};
use phalanx_cluster::ClusterSpec;
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// How long the workers of a run whose state was found have to come. They try at least every two seconds.
const CONFIRMATION: Duration = Duration::from_secs(6);

/// Why a worker, or something it sent, is turned away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It was started with other settings than this ps or than the run.
    Mismatch(String),
    /// Another worker has its index.
    Duplicate(String),
    /// It sent what makes no sense.
    Invalid(String),
    /// It was part of a run whose values this ps does not have.
    Lost,
    /// It may come again a little later.
    NotYet(String),
}

/// A worker's gradient of one batch.
pub(crate) struct Push<'a> {
    pub incarnation: u64,
    pub sequence: u64,
    pub batch: u64,
    pub norm: Option<f64>,
    pub gradient: &'a Pieces,
}

/// Everything one ps knows.
#[derive(Debug)]
pub(crate) struct State {
    ps: usize,
    cluster: ClusterSpec,
    // Where the state is kept, if it is.
    keeper: Option<Keeper>,
    // The run that the values are of: the life of the worker that brought them.
    run_id: u64,
    // Values that were found are of a run that may be gone; until then its workers have time to come.
    unconfirmed_until: Option<Instant>,
    set_aside: Option<PathBuf>,
    pub members: Membership,
    ledger: Ledger,
    run: Option<RunSpec>,
    store: Option<Store>,
    ending: Ending,
}

impl State {
    pub fn new(ps: usize, cluster: ClusterSpec, now: Instant) -> Self {
        let members = Membership::new(cluster.workers().len(), now);
        Self {
            ps,
            cluster,
            keeper: None,
            run_id: 0,
            unconfirmed_until: None,
            set_aside: None,
            members,
            ledger: Ledger::default(),
            run: None,
            store: None,
            ending: Ending::default(),
        }
    }

    /// Keeps the values of coming runs in a file.
    pub fn keep(&mut self, keeper: Keeper) {
        self.keeper = Some(keeper);
    }

    /// Goes on with what an earlier life of this ps has left, as soon as a worker of that run comes.
    pub fn resume(&mut self, found: Found, now: Instant) -> bool {
        let Some(store) = Store::resume(found.arena, found.run.optimizer) else { return false };
        self.ledger = Ledger::from(store.next_batch());
        if store.version() >= found.run.train_steps {
            self.ending.set_over(&self.members);
        }
        self.run_id = found.run_id;
        self.run = Some(found.run);
        self.store = Some(store);
        self.unconfirmed_until = Some(now + CONFIRMATION);
        true
    }

    /// The run has ended well: nothing is kept of it.
    pub fn forget(&mut self) -> std::io::Result<()> {
        self.keeper.as_mut().map_or(Ok(()), Keeper::remove)
    }

    /// Where the values lie that outlive this process, if they do.
    pub fn kept_in(&self) -> Option<&Path> {
        self.keeper.as_ref().filter(|_| self.store.is_some()).map(Keeper::path)
    }

    /// Where a state was put that nobody wanted, the first time this is asked.
    pub fn take_set_aside(&mut self) -> Option<PathBuf> {
        self.set_aside.take()
    }

    /// A worker introduces itself.
    pub fn hello(&mut self, hello: Hello, now: Instant) -> Result<(Ticket, Welcome), Refusal> {
        let worker = hello.worker as usize;
        self.check(&hello)?;
        self.settle_run(hello.run_id, now)?;
        if !self.ending.is_over() {
            let run = RunSpec::from_wire(hello.run, self.cluster.ps().len()).map_err(Refusal::Invalid)?;
            self.agree(run)?;
        }
        let member = Member { incarnation: hello.incarnation, origin: hello.origin };
        let ticket = self.members.join(worker, member).map_err(Refusal::Duplicate)?;
        // What it had in hand by a connection that broke may never have reached it.
        self.ledger.give_back(worker);
        self.ending.assign(&self.members);
        let batches = self.hand_out(worker);
        let initialised = self.store.is_some();
        let welcome = Welcome {
            progress: Some(self.progress(worker, batches)),
            wants_initial_values: !initialised && !self.ending.is_over() && worker == 0,
            initialised,
        };
        Ok((ticket, welcome))
    }

    // Values that were found count as soon as a worker comes that has taken part in their run. One that has taken
    // part in none may be of a new run, and waits until it is clear that the old one is gone.
    fn settle_run(&mut self, theirs: u64, now: Instant) -> Result<(), Refusal> {
        let ours = self.run_id;
        match (self.store.is_some(), self.unconfirmed_until) {
            (false, _) if theirs != 0 => return Err(Refusal::Lost),
            (true, _) if theirs == ours => self.unconfirmed_until = None,
            (true, _) if theirs != 0 => {
                return Err(Refusal::Mismatch(format!("the run is {ours} here and {theirs} there")));
            }
            (true, Some(until)) if now < until => {
                let left = (until - now).as_secs() + 1;
                return Err(Refusal::NotYet(format!(
                    "it holds the state of an earlier run, and waits {left} s for that run's workers"
                )));
            }
            (true, Some(_)) => self.set_state_aside(),
            _ => {}
        }
        Ok(())
    }

    fn set_state_aside(&mut self) {
        self.set_aside = self.keeper.as_mut().and_then(|keeper| keeper.set_aside().ok());
        (self.store, self.run, self.run_id, self.unconfirmed_until) = (None, None, 0, None);
        (self.ledger, self.ending) = (Ledger::default(), Ending::default());
    }

    fn check(&self, hello: &Hello) -> Result<(), Refusal> {
        let mismatch = |what: &str, here: String, there: String| {
            Err(Refusal::Mismatch(format!("{what} is {here} here and {there} there")))
        };
        if hello.protocol != PROTOCOL {
            return mismatch("the protocol version", PROTOCOL.to_string(), hello.protocol.to_string());
        }
        let cluster = self.cluster.to_string();
        if hello.cluster != cluster {
            return mismatch("the cluster", cluster, hello.cluster.clone());
        }
        if hello.ps as usize != self.ps {
            return mismatch("the ps index", self.ps.to_string(), hello.ps.to_string());
        }
        Ok(())
    }

    // The first worker to come defines the run. As long as there are no values, it may be defined anew once
    // all who agreed on it have left: a worker started with a wrong flag must not spoil the right ones' start.
    fn agree(&mut self, theirs: RunSpec) -> Result<(), Refusal> {
        let binding = self.store.is_some() || !self.members.is_empty();
        match self.run.as_ref().filter(|_| binding).and_then(|ours| ours.differences(&theirs)) {
            Some(differences) => Err(Refusal::Mismatch(format!("{differences} (here: as the run began)"))),
            None => {
                if !binding {
                    self.run = Some(theirs);
                }
                Ok(())
            }
        }
    }

    /// The chief sends the values to begin with. Sent again after a broken connection, they are not used.
    pub fn initialise(&mut self, ticket: Ticket, incarnation: u64, values: &Pieces) -> Result<(), Refusal> {
        let worker = self.seated(ticket)?;
        let workers = self.cluster.workers().len();
        let Some(run) = &self.run else { return Err(Refusal::Invalid("values came before a hello".into())) };
        if worker != 0 {
            return Err(Refusal::Invalid(format!("worker {worker} sent initial values; only worker 0 may")));
        }
        if self.store.is_none() {
            let arena = match &mut self.keeper {
                Some(keeper) => keeper.prepare(run, incarnation, workers),
                None => {
                    let len = run.plan.shards().get(self.ps).map_or(0, ExactSizeIterator::len);
                    Arena::in_memory(layout(0, len, run, workers))
                }
            };
            let arena = arena.map_err(|error| self.cannot_keep(&error))?;
            let store = Store::begin(arena, values, run.optimizer).map_err(|bad| self.not_applied(bad))?;
            let named = self.keeper.as_mut().map_or(Ok(()), Keeper::name);
            named.map_err(|error| self.cannot_keep(&error))?;
            self.store = Some(store);
            self.run_id = incarnation;
        }
        Ok(())
    }

    /// Applies a worker's gradient, unless the run is over; gives the values after it.
    pub fn push(&mut self, ticket: Ticket, push: Push<'_>) -> Result<(Progress, Values), Refusal> {
        let worker = self.seated(ticket)?;
        let Push { incarnation, sequence, batch, norm, gradient } = push;
        let id = PushId { worker, incarnation, sequence };
        let (Some(run), Some(store)) = (&self.run, &mut self.store) else {
            return Err(Refusal::Invalid("a gradient came before there were values".into()));
        };
        // Each shard applies as many pushes as the run has steps, whatever it was told of the end: a push that ps 0
        // has counted may still be on its way here.
        if store.version() < run.train_steps {
            run.optimizer.check_norm(norm).map_err(Refusal::Invalid)?;
            let applying = Applying { gradient, norm, next_batch: self.ledger.next() };
            if let Err(bad) = store.push(id, &applying) {
                return Err(self.not_applied(bad));
            }
            self.ledger.done(worker, batch);
            if store.version() >= run.train_steps {
                self.ending.set_over(&self.members);
            }
        }
        let values = store.values().clone();
        let batches = self.hand_out(worker);
        Ok((self.progress(worker, batches), values))
    }

    /// The values and where the run stands; nothing while there are none.
    pub fn pull(&mut self, worker: usize) -> Option<(Progress, Values)> {
        let values = self.store.as_ref()?.values().clone();
        Some((self.progress(worker, Vec::new()), values))
    }

    /// Where the run stands.
    pub fn ask(&mut self, worker: usize) -> Progress {
        self.progress(worker, Vec::new())
    }

    /// A connection ended: in order, or because it broke. Says whether its worker is gone with it.
    pub fn leave(&mut self, ticket: Ticket, now: Instant) -> bool {
        let gone = self.members.leave(ticket, now);
        if gone {
            self.ledger.give_back(ticket.worker);
            self.ending.assign(&self.members);
        }
        gone
    }

    // A worker that came anew speaks on its new connection; what is left on the old one is not heard.
    fn seated(&self, ticket: Ticket) -> Result<usize, Refusal> {
        if self.members.holds(ticket) {
            Ok(ticket.worker)
        } else {
            Err(Refusal::Invalid(format!("worker {} has connected anew", ticket.worker)))
        }
    }

    /// A worker says goodbye, with what it knows of the end: it heard of it from ps 0, perhaps before this ps did.
    pub fn goodbye(&mut self, worker: usize, goodbye: Goodbye) {
        if goodbye.over {
            self.ending.set_over(&self.members);
            self.members.told(worker);
        }
        if goodbye.saved {
            self.ending.set_saved();
        }
    }

    /// Whether there is nothing left to do.
    pub fn may_go(&self, now: Instant) -> MayGo {
        self.ending.may_go(&self.members, now)
    }

    /// What this ps cannot go on without, if anything: for whom it waits, and why.
    pub fn waits_for(&self) -> Option<(Vec<usize>, &'static str)> {
        if self.ending.is_over() {
            let unsaved = !self.ending.is_saved() && self.members.is_empty();
            return unsaved.then(|| {
                (
                    self.members.missing().collect(),
                    "the run is over, but nobody has saved its result; any of them will",
                )
            });
        }
        if self.members.is_empty() {
            return Some((self.members.missing().collect(), "no worker is here"));
        }
        let no_values = self.store.is_none() && !self.members.is_here(0);
        no_values.then(|| (vec![0], "it brings the initial values"))
    }

    /// The values and how many updates made them; nothing while there are none.
    pub fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    pub fn is_over(&self) -> bool {
        self.ending.is_over()
    }

    /// The number of elements of this ps's shard.
    pub fn shard_len(&self) -> Option<usize> {
        self.run.as_ref()?.plan.shards().get(self.ps).map(ExactSizeIterator::len)
    }

    fn cannot_keep(&self, error: &std::io::Error) -> Refusal {
        let path = self.keeper.as_ref().map(|keeper| keeper.path().display().to_string()).unwrap_or_default();
        Refusal::Invalid(format!(
            "there is no memory for the parameters: {path} {error}; give the ps another --state_dir, or `off`"
        ))
    }

    fn not_applied(&self, why: NotApplied) -> Refusal {
        let NotFinite { what, element, value } = match why {
            NotApplied::NotFinite(bad) => bad,
            NotApplied::NoRoom => return Refusal::NotYet("it is still sending too many replies".into()),
        };
        let name = self.run.as_ref().map_or_else(String::new, |run| run.plan.name_of(self.ps, element));
        Refusal::Invalid(format!(
            "{what} {value} at {name}; it was not applied, the parameters are untouched. \
             Training has diverged: try a smaller --learning_rate"
        ))
    }

    fn hand_out(&mut self, worker: usize) -> Vec<u64> {
        if self.ps == 0 && !self.ending.is_over() { self.ledger.top_up(worker) } else { Vec::new() }
    }

    fn progress(&mut self, worker: usize, batches: Vec<u64>) -> Progress {
        let over = self.ending.is_over();
        if over {
            self.members.told(worker);
        }
        Progress {
            version: self.store.as_ref().map_or(0, Store::version),
            over,
            chief: self.ending.chief(&self.members) == Some(worker),
            batches,
            saved: self.ending.is_saved(),
            run_id: self.run_id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::{Optimizer, Rule};
    use bytes::Bytes;
    use phalanx_cluster::{Placement, Plan, Variable};

    fn cluster() -> ClusterSpec {
        ClusterSpec::parse("p:1", "w:1,v:1").unwrap()
    }

    fn run() -> RunSpec {
        let variables = vec![Variable { name: "w".into(), shape: vec![2] }];
        RunSpec {
            plan: Plan::new(variables, Placement::Balanced, 1).unwrap(),
            optimizer: Optimizer::new(Rule::Sgd, 1.0),
            train_steps: 3,
            settings: Default::default(),
        }
    }

    fn hello(worker: u32) -> Hello {
        Hello {
            protocol: PROTOCOL,
            cluster: cluster().to_string(),
            ps: 0,
            worker,
            incarnation: 1,
            origin: "a test".into(),
            run: Some(run().to_wire()),
            run_id: 0,
        }
    }

    fn state() -> State {
        State::new(0, cluster(), Instant::now())
    }

    fn pieces(values: [f32; 2]) -> Pieces {
        let mut pieces = Pieces::default();
        pieces.add(Bytes::copy_from_slice(bytemuck::cast_slice(&values)));
        pieces
    }

    fn push(state: &mut State, ticket: Ticket, sequence: u64) -> Progress {
        let gradient = &pieces([-1.0, -2.0]);
        state.push(ticket, Push { incarnation: 1, sequence, batch: 0, norm: None, gradient }).unwrap().0
    }

    #[test]
    fn worker_0_brings_the_values_and_the_last_step_ends_the_run() {
        let mut state = state();
        let (other, welcome) = state.hello(hello(1), Instant::now()).unwrap();
        assert!(!welcome.wants_initial_values);
        assert_eq!(welcome.progress.unwrap().batches, [0, 1]);
        assert!(state.pull(1).is_none());
        let (chief, welcome) = state.hello(hello(0), Instant::now()).unwrap();
        assert!(welcome.wants_initial_values);
        state.initialise(chief, 1, &pieces([0.0, 0.0])).unwrap();

        assert_eq!((push(&mut state, other, 1).version, push(&mut state, chief, 1).version), (1, 2));
        assert!(push(&mut state, other, 2).over);
        let late = push(&mut state, chief, 2);
        assert!(late.over && late.chief && late.batches.is_empty());
        assert_eq!(late.version, 3, "nothing is applied after the end");
        assert_eq!(state.store().unwrap().values().as_slice(), [3.0, 6.0]);
    }

    #[test]
    fn a_ps_goes_when_the_result_is_saved_and_all_know() {
        let mut state = state();
        let (chief, _) = state.hello(hello(0), Instant::now()).unwrap();
        state.initialise(chief, 1, &pieces([0.0, 0.0])).unwrap();
        (1..=3).for_each(|sequence| drop(push(&mut state, chief, sequence)));
        let now = Instant::now();
        state.leave(chief, now);
        assert!(state.waits_for().unwrap().1.contains("nobody has saved its result"));
        let (late, welcome) = state.hello(hello(1), Instant::now()).unwrap();
        let progress = welcome.progress.unwrap();
        assert!(progress.over && progress.chief && !progress.saved, "whoever comes now has to save");
        state.goodbye(1, Goodbye { over: true, saved: true });
        state.leave(late, now);
        assert_eq!(state.may_go(now), MayGo::Done);
    }

    #[test]
    fn a_shard_that_hears_of_the_end_early_still_applies_what_ps_0_counted() {
        let mut state = state();
        let (chief, _) = state.hello(hello(0), Instant::now()).unwrap();
        let (other, _) = state.hello(hello(1), Instant::now()).unwrap();
        state.initialise(chief, 1, &pieces([0.0, 0.0])).unwrap();
        (1..=2).for_each(|sequence| drop(push(&mut state, chief, sequence)));
        state.goodbye(0, Goodbye { over: true, saved: false });
        assert_eq!(push(&mut state, other, 1).version, 3);
        assert_eq!(push(&mut state, other, 2).version, 3);
    }

    #[test]
    fn batches_handed_out_by_a_connection_that_broke_are_handed_out_again() {
        let mut state = state();
        let (_, welcome) = state.hello(hello(0), Instant::now()).unwrap();
        assert_eq!(welcome.progress.unwrap().batches, [0, 1]);
        let (_, welcome) = state.hello(hello(0), Instant::now()).unwrap();
        assert_eq!(welcome.progress.unwrap().batches, [0, 1]);
    }

    #[test]
    fn a_stranger_is_refused_with_both_sides_values() {
        type Change = fn(&mut Hello);
        let cases: [(Change, &str); 6] = [
            (|hello| hello.protocol = 9, "protocol version is 1 here and 9 there"),
            (
                |hello| hello.cluster = "ps_hosts=q:1".into(),
                "cluster is ps_hosts=p:1 worker_hosts=w:1,v:1 here",
            ),
            (|hello| hello.ps = 1, "ps index is 0 here and 1 there"),
            (|hello| hello.worker = 2, "no worker 2"),
            (|hello| hello.run.as_mut().unwrap().train_steps = 9, "train_steps is 3 here and 9 there"),
            (|hello| hello.run = None, "run is missing"),
        ];
        for (change, words) in cases {
            let mut state = state();
            state.hello(hello(0), Instant::now()).unwrap();
            let mut stranger = hello(1);
            change(&mut stranger);
            let refusal = format!("{:?}", state.hello(stranger, Instant::now()).unwrap_err());
            assert!(refusal.contains(words), "{refusal}");
            state.hello(hello(1), Instant::now()).unwrap();
        }
        let mut state = state();
        state.hello(hello(0), Instant::now()).unwrap();
        let twin = Hello { incarnation: 2, ..hello(0) };
        assert!(matches!(state.hello(twin, Instant::now()), Err(Refusal::Duplicate(_))));
    }

    #[test]
    fn a_wrong_definition_lasts_no_longer_than_its_worker() {
        let mut state = state();
        let mut wrong = hello(1);
        wrong.run.as_mut().unwrap().train_steps = 9;
        let (ticket, _) = state.hello(wrong, Instant::now()).unwrap();
        assert!(state.hello(hello(0), Instant::now()).is_err());
        state.leave(ticket, Instant::now());
        state.hello(hello(0), Instant::now()).unwrap();
    }

    /// A ps in its second life, whose first life applied two pushes of worker 0.
    fn second_life(folder: &Path, now: Instant) -> State {
        let keeper = || Keeper::new(folder, &cluster(), 0).unwrap();
        let mut first = state();
        first.keep(keeper());
        let (chief, _) = first.hello(hello(0), now).unwrap();
        first.initialise(chief, 1, &pieces([0.0, 0.0])).unwrap();
        (1..=2).for_each(|sequence| drop(push(&mut first, chief, sequence)));
        drop(first);
        let (mut second, mut keeper) = (state(), keeper());
        let found = keeper.find(1, 2).unwrap().unwrap();
        second.keep(keeper);
        assert!(second.resume(found, now));
        second
    }

    #[test]
    fn a_ps_that_was_killed_goes_on_where_it_was_and_applies_nothing_twice() {
        let (folder, now) = (tempfile::tempdir().unwrap(), Instant::now());
        let mut state = second_life(folder.path(), now);
        let (chief, welcome) = state.hello(Hello { run_id: 1, ..hello(0) }, now).unwrap();
        assert_eq!(welcome.progress.unwrap().version, 2);
        assert_eq!(push(&mut state, chief, 2).version, 2, "its reply was lost");
        assert_eq!(push(&mut state, chief, 3).version, 3);
        assert_eq!(state.store().unwrap().values().as_slice(), [3.0, 6.0]);
        state.forget().unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_state_of_a_run_that_is_gone_is_set_aside_and_never_used() {
        let (folder, now) = (tempfile::tempdir().unwrap(), Instant::now());
        let mut state = second_life(folder.path(), now);
        assert!(matches!(state.hello(hello(0), now), Err(Refusal::NotYet(_))));
        let other = Hello { run_id: 9, ..hello(0) };
        assert!(matches!(state.hello(other, now), Err(Refusal::Mismatch(_))));
        let (_, welcome) = state.hello(hello(0), now + CONFIRMATION).unwrap();
        assert!(welcome.wants_initial_values);
        assert!(state.take_set_aside().unwrap().exists());
        let old = Hello { run_id: 1, ..hello(1) };
        assert!(matches!(state.hello(old, now), Err(Refusal::Lost)), "too late for the old run");
    }

    #[test]
    fn a_fresh_worker_joins_a_run_that_one_of_its_own_has_confirmed() {
        let (folder, now) = (tempfile::tempdir().unwrap(), Instant::now());
        let mut state = second_life(folder.path(), now);
        state.hello(Hello { run_id: 1, ..hello(1) }, now).unwrap();
        let (_, welcome) = state.hello(hello(0), now).unwrap();
        assert!(welcome.initialised && !welcome.wants_initial_values);
    }

    #[test]
    fn a_state_that_is_damaged_foreign_or_in_use_is_refused() {
        let (folder, now) = (tempfile::tempdir().unwrap(), Instant::now());
        let in_use = second_life(folder.path(), now);
        let find = || Keeper::new(folder.path(), &cluster(), 0).unwrap().find(1, 2).unwrap_err().to_string();
        assert!(find().contains("another process"));
        let path = in_use.kept_in().unwrap().to_owned();
        drop(in_use);
        let good = std::fs::read(&path).unwrap();
        for (at, words) in [(0, "not the state of a ps"), (60, "damaged")] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&path, bad).unwrap();
            let reason = find();
            assert!(reason.contains(words), "{reason}");
        }
        for len in [0, 20, 100, good.len() - 1] {
            std::fs::write(&path, &good[..len]).unwrap();
            find();
        }
    }
}
