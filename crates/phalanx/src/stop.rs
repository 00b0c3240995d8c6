//! Ctrl-C and SIGTERM, obeyed within a second whatever the process is doing.

use std::{io, process, thread, time::Duration};
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// The exit code of a process that was asked to stop.
pub const INTERRUPTED: u8 = 130;

/// Whether somebody asked this process to stop.
#[derive(Clone)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Listens for signals from now on. A process that is still there `grace` after the first one, in the
    /// middle of a long computation for example, is ended; so is one that gets a second.
    pub fn on_signals(grace: Duration) -> io::Result<Self> {
        let (request, requested) = watch::channel(false);
        // Registered before this returns: no signal falls between two chairs.
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let (mut interrupt, mut terminate) = runtime.block_on(async {
            io::Result::Ok((signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?))
        })?;
        thread::Builder::new().name("signals".into()).spawn(move || {
            runtime.block_on(async move {
                let mut one = async || {
                    tokio::select! { _ = interrupt.recv() => {} _ = terminate.recv() => {} }
                };
                one().await;
                request.send_replace(true);
                tokio::select! { () = one() => {} () = tokio::time::sleep(grace) => {} }
                eprintln!("interrupted");
                process::exit(INTERRUPTED.into());
            });
        })?;
        Ok(Self(requested))
    }

    /// Whether a stop was requested.
    pub fn requested(&self) -> bool {
        *self.0.borrow()
    }

    /// Becomes true when a stop is requested.
    pub fn receiver(&self) -> watch::Receiver<bool> {
        self.0.clone()
    }

    /// The result of `work`, or nothing if a stop is requested before it is done.
    pub async fn unless_requested<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut requested = self.receiver();
        tokio::select! {
            biased;
            result = work => Some(result),
            Ok(_) = requested.wait_for(|requested| *requested) => None,
        }
    }
}
