//! A worker's side of the conversation with every ps.

use crate::{
    framing::Incoming,
    optimizer::clip,
    patience::{Patience, Waiting},
    run::RunSpec,
    transport,
    values::Values,
    wire::{
        self, Ask, FromPs, Goodbye, Gradient, Hello, PROTOCOL, Progress, Pull, TRAIN, ToPs, Welcome, from_ps,
        pieces, to_ps::Message,
    },
};
use bytes::Bytes;
use futures_util::{
    StreamExt,
    future::{join_all, try_join_all},
};
use phalanx_cluster::{ClusterSpec, Task};
use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

/// How long a ps that accepted the connection may take to answer before it is called anew.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the last pushes may take from one ps to the others.
const LAST_PUSHES: Duration = Duration::from_secs(2);
const BETWEEN_PULLS: Duration = Duration::from_millis(20);
/// For how long a farewell that matters is tried.
const SAVED_FAREWELL: Duration = Duration::from_secs(3);
/// How long a farewell may take.
const FAREWELL: Duration = Duration::from_millis(500);
/// Pieces on their way to the connection.
const QUEUE: usize = 8;

/// What a worker needs to know to join.
pub struct ClientConfig {
    /// The cluster it is part of.
    pub cluster: ClusterSpec,
    /// Its task index.
    pub worker: usize,
    /// This life of the worker; higher than that of any life before.
    pub incarnation: u64,
    /// Its process and host, for messages to people.
    pub origin: String,
    /// The run it takes part in.
    pub run: RunSpec,
    /// Told, now and then, whom the worker is waiting for.
    pub on_wait: Box<dyn Fn(Waiting) + Send + Sync>,
}

/// Why a worker cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The run ended before this worker came; there is nothing to do.
    #[error("the run is over after {updates} updates")]
    Over {
        /// How many updates it had.
        updates: u64,
    },
    /// A ps turned the worker, or what it sent, away.
    #[error("{ps} at {address} refused: {reason}")]
    Refused {
        /// The ps.
        ps: Task,
        /// Where it listens.
        address: String,
        /// What it said.
        reason: String,
    },
    /// The gradient has a value that is not a number, or infinite; it was sent to nobody.
    #[error(
        "the gradient has {value} at {name}; it was not applied, the parameters are untouched. Training has \
         diverged: try a smaller --learning_rate"
    )]
    NotFinite {
        /// The value.
        value: f32,
        /// The variable and the place in it.
        name: String,
    },
    /// A ps was restarted and has no values any more.
    #[error("{ps} at {address} was restarted and has lost its parameters; start the run again")]
    Lost {
        /// The ps.
        ps: Task,
        /// Where it listens.
        address: String,
    },
}

/// A part of a flat vector, as it lies in memory.
#[derive(Clone, Debug)]
pub struct FlatPart {
    /// The place of its first element in the flat vector of the plan.
    pub start: usize,
    /// Little-endian f32.
    pub data: Bytes,
}

/// Where the run stands after an exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Updates so far.
    pub global_step: u64,
    /// The run has ended.
    pub over: bool,
    /// Its result is saved.
    pub saved: bool,
    /// This worker has the chief's duties.
    pub chief: bool,
    /// Batches handed to this worker since the last exchange.
    pub batches: Vec<u64>,
    /// They are all that this worker has in hand: the connection was made anew, and what it had before was given
    /// back.
    pub anew: bool,
}

impl Step {
    fn new(progress: Progress, welcomed: Option<Vec<u64>>) -> Self {
        let Progress { version: global_step, over, chief, saved, batches: handed_out, .. } = progress;
        let anew = welcomed.is_some();
        let mut batches = welcomed.unwrap_or_default();
        batches.extend(handed_out);
        Self { global_step, over, saved, chief, batches, anew }
    }
}

/// With what a worker leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Farewell {
    /// The run goes on without it.
    Early,
    /// It knows that the run is over.
    Over,
    /// It was the chief at the end of the run, and has saved the result.
    Saved,
}

/// The connections to every ps.
pub struct Client {
    config: Arc<ClientConfig>,
    links: Vec<Link>,
    sequence: u64,
}

/// The connection to one ps.
struct Link {
    config: Arc<ClientConfig>,
    ps: usize,
    shard: Range<usize>,
    session: Option<Session>,
    // The run that values have come of; 0 while none have.
    run_id: u64,
    // Handed out while connecting, since the last exchange.
    batches: Option<Vec<u64>>,
}

