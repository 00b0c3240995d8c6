//! The gRPC edge of [`State`]: messages in, replies out, refusals as statuses.
//!
//! A transfer never holds the lock: a push is applied when all its pieces are here, and a reply is sent from
//! values that no later update touches. So workers send and receive in parallel, and a broken transfer
//! changes nothing.

use crate::{
    framing::{Incoming, Outgoing},
    membership::Ticket,
    serve::PsEvent,
    state::{Push, Refusal, State},
    store::Pieces,
    values::Values as StoredValues,
    wire::{self, FromPs, Gradient, TRAIN, ToPs, Values, from_ps, to_ps},
};
use bytes::Bytes;
use futures_util::stream;
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    convert::Infallible,
    future::{Ready, ready},
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};
use tokio::sync::watch;
use tonic::{
    Status,
    body::Body,
    codegen::{self, http},
    metadata::GRPC_CONTENT_TYPE,
    server::NamedService,
};

/// The longest reason for a refusal.
const MAX_REASON: usize = 4000;

/// What the sessions of one ps share.
pub(crate) struct Shared {
    pub state: Mutex<State>,
    /// Rung at every change that somebody may wait for: values came, a worker came or left, the end.
    pub changed: watch::Sender<()>,
    pub stop: watch::Receiver<bool>,
    pub on_event: Box<dyn Fn(PsEvent) + Send + Sync>,
}

/// The service as HTTP sees it; what tonic would generate, but with our own framing.
#[derive(Clone)]
pub(crate) struct Service(pub Arc<Shared>);

impl NamedService for Service {
    const NAME: &'static str = "phalanx.v1.ParameterServer";
}

impl codegen::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != TRAIN {
            return ready(Ok(Status::unimplemented("there is no such method").into_http()));
        }
        let session = Session {
            shared: Arc::clone(&self.0),
            inbound: Incoming::new(request.into_body()),
            seat: None,
            changed: self.0.changed.subscribe(),
            pull_waits: false,
            incoming: Pieces::default(),
            outbox: VecDeque::new(),
        };
        // The reply stream drives the session: no task and no channel between a push and its reply.
        let replies = Outgoing::of_server(stream::try_unfold(session, Session::next));
        let mut response = http::Response::new(Body::new(replies));
        response.headers_mut().insert(http::header::CONTENT_TYPE, GRPC_CONTENT_TYPE);
        ready(Ok(response))
    }
}

/// One worker's conversation.
struct Session {
    shared: Arc<Shared>,
    inbound: Incoming<ToPs>,
    seat: Option<Seat>,
    // Rung at every change that somebody may wait for.
    changed: watch::Receiver<()>,
    // The worker has asked for values, and there are none yet.
    pull_waits: bool,
    // The vector that is being received.
    incoming: Pieces,
    outbox: VecDeque<FromPs>,
}

/// A worker's place in the membership, given up when its session ends, whatever way it ends.
struct Seat {
    shared: Arc<Shared>,
    ticket: Ticket,
    incarnation: u64,
    in_order: bool,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Self { shared, ticket, in_order, .. } = self;
        let mut state = shared.state.lock();
        // Whoever was told that the run is over may just hang up.
        *in_order |= state.is_over();
        let gone = state.leave(*ticket, Instant::now());
        drop(state);
        if gone {
            (shared.on_event)(PsEvent::Left { worker: ticket.worker, in_order: *in_order });
            shared.changed.send_replace(());
        }
    }
}

impl Session {
    async fn next(mut self) -> Result<Option<(FromPs, Self)>, Status> {
        loop {
            if let Some(reply) = self.outbox.pop_front() {
                return Ok(Some((reply, self)));
            }
            let mut stop = self.shared.stop.clone();
            let message = tokio::select! {
                message = self.inbound.message() => message?,
                _ = self.changed.changed(), if self.pull_waits => {
                    self.pull();
                    continue;
                }
                _ = stop.wait_for(|stop| *stop) => return Err(Status::unavailable("the ps was stopped")),
            };
            let Some(message) = message.map(|message| message.message) else { return Ok(None) };
            self.handle(message).map_err(|refusal| self.refuse(refusal))?;
        }
    }

    fn handle(&mut self, message: Option<to_ps::Message>) -> Result<(), Refusal> {
        use to_ps::Message;
        match (message, &mut self.seat) {
            (Some(Message::Hello(hello)), None) => self.hello(hello),
            (Some(Message::Initial(values)), Some(_)) => self.initialise(values),
            (Some(Message::Pull(_)), Some(_)) => {
                self.pull();
                Ok(())
            }
            (Some(Message::Ask(_)), Some(seat)) => {
                let progress = self.shared.state.lock().ask(seat.ticket.worker);
                self.outbox.push_back(FromPs { message: Some(from_ps::Message::Progress(progress)) });
                Ok(())
            }
            (Some(Message::Gradient(gradient)), Some(_)) => self.gradient(gradient),
            (Some(Message::Goodbye(goodbye)), Some(seat)) => {
                seat.in_order = true;
                self.shared.state.lock().goodbye(seat.ticket.worker, goodbye);
                Ok(())
            }
            (Some(Message::Hello(_)), Some(_)) => Err(Refusal::Invalid("a second hello".into())),
            (Some(_), None) => Err(Refusal::Invalid("the first message is not a hello".into())),
            (None, _) => Err(Refusal::Invalid("a message of a kind that this ps does not know".into())),
        }
    }

