//! One ps from its start to its end.

use crate::{
    ending::MayGo,
    kept::{Keeper, Unusable},
    patience::{Patience, Waiting},
    service::{Service, Shared},
    state::State,
    transport,
    wire::DESCRIPTORS,
};
use parking_lot::Mutex;
use phalanx_cluster::{ClusterSpec, Task};
use std::{
    fmt, io,
    net::TcpListener,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// How long open connections may take to close at the end.
const CLOSING: Duration = Duration::from_millis(500);
/// How often the rules that depend on time are looked at.
const TICK: Duration = Duration::from_millis(200);

/// What a ps needs to know before its first worker comes.
pub struct PsConfig {
    /// Its task index.
    pub index: usize,
    /// The cluster it is part of.
    pub cluster: ClusterSpec,
    /// Where its state is kept, so that it outlives the process; nowhere if `None`.
    pub state_dir: Option<PathBuf>,
    /// Told of everything that a person may want to know.
    pub on_event: Box<dyn Fn(PsEvent) + Send + Sync>,
}

/// What happens on a ps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PsEvent {
    /// It has nothing to do until workers come.
    Waiting(Waiting),
    /// A worker came.
    Joined {
        /// Its index.
        worker: usize,
        /// Its process and host, as it says.
        origin: String,
    },
    /// A worker left.
    Left {
        /// Its index.
        worker: usize,
        /// It said goodbye.
        in_order: bool,
    },
    /// A worker, or something it sent, was turned away.
    Refused {
        /// Its index, if it got as far as that.
        worker: Option<usize>,
        /// What the worker was told.
        reason: String,
    },
    /// It goes on where an earlier life of it was killed.
    Resumed {
        /// The updates made before.
        updates: u64,
        /// Where they were kept.
        path: PathBuf,
    },
    /// A state that was found is not used.
    SetAside {
        /// Where it is now.
        path: PathBuf,
        /// Why it is not used.
        reason: String,
    },
    /// The chief brought the values to begin with.
    Initialised {
        /// The number of parameters of the shard.
        parameters: usize,
    },
    /// The last update was applied.
    Over {
        /// The number of updates.
        updates: u64,
    },
}

/// How the life of a ps ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The run is over.
    Finished {
        /// The updates applied to this shard.
        updates: u64,
    },
    /// The run is over, but no worker came to save its result.
    Unsaved {
        /// The updates applied to this shard.
        updates: u64,
    },
    /// It was asked to stop.
    Stopped {
        /// The updates applied to this shard.
        updates: u64,
        /// Where they are kept, if they are.
        kept_in: Option<PathBuf>,
    },
}

/// Runs a ps on `listener` until the run is over or `stop` becomes true.
pub async fn serve(
    listener: TcpListener,
    config: PsConfig,
    mut stop: watch::Receiver<bool>,
) -> io::Result<Outcome> {
    let PsConfig { index, cluster, state_dir, on_event } = config;
    let mut state = State::new(index, cluster.clone(), Instant::now());
    if let Some(folder) = state_dir {
        let keeper = Keeper::new(&folder, &cluster, index);
        let cannot = |error: io::Error| {
            let folder = folder.display();
            io::Error::other(format!(
                "the state cannot be kept in {folder}: {error}; give another --state_dir, or `off`"
            ))
        };
        find_state(&mut state, keeper.map_err(cannot)?, &cluster, &on_event).map_err(cannot)?;
    }
    let shared = Arc::new(Shared {
        state: Mutex::new(state),
        changed: watch::Sender::new(()),
        stop: stop.clone(),
        on_event,
    });

    let (health_reporter, health) = tonic_health::server::health_reporter();
    health_reporter.set_serving::<Service>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .build_v1()
        .map_err(io::Error::other)?;
    let (close, closing) = tokio::sync::oneshot::channel::<()>();
    let server = transport::server()
        .add_service(Service(Arc::clone(&shared)))
        .add_service(health)
        .add_service(reflection)
        .serve_with_incoming_shutdown(transport::incoming(listener)?, async { drop(closing.await) });
    let mut server = tokio::spawn(server);

    let may_go = tokio::select! {
        may_go = until_it_may_go(&shared, &cluster) => may_go,
        _ = stop.wait_for(|stop| *stop) => MayGo::No,
        ended = &mut server => return Err(match ended {
            Ok(Ok(())) => io::Error::other("the server ended by itself"),
            Ok(Err(error)) => io::Error::other(transport::root_cause(&error)),
            Err(panic) => io::Error::other(panic),
        }),
    };
    // Whoever still has a connection open, a health check for example, is not waited for.
    let _ = close.send(());
    if tokio::time::timeout(CLOSING, &mut server).await.is_err() {
        server.abort();
    }
    let updates = shared.state.lock().store().map_or(0, |store| store.version());
    let kept_in = shared.state.lock().kept_in().map(PathBuf::from);
    if may_go == MayGo::Done {
        shared.state.lock().forget()?;
    }
    Ok(match may_go {
        MayGo::Done => Outcome::Finished { updates },
        MayGo::Unsaved => Outcome::Unsaved { updates },
        MayGo::No => Outcome::Stopped { updates, kept_in },
    })
}

