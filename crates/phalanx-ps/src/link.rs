//! A worker's conversation with one ps, over as many connections as it takes.

use crate::{
    client::{ClientConfig, ClientError, Farewell},
    flat::{FlatPart, cut},
    framing::Incoming,
    patience::{Patience, Waiting},
    transport,
    wire::{
        self, Ask, FromPs, Goodbye, Gradient, Hello, PROTOCOL, Progress, Pull, TRAIN, ToPs, Welcome, from_ps,
        to_ps::Message,
    },
};
use futures_util::StreamExt;
use phalanx_cluster::Task;
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
/// For how long a farewell that matters is tried.
const SAVED_FAREWELL: Duration = Duration::from_secs(3);
/// How long a farewell may take.
const FAREWELL: Duration = Duration::from_millis(500);
/// Pieces on their way to the connection.
const QUEUE: usize = 8;

/// The connection to one ps.
pub(crate) struct Link {
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
pub(crate) enum Request<'a> {
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

impl Link {
    /// Connects to a ps, as soon as it is there.
    pub async fn connect(
        config: Arc<ClientConfig>,
        ps: usize,
        shard: Range<usize>,
    ) -> Result<Self, ClientError> {
        let mut link = Self { config, ps, shard, session: None, run_id: 0, batches: None };
        link.reconnect(&mut Patience::new(Instant::now())).await?;
        Ok(link)
    }

    /// The part of the flat vector that the ps has.
    pub fn shard(&self) -> Range<usize> {
        self.shard.clone()
    }

    /// What was handed out while connecting, if a connection was made since this was last asked.
    pub fn take_batches(&mut self) -> Option<Vec<u64>> {
        self.batches.take()
    }

    /// One request and its reply, over as many connections as it takes. A push that is sent again keeps its
    /// number, so that the ps applies it once.
    pub async fn exchange(
        &mut self,
        request: &Request<'_>,
        values: &mut [u8],
    ) -> Result<Progress, ClientError> {
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

    /// Leaves in order.
    pub async fn leave(mut self, farewell: Farewell) {
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

    /// Where the run stood when the connection was made.
    pub fn progress(&self) -> Option<&Progress> {
        self.session.as_ref().and_then(|session| session.welcome.progress.as_ref())
    }

    fn has_values(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.welcome.initialised)
    }

    /// Whether the ps has no values, and this worker is the one to bring them.
    pub fn wants_initial_values(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.welcome.wants_initial_values)
    }

    fn refused(&self, reason: String) -> ClientError {
        let (ps, address) = self.name();
        ClientError::Refused { ps, address, reason }
    }

    /// The ps and its address, for messages to people.
    pub fn name(&self) -> (Task, String) {
        let ps = Task::ps(self.ps);
        let address = self.config.cluster.address(ps).map(ToString::to_string);
        (ps, address.unwrap_or_default())
    }
}