    fn hello(&mut self, hello: wire::Hello) -> Result<(), Refusal> {
        let (worker, incarnation, origin) = (hello.worker as usize, hello.incarnation, hello.origin.clone());
        let result = self.shared.state.lock().hello(hello, Instant::now());
        if let Some(path) = self.shared.state.lock().take_set_aside() {
            let reason = "its run is gone".into();
            (self.shared.on_event)(PsEvent::SetAside { path, reason });
        }
        let (ticket, welcome) = result?;
        let shared = Arc::clone(&self.shared);
        self.seat = Some(Seat { shared, ticket, incarnation, in_order: false });
        (self.shared.on_event)(PsEvent::Joined { worker, origin });
        self.shared.changed.send_replace(());
        self.outbox.push_back(FromPs { message: Some(from_ps::Message::Welcome(welcome)) });
        Ok(())
    }

    fn initialise(&mut self, piece: Values) -> Result<(), Refusal> {
        let Some(&Seat { ticket, incarnation, .. }) = self.seat.as_ref() else { return Ok(()) };
        if self.receive("the initial values", piece.offset, piece.total, piece.data)? {
            self.shared.state.lock().initialise(ticket, incarnation, &self.incoming)?;
            let parameters = self.incoming.bytes() / size_of::<f32>();
            self.incoming.clear();
            (self.shared.on_event)(PsEvent::Initialised { parameters });
            self.shared.changed.send_replace(());
        }
        Ok(())
    }

    /// Answers with the values, or remembers to as soon as there are any.
    fn pull(&mut self) {
        let Some(Ticket { worker, .. }) = self.ticket() else { return };
        let pulled = self.shared.state.lock().pull(worker);
        self.pull_waits = pulled.is_none();
        if let Some((progress, values)) = pulled {
            self.reply(progress, &values);
        }
    }

    fn gradient(&mut self, piece: Gradient) -> Result<(), Refusal> {
        let Some(&Seat { ticket, incarnation, .. }) = self.seat.as_ref() else { return Ok(()) };
        let Gradient { sequence, batch, norm, .. } = piece;
        if self.receive("the gradient", piece.offset, piece.total, piece.data)? {
            let mut state = self.shared.state.lock();
            let was_over = state.is_over();
            let push = Push { incarnation, sequence, batch, norm, gradient: &self.incoming };
            let (progress, values) = state.push(ticket, push)?;
            drop(state);
            self.incoming.clear();
            if progress.over && !was_over {
                (self.shared.on_event)(PsEvent::Over { updates: progress.version });
                self.shared.changed.send_replace(());
            }
            self.reply(progress, &values);
        }
        Ok(())
    }

    /// Adds a piece to the vector under way; says whether it is whole.
    ///
    /// Memory grows with what arrives, never with what a header promises.
    fn receive(&mut self, what: &str, offset: u64, total: u64, data: Bytes) -> Result<bool, Refusal> {
        let invalid = |text: String| Err(Refusal::Invalid(text));
        let expected = self.shared.state.lock().shard_len().unwrap_or(0) * size_of::<f32>();
        if total != expected as u64 {
            return invalid(format!("{what} has {total} bytes, the shard has {expected}"));
        }
        let so_far = self.incoming.bytes();
        if offset != so_far as u64 {
            return invalid(format!("a piece of {what} begins at byte {offset}, expected was byte {so_far}"));
        }
        // What is left of a run that was defined anew may be more than there is room for.
        let (size, missing) = (data.len(), expected.saturating_sub(so_far));
        if size > missing || size % size_of::<f32>() != 0 || (size == 0 && missing > 0) {
            return invalid(format!(
                "a piece of {what} has {size} bytes at byte {offset}, {missing} are missing"
            ));
        }
        self.incoming.add(data);
        Ok(size == missing)
    }

    /// Queues a reply, in pieces.
    fn reply(&mut self, progress: wire::Progress, values: &StoredValues) {
        let values = values.as_bytes();
        let total = values.len() as u64;
        let mut progress = Some(progress);
        for piece in wire::pieces(values.len()) {
            let offset = piece.start as u64;
            let values = Values { progress: progress.take(), offset, total, data: values.slice(piece) };
            self.outbox.push_back(FromPs { message: Some(from_ps::Message::Values(values)) });
        }
    }

    fn ticket(&self) -> Option<Ticket> {
        self.seat.as_ref().map(|seat| seat.ticket)
    }

    fn refuse(&self, refusal: Refusal) -> Status {
        let (code, reason) = match refusal {
            Refusal::Mismatch(reason) => (tonic::Code::FailedPrecondition, reason),
            Refusal::Duplicate(reason) => (tonic::Code::AlreadyExists, reason),
            Refusal::Invalid(reason) => (tonic::Code::InvalidArgument, reason),
            Refusal::Lost => (tonic::Code::DataLoss, "it does not have the values of this run".into()),
            // Nobody is turned away for good, so there is nothing to tell.
            Refusal::NotYet(reason) => return Status::unavailable(reason),
        };
        // A status travels in a header, and those are limited.
        let reason: String = reason.chars().take(MAX_REASON).collect();
        (self.shared.on_event)(PsEvent::Refused {
            worker: self.ticket().map(|ticket| ticket.worker),
            reason: reason.clone(),
        });
        Status::new(code, reason)
    }
}