/// Goes on with the state that an earlier life has left, or puts it out of the way.
fn find_state(
    state: &mut State,
    mut keeper: Keeper,
    cluster: &ClusterSpec,
    on_event: &(dyn Fn(PsEvent) + Send + Sync),
) -> io::Result<()> {
    let unusable = match keeper.find(cluster.ps().len(), cluster.workers().len()) {
        Ok(None) => None,
        Ok(Some(found)) => {
            if state.resume(found, Instant::now()) {
                let updates = state.store().map_or(0, |store| store.version());
                on_event(PsEvent::Resumed { updates, path: keeper.path().into() });
                None
            } else {
                Some("it is damaged".to_string())
            }
        }
        Err(Unusable::InUse) => return Err(io::Error::other("another process is using it")),
        Err(Unusable::Because(reason)) => Some(reason),
    };
    if let Some(reason) = unusable {
        let path = keeper.set_aside()?;
        on_event(PsEvent::SetAside { path, reason });
    }
    state.keep(keeper);
    Ok(())
}

async fn until_it_may_go(shared: &Shared, cluster: &ClusterSpec) -> MayGo {
    let mut changed = shared.changed.subscribe();
    let mut patience = Patience::new(Instant::now());
    loop {
        let now = Instant::now();
        let waiting = {
            let state = shared.state.lock();
            match state.may_go(now) {
                MayGo::No => state.waits_for(),
                may_go => return may_go,
            }
        };
        match waiting {
            None => patience = Patience::new(now),
            Some((missing, why)) => {
                if let Some(so_far) = patience.report(now) {
                    let whom = missing.into_iter().map(Task::worker).filter_map(|task| {
                        cluster.address(task).ok().map(|address| format!("{task} at {address}"))
                    });
                    let whom = whom.collect::<Vec<_>>().join(", ");
                    let why = why.into();
                    (shared.on_event)(PsEvent::Waiting(Waiting { whom, why, so_far }));
                }
            }
        }
        drop(tokio::time::timeout(TICK, changed.changed()).await);
    }
}

impl fmt::Display for PsEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting(waiting) => waiting.fmt(f),
            Self::Joined { worker, origin } => write!(f, "worker {worker} is here ({origin})"),
            Self::Left { worker, in_order: true } => write!(f, "worker {worker} left"),
            Self::Left { worker, in_order: false } => {
                write!(f, "worker {worker} is gone: its connection closed")
            }
            Self::Refused { worker: Some(worker), reason } => write!(f, "refused worker {worker}: {reason}"),
            Self::Refused { worker: None, reason } => write!(f, "refused a caller: {reason}"),
            Self::Resumed { updates, path } => {
                write!(f, "going on after {updates} updates, kept in {}", path.display())
            }
            Self::SetAside { path, reason } => {
                write!(f, "found a state that is not used: {reason}; it is now {}", path.display())
            }
            Self::Initialised { parameters } => write!(f, "holding {parameters} parameters"),
            Self::Over { updates } => write!(f, "the run is over after {updates} updates"),
        }
    }
}