struct Session {
    to: mpsc::Sender<ToPs>,
    from: Incoming<FromPs>,
    welcome: Welcome,
}

/// What a worker asks of a ps.
enum Request<'a> {
    /// The values to begin with; this worker's own, if the ps has none and asks for them.
    Begin {
        initial: &'a [FlatPart],
    },
    Pull,
    Ask,
    Push {
        sequence: u64,
        batch: u64,
        norm: Option<f64>,
        parts: &'a [FlatPart],
    },
}

/// Why one attempt failed.
enum Failure {
    /// Worth another attempt.
    Transient(String),
    /// Not worth one.
    Final(ClientError),
}

impl Client {
    /// Connects to every ps, in any order of start: a ps that is not there yet is waited for.
    pub async fn connect(config: ClientConfig) -> Result<Self, ClientError> {
        let config = Arc::new(config);
        let links = config.run.plan.shards().iter().enumerate().map(|(ps, shard)| {
            let (config, shard) = (Arc::clone(&config), shard.clone());
            let mut link = Link { config, ps, shard, session: None, run_id: 0, batches: None };
            async move {
                link.reconnect(&mut Patience::new(Instant::now())).await?;
                Ok::<_, ClientError>(link)
            }
        });
        let links = try_join_all(links).await?;
        // A ps that wants initial values beside others that were trained has lost its own.
        let trained = links.iter().any(|link| link.progress().is_some_and(|progress| progress.version > 0));
        if let Some(empty) = links.iter().find(|link| trained && link.wants_initial_values()) {
            let (ps, address) = empty.name();
            return Err(ClientError::Lost { ps, address });
        }
        Ok(Self { config, links, sequence: 0 })
    }

    /// The run that this worker takes part in.
    pub fn run(&self) -> &RunSpec {
        &self.config.run
    }

    /// Fetches the values to begin with, laid out by the plan. They are `initial` where a ps has none yet and
    /// this worker is the one to bring them; other workers wait until it has.
    pub async fn begin(&mut self, initial: &Values, values: &mut [f32]) -> Result<Step, ClientError> {
        let initial = [FlatPart { start: 0, data: initial.as_bytes().clone() }];
        Ok(self.exchange(&Request::Begin { initial: &initial }, values).await?.0)
    }

    /// Fetches the values that the run ended with: a push that ps 0 has counted may still be on its way to another
    /// ps, and is waited for, but not for ever, since its worker may be gone.
    pub async fn pull_last(&mut self, values: &mut [f32]) -> Result<Step, ClientError> {
        let deadline = Instant::now() + LAST_PUSHES;
        loop {
            let (step, lowest) = self.exchange(&Request::Pull, values).await?;
            if lowest >= step.global_step || Instant::now() >= deadline {
                return Ok(step);
            }
            tokio::time::sleep(BETWEEN_PULLS).await;
        }
    }

    /// Pushes the gradient of one batch to every ps and fetches the new values into `values`.
    pub async fn push(
        &mut self,
        batch: u64,
        gradient: &[FlatPart],
        values: &mut [f32],
    ) -> Result<Step, ClientError> {
        self.sequence += 1;
        let sequence = self.sequence;
        if self.links.len() > 1 {
            self.check(gradient)?;
        }
        let norm = self.config.run.optimizer.clip_norm.map(|_| norm(gradient));
        Ok(self.exchange(&Request::Push { sequence, batch, norm, parts: gradient }, values).await?.0)
    }

    // Each ps refuses a gradient that is not finite, but others may have applied their part of it by then.
    fn check(&self, gradient: &[FlatPart]) -> Result<(), ClientError> {
        for part in gradient {
            let floats = bytemuck::pod_collect_to_vec::<u8, f32>(&part.data);
            let Some(place) = floats.iter().position(|value| !value.is_finite()) else { continue };
            let (element, plan) = (part.start + place, &self.config.run.plan);
            let shard = plan.shards().iter().enumerate().find(|(_, shard)| shard.contains(&element));
            let name = shard.map(|(ps, shard)| plan.name_of(ps, element - shard.start)).unwrap_or_default();
            return Err(ClientError::NotFinite { value: floats[place], name });
        }
        Ok(())
    }

    /// Where the run stands, by the word of ps 0.
    pub async fn ask(&mut self) -> Result<Step, ClientError> {
        let link = self.links.first_mut();
        let progress = match link {
            Some(link) => link.exchange(&Request::Ask, &mut []).await?,
            None => Progress::default(),
        };
        Ok(Step::new(progress, None))
    }

