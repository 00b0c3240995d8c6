//! A task that `train` started does not outlive it, whatever way it died.

use crate::stop::INTERRUPTED;
use std::{io, os::unix::process::parent_id, process, thread, time::Duration};

const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Ends this process when the process `parent` is not its parent any more. The system gives the children of
/// a dead process to another one, so this holds even if the parent was killed before this line was reached.
pub fn end_with(parent: u32) -> io::Result<()> {
    let watch = move || {
        while parent_id() == parent {
            thread::sleep(LOOK_EVERY);
        }
        process::exit(INTERRUPTED.into());
    };
    thread::Builder::new().name("parent".into()).spawn(watch)?;
    Ok(())
}
