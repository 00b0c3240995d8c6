//! What each message of a worker does to one ps. No I/O, and time is passed in.

use crate::{
    RunSpec,
    ending::{Ending, MayGo},
    ledger::Ledger,
    membership::{Member, Membership, Ticket},
    store::{NotFinite, Pieces, PushId, Store},
    values::Values,
    wire::{Goodbye, Hello, PROTOCOL, Progress, Welcome},
};
use phalanx_cluster::ClusterSpec;
use std::time::Instant;

/// Why a worker, or something it sent, is turned away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It was started with other settings than this ps or than the run.
    Mismatch(String),
    /// Another worker has its index.
    Duplicate(String),
    /// It sent what makes no sense.
    Invalid(String),
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
    incarnation: u64,
    pub members: Membership,
    ledger: Ledger,
    run: Option<RunSpec>,
    store: Option<Store>,
    ending: Ending,
}

impl State {
    pub fn new(ps: usize, cluster: ClusterSpec, incarnation: u64, now: Instant) -> Self {
        let members = Membership::new(cluster.workers().len(), now);
        Self {
            ps,
            cluster,
            incarnation,
            members,
            ledger: Ledger::default(),
            run: None,
            store: None,
            ending: Ending::default(),
        }
    }

    /// A worker introduces itself.
    pub fn hello(&mut self, hello: Hello) -> Result<(Ticket, Welcome), Refusal> {
        let worker = hello.worker as usize;
        self.check(&hello)?;
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
            incarnation: self.incarnation,
        };
        Ok((ticket, welcome))
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
    pub fn initialise(&mut self, ticket: Ticket, values: &Pieces) -> Result<(), Refusal> {
        let worker = self.seated(ticket)?;
        let Some(run) = &self.run else { return Err(Refusal::Invalid("values came before a hello".into())) };
        if worker != 0 {
            return Err(Refusal::Invalid(format!("worker {worker} sent initial values; only worker 0 may")));
        }
        if self.store.is_none() {
            let store = Store::new(values, run.optimizer);
            self.store = Some(store.map_err(|bad| self.not_finite(bad))?);
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
        // Each shard applies as many pushes as the run has steps, whatever it was told of the end: so the last
        // push that ps 0 counted is applied everywhere.
        if store.version() < run.train_steps {
            run.optimizer.check_norm(norm).map_err(Refusal::Invalid)?;
            if let Err(bad) = store.push(id, gradient, norm) {
                return Err(self.not_finite(bad));
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
            return unsaved.then(|| (vec![0], "the run is over, but nobody has saved its result"));
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

    fn not_finite(&self, NotFinite { what, element, value }: NotFinite) -> Refusal {
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
        }
    }

    fn state() -> State {
        State::new(0, cluster(), 1, Instant::now())
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
        let (other, welcome) = state.hello(hello(1)).unwrap();
        assert!(!welcome.wants_initial_values);
        assert_eq!(welcome.progress.unwrap().batches, [0, 1]);
        assert!(state.pull(1).is_none());
        let (chief, welcome) = state.hello(hello(0)).unwrap();
        assert!(welcome.wants_initial_values);
        state.initialise(chief, &pieces([0.0, 0.0])).unwrap();

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
        let (chief, _) = state.hello(hello(0)).unwrap();
        state.initialise(chief, &pieces([0.0, 0.0])).unwrap();
        (1..=3).for_each(|sequence| drop(push(&mut state, chief, sequence)));
        let now = Instant::now();
        state.leave(chief, now);
        assert_eq!(state.waits_for().unwrap().1, "the run is over, but nobody has saved its result");
        let (late, welcome) = state.hello(hello(1)).unwrap();
        let progress = welcome.progress.unwrap();
        assert!(progress.over && progress.chief && !progress.saved, "whoever comes now has to save");
        state.goodbye(1, Goodbye { over: true, saved: true });
        state.leave(late, now);
        assert_eq!(state.may_go(now), MayGo::Done);
    }

    #[test]
    fn a_shard_that_hears_of_the_end_early_still_applies_what_ps_0_counted() {
        let mut state = state();
        let (chief, _) = state.hello(hello(0)).unwrap();
        let (other, _) = state.hello(hello(1)).unwrap();
        state.initialise(chief, &pieces([0.0, 0.0])).unwrap();
        (1..=2).for_each(|sequence| drop(push(&mut state, chief, sequence)));
        state.goodbye(0, Goodbye { over: true, saved: false });
        assert_eq!(push(&mut state, other, 1).version, 3);
        assert_eq!(push(&mut state, other, 2).version, 3);
    }

    #[test]
    fn batches_handed_out_by_a_connection_that_broke_are_handed_out_again() {
        let mut state = state();
        let (_, welcome) = state.hello(hello(0)).unwrap();
        assert_eq!(welcome.progress.unwrap().batches, [0, 1]);
        let (_, welcome) = state.hello(hello(0)).unwrap();
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
            state.hello(hello(0)).unwrap();
            let mut stranger = hello(1);
            change(&mut stranger);
            let refusal = format!("{:?}", state.hello(stranger).unwrap_err());
            assert!(refusal.contains(words), "{refusal}");
            state.hello(hello(1)).unwrap();
        }
        let mut state = state();
        state.hello(hello(0)).unwrap();
        let twin = Hello { incarnation: 2, ..hello(0) };
        assert!(matches!(state.hello(twin), Err(Refusal::Duplicate(_))));
    }

    #[test]
    fn a_wrong_definition_lasts_no_longer_than_its_worker() {
        let mut state = state();
        let mut wrong = hello(1);
        wrong.run.as_mut().unwrap().train_steps = 9;
        let (ticket, _) = state.hello(wrong).unwrap();
        assert!(state.hello(hello(0)).is_err());
        state.leave(ticket, Instant::now());
        state.hello(hello(0)).unwrap();
    }
}