    /// Leaves in order.
    pub async fn leave(self, farewell: Farewell) {
        join_all(self.links.into_iter().map(|link| link.leave(farewell))).await;
    }

    /// One request to every ps; where the run stands, and the lowest version of all shards.
    async fn exchange(
        &mut self,
        request: &Request<'_>,
        values: &mut [f32],
    ) -> Result<(Step, u64), ClientError> {
        let mut rest = values;
        let exchanges = self.links.iter_mut().map(|link| {
            let (shard, after) = std::mem::take(&mut rest).split_at_mut(link.shard.len());
            rest = after;
            link.exchange(request, bytemuck::cast_slice_mut(shard))
        });
        let replies = try_join_all(exchanges).await?;
        let lowest = replies.iter().map(|progress| progress.version).min().unwrap_or_default();
        let progress = replies.into_iter().next().unwrap_or_default();
        let welcomed = self.links.first_mut().and_then(|link| link.batches.take());
        Ok((Step::new(progress, welcomed), lowest))
    }
}

impl Link {
    /// One request and its reply, over as many connections as it takes. A push that is sent again keeps its
    /// number, so that the ps applies it once.
    async fn exchange(&mut self, request: &Request<'_>, values: &mut [u8]) -> Result<Progress, ClientError> {
        let mut patience = Patience::new(Instant::now());
        loop {
            match self.attempt_and_report(request, values, &mut patience).await {
                Ok(progress) => {
                    self.run_id = progress.run_id;
                    return Ok(progress);
                }
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Transient(why)) => {
                    self.pause(why, &mut patience).await;
                    self.reconnect(&mut patience).await?;
                }
            }
        }
    }

    /// Says now and then that there is no reply yet.
    async fn attempt_and_report(
        &mut self,
        request: &Request<'_>,
        values: &mut [u8],
        patience: &mut Patience,
    ) -> Result<Progress, Failure> {
        let (config, ps) = (Arc::clone(&self.config), Task::ps(self.ps));
        let (on_us, has_values) = (self.wants_initial_values(), self.has_values());
        let (awaited, why) = match request {
            Request::Begin { .. } if !has_values && !on_us => {
                (Task::worker(0), "the chief has not yet initialised the parameters")
            }
            _ => (ps, "it has not answered yet"),
        };
        let attempt = self.attempt(request, values);
        tokio::pin!(attempt);
        loop {
            if let Ok(result) = tokio::time::timeout_at(patience.next_report().into(), &mut attempt).await {
                return result;
            }
            if let Some(so_far) = patience.report(Instant::now()) {
                let address = config.cluster.address(awaited).map(ToString::to_string).unwrap_or_default();
                let whom = format!("{awaited} at {address}");
                (config.on_wait)(Waiting { whom, why: why.into(), so_far });
            }
        }
    }

    async fn attempt(&mut self, request: &Request<'_>, values: &mut [u8]) -> Result<Progress, Failure> {
        let sent = match request {
            Request::Begin { initial } => self.send_begin(initial).await,
            Request::Pull => self.send(Message::Pull(Pull {})).await,
            Request::Ask => self.send(Message::Ask(Ask {})).await,
            Request::Push { sequence, batch, norm, parts } => {
                let head =
                    Gradient { sequence: *sequence, batch: *batch, norm: *norm, ..Gradient::default() };
                self.send_push(&head, parts).await
            }
        };
        match sent {
            Ok(()) => self.receive(values).await,
            // The ps hung up; its reason, if it gave one, is on the other half of the stream.
            Err(failure) => Err(self.receive(values).await.err().unwrap_or(failure)),
        }
    }

    async fn send_push(&mut self, head: &Gradient, parts: &[FlatPart]) -> Result<(), Failure> {
        let total = (self.shard.len() * size_of::<f32>()) as u64;
        for (offset, data) in cut(parts, &self.shard) {
            let piece = Gradient { offset, total, data, ..head.clone() };
            self.send(Message::Gradient(piece)).await?;
        }
        Ok(())
    }

    async fn send_begin(&mut self, initial: &[FlatPart]) -> Result<(), Failure> {
        let wanted = self.wants_initial_values();
        let total = (self.shard.len() * size_of::<f32>()) as u64;
        for (offset, data) in cut(initial, &self.shard).filter(|_| wanted) {
            let values = wire::Values { progress: None, offset, total, data };
            self.send(Message::Initial(values)).await?;
        }
        self.send(Message::Pull(Pull {})).await
    }

    async fn send(&mut self, message: Message) -> Result<(), Failure> {
        let lost = || Failure::Transient("the connection was lost".into());
        let session = self.session.as_ref().ok_or_else(lost)?;
        session.to.send(ToPs { message: Some(message) }).await.map_err(|_| lost())
    }

    async fn receive(&mut self, values: &mut [u8]) -> Result<Progress, Failure> {
        let mut progress = None;
        let mut next = 0;
        loop {
            let session = self.session.as_mut().ok_or_else(|| Failure::Transient("not connected".into()))?;
            let message = session.from.message().await.map_err(|status| self.failure(&status))?;
            let piece = match message.and_then(|message| message.message) {
                Some(from_ps::Message::Values(piece)) => piece,
                Some(from_ps::Message::Progress(progress)) => return Ok(progress),
                _ => return Err(Failure::Transient("the connection was closed".into())),
            };
            progress = progress.or(piece.progress);
            // Pieces come in order and without gaps; anything else is not our ps.
            let place = values.get_mut(next..next + piece.data.len()).filter(|_| piece.offset == next as u64);
            let Some(place) = place else {
                return Err(Failure::Final(self.refused("sent values that do not fit the plan".into())));
            };
            place.copy_from_slice(&piece.data);
            next += piece.data.len();
            if next == values.len() {
                return Ok(progress.unwrap_or_default());
            }
        }
    }

    /// Tries to connect until it succeeds, with growing pauses.
    async fn reconnect(&mut self, patience: &mut Patience) -> Result<(), ClientError> {
        loop {
            self.session = None;
            let attempt = tokio::time::timeout(ANSWER_TIMEOUT, self.connect_once()).await;
            let why = match attempt.unwrap_or_else(|_| Err(Failure::Transient("it does not answer".into()))) {
                Ok(session) => return self.adopt(session),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Transient(why)) => why,
            };
            self.pause(why, patience).await;
        }
    }

    async fn pause(&self, why: String, patience: &mut Patience) {
        if let Some(so_far) = patience.report(Instant::now()) {
            let (ps, address) = self.name();
            (self.config.on_wait)(Waiting { whom: format!("{ps} at {address}"), why, so_far });
        }
        tokio::time::sleep(patience.next_pause()).await;
    }

    async fn connect_once(&self) -> Result<Session, Failure> {
        let ClientConfig { cluster, worker, incarnation, origin, run, .. } = &*self.config;
        let address = cluster.ps().get(self.ps).ok_or_else(|| Failure::Transient("no such ps".into()))?;
        let channel = transport::connect(address).await.map_err(Failure::Transient)?;
        let (to, outbound) = mpsc::channel(QUEUE);
        let hello = Hello {
            protocol: PROTOCOL,
            cluster: cluster.to_string(),
            ps: self.ps as u32,
            worker: *worker as u32,
            incarnation: *incarnation,
            origin: origin.clone(),
            run: Some(run.to_wire()),
            run_id: self.run_id,
        };
        let hello = ToPs { message: Some(Message::Hello(hello)) };
        to.send(hello).await.map_err(|_| Failure::Transient("the connection was lost".into()))?;
        let mut from: Incoming<FromPs> =
            transport::call(channel, TRAIN, ReceiverStream::new(outbound).map(Ok))
                .await
                .map_err(|status| self.failure(&status))?;
        let message = from.message().await.map_err(|status| self.failure(&status))?;
        match message.and_then(|message| message.message) {
            Some(from_ps::Message::Welcome(welcome)) => Ok(Session { to, from, welcome }),
            _ => Err(Failure::Transient("the connection was closed".into())),
        }
    }

    fn adopt(&mut self, session: Session) -> Result<(), ClientError> {
        let progress = &session.welcome.progress;
        // To a worker that took part, the end comes with the reply to its request, and the last values.
        let done = |progress: &&Progress| progress.over && progress.saved && self.run_id == 0;
        if let Some(progress) = progress.as_ref().filter(done) {
            return Err(ClientError::Over { updates: progress.version });
        }
        self.batches = progress.as_ref().map(|progress| progress.batches.clone());
        self.session = Some(session);
        Ok(())
    }

    async fn leave(mut self, farewell: Farewell) {
        let deadline = Instant::now() + SAVED_FAREWELL;
        // That the result is saved is worth another attempt: the ps would wait for somebody to do it.
        while !self.say_goodbye(farewell).await && farewell == Farewell::Saved && Instant::now() < deadline {
            let mut patience = Patience::new(Instant::now());
            let reconnected = tokio::time::timeout_at(deadline.into(), self.reconnect(&mut patience)).await;
            if !matches!(reconnected, Ok(Ok(()))) {
                return;
            }
        }
    }

    /// Whether the ps has heard it: it closes its half of the stream then.
    async fn say_goodbye(&mut self, farewell: Farewell) -> bool {
        let (over, saved) = (farewell != Farewell::Early, farewell == Farewell::Saved);
        let goodbye = async {
            if self.send(Message::Goodbye(Goodbye { over, saved })).await.is_err() {
                return false;
            }
            let Some(Session { to, mut from, .. }) = self.session.take() else { return false };
            drop(to);
            loop {
                match from.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return true,
                    Err(_) => return false,
                }
            }
        };
        tokio::time::timeout(FAREWELL, goodbye).await.unwrap_or(false)
    }

    fn failure(&self, status: &Status) -> Failure {
        match status.code() {
            Code::FailedPrecondition | Code::AlreadyExists | Code::InvalidArgument => {
                Failure::Final(self.refused(status.message().into()))
            }
            Code::DataLoss => {
                let (ps, address) = self.name();
                Failure::Final(ClientError::Lost { ps, address })
            }
            Code::Unimplemented => Failure::Final(self.refused("it is not a parameter server".into())),
            Code::OutOfRange => Failure::Final(self.refused(status.message().into())),
            _ => Failure::Transient(match std::error::Error::source(status) {
                Some(source) => transport::root_cause(source),
                None => status.message().into(),
            }),
        }
    }

    fn progress(&self) -> Option<&Progress> {
        self.session.as_ref().and_then(|session| session.welcome.progress.as_ref())
    }

    fn has_values(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.welcome.initialised)
    }

    fn wants_initial_values(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.welcome.wants_initial_values)
    }

    fn refused(&self, reason: String) -> ClientError {
        let (ps, address) = self.name();
        ClientError::Refused { ps, address, reason }
    }

    fn name(&self) -> (Task, String) {
        let ps = Task::ps(self.ps);
        let address = self.config.cluster.address(ps).map(ToString::to_string);
        (ps, address.unwrap_or_default())
    }
}

/// The norm of a whole gradient, whichever way it is cut.
fn norm(parts: &[FlatPart]) -> f64 {
    let squared = |part: &FlatPart| match bytemuck::try_cast_slice(&part.data) {
        Ok(floats) => clip::squared_norm(floats),
        // Not aligned as f32.
        Err(_) => clip::squared_norm(&bytemuck::pod_collect_to_vec::<u8, f32>(&part.data)),
    };
    parts.iter().map(squared).sum::<f64>().sqrt()
}

/// The pieces of a shard, each with its byte offset, cut out of the parts without copying them.
fn cut<'a>(parts: &'a [FlatPart], shard: &Range<usize>) -> impl Iterator<Item = (u64, Bytes)> + 'a {
    const WIDTH: usize = size_of::<f32>();
    let shard = shard.start * WIDTH..shard.end * WIDTH;
    let empty = shard.is_empty().then(|| (0, Bytes::new()));
    let overlap = move |part: &'a FlatPart| {
        let begin = part.start * WIDTH;
        let (from, to) = (begin.max(shard.start), (begin + part.data.len()).min(shard.end));
        let offset = from.saturating_sub(shard.start);
        let data = if from < to { part.data.slice(from - begin..to - begin) } else { Bytes::new() };
        pieces(data.len())
            .filter(|piece| !piece.is_empty())
            .map(move |piece| ((offset + piece.start) as u64, data.slice(piece)))
    };
    parts.iter().flat_map(overlap).chain(empty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::PIECE_BYTES;

    #[test]
    fn parts_are_cut_at_the_shards_and_into_pieces() {
        let floats = PIECE_BYTES / 4 + 10;
        let parts = [
            FlatPart { start: 0, data: Bytes::from(vec![1; 12]) },
            FlatPart { start: 3, data: Bytes::from(vec![2; floats * 4]) },
        ];
        let lens = |shard| cut(&parts, &shard).map(|(offset, data)| (offset, data.len())).collect::<Vec<_>>();
        assert_eq!(lens(0..2), [(0, 8)]);
        assert_eq!(lens(2..5), [(0, 4), (4, 8)]);
        assert_eq!(lens(3..3 + floats), [(0, PIECE_BYTES), (PIECE_BYTES as u64, 40)]);
        assert_eq!(lens(2..2), [(0, 0)]);
    }
}
