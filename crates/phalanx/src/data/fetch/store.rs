//! The last step of every fetch: bytes from anywhere become a file, or nothing.
//!
//! A file is written under a temporary name in its folder, checked for length and SHA-256 on the way,
//! synced, and only then given its name. Readers see the whole file or none.

use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};
use tempfile::{Builder, NamedTempFile};

use super::{FetchError, Progress};
use crate::data::FILES;

/// How the names of unfinished files begin.
pub(super) const SCRATCH_PREFIX: &str = ".fetching-";

/// A file whose content is known in advance.
#[derive(Debug, Clone)]
pub(super) struct KnownFile {
    /// Its plain name.
    pub name: &'static str,
    /// Its length, decompressed.
    pub length: u64,
    /// The SHA-256 of its content, decompressed, in lower-case hexadecimal.
    pub sha256: String,
}

/// The four files of MNIST.
pub(super) fn mnist() -> [KnownFile; 4] {
    let [train_images, train_labels, test_images, test_labels] = FILES;
    let known = |name, length, sha256: &str| KnownFile { name, length, sha256: sha256.to_owned() };
    [
        known(train_images, 47_040_016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        known(train_labels, 60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        known(test_images, 7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        known(test_labels, 10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    ]
}

/// What ends a delivery early.
pub(super) enum Setback {
    /// The source is at fault, for this reason: another one may do.
    Source(String),
    /// This machine is at fault: no other source can help.
    Stop(FetchError),
}

/// Where delivered files are put, and who delivers them.
pub(super) struct Shelf<'a> {
    /// The data folder.
    pub dir: &'a Path,
    /// The name of the source.
    pub source: &'a str,
    /// Who is told how it goes.
    pub progress: &'a dyn Fn(Progress<'_>),
    /// Whether there is no more use for what is delivered.
    pub stopped: &'a dyn Fn() -> bool,
}

impl Shelf<'_> {
    /// Stores the plain bytes of `file`, if they are the right ones.
    pub fn store(&self, file: &KnownFile, bytes: &mut dyn Read) -> Result<(), Setback> {
        let stop = |error| Setback::Stop(write_error(self.dir, file, error));
        let mut temporary = temporary(self.dir).map_err(stop)?;
        receive(file, bytes, temporary.as_file_mut(), |bytes| {
            let (source, total) = (self.source, file.length);
            (self.progress)(Progress::Receiving { source, file: file.name, bytes, total });
        })
        .map_err(|error| match error {
            ReceiveError::Write(error) => stop(error),
            fault => Setback::Source(format!("{}: {fault}", file.name)),
        })?;
        temporary.as_file().sync_all().map_err(stop)?;
        temporary.persist(self.dir.join(file.name)).map_err(|error| stop(error.error))?;
        Ok(())
    }
}

/// A file that is gone again when dropped, unless it is given a name.
fn temporary(dir: &Path) -> io::Result<NamedTempFile> {
    let mut builder = Builder::new();
    builder.prefix(SCRATCH_PREFIX);
    // As open as the user's umask allows: temporary files are private, but the data is for everyone.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(dir)
}

fn write_error(dir: &Path, file: &KnownFile, source: io::Error) -> FetchError {
    let (dir, name) = (dir.to_owned(), file.name);
    match source.kind() {
        ErrorKind::StorageFull => FetchError::DiskFull { dir, file: name, needed: file.length },
        _ => FetchError::Write { dir, file: name, source },
    }
}

/// Why bytes did not become a file.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    #[error("broke off after {received} bytes ({source})")]
    Read { received: u64, source: io::Error },
    #[error("has only {found} bytes instead of {expected}")]
    Shorter { expected: u64, found: u64 },
    #[error("has more than the expected {expected} bytes")]
    Longer { expected: u64 },
    #[error("has SHA-256 {found} instead of {expected}")]
    WrongContent { expected: String, found: String },
    #[error("cannot be written ({0})")]
    Write(io::Error),
}

/// Copies the bytes of `file` from `source` to `sink` and fails unless they are exactly the known ones.
///
/// Never writes more than the known length. Errors of the two ends are told apart: what the source does
/// wrong another source may do right, but the sink is always the same.
pub(super) fn receive(
    file: &KnownFile,
    source: &mut dyn Read,
    sink: &mut dyn Write,
    mut received_so_far: impl FnMut(u64),
) -> Result<(), ReceiveError> {
    let expected = file.length;
    let mut hash = Sha256::new();
    let mut received = 0;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = match source.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(source) => return Err(ReceiveError::Read { received, source }),
        };
        let bytes = buffer.get(..count).unwrap_or_default();
        received += bytes.len() as u64;
        if received > expected {
            return Err(ReceiveError::Longer { expected });
        }
        hash.update(bytes);
        sink.write_all(bytes).map_err(ReceiveError::Write)?;
        received_so_far(received);
    }
    sink.flush().map_err(ReceiveError::Write)?;
    if received < expected {
        return Err(ReceiveError::Shorter { expected, found: received });
    }
    let found = format!("{:x}", hash.finalize());
    if found != file.sha256 {
        return Err(ReceiveError::WrongContent { expected: file.sha256.clone(), found });
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The description of a file with this content.
    pub fn known(name: &'static str, content: &[u8]) -> KnownFile {
        KnownFile { name, length: content.len() as u64, sha256: format!("{:x}", Sha256::digest(content)) }
    }

    #[test]
    fn the_right_bytes_arrive_whole_and_are_counted() {
        let content = vec![7; 200_000];
        let (mut sink, mut counts) = (Vec::new(), Vec::new());
        receive(&known("f", &content), &mut &content[..], &mut sink, |n| counts.push(n)).unwrap();
        assert_eq!(sink, content);
        assert!(counts.is_sorted() && counts.last() == Some(&200_000), "{counts:?}");
    }

    #[test]
    fn no_more_than_the_known_length_is_ever_written() {
        let mut sink = Vec::new();
        let error = receive(&known("f", b"four"), &mut io::repeat(1), &mut sink, |_| {}).unwrap_err();
        assert_eq!(error.to_string(), "has more than the expected 4 bytes");
        assert!(sink.len() <= 4);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_told_as_such_and_names_the_folder() {
        let file = known("train-labels-idx1-ubyte", b"content");
        let mut sink = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let error = receive(&file, &mut &b"content"[..], &mut sink, |_| {}).unwrap_err();
        let ReceiveError::Write(error) = error else { panic!("{error}") };
        let error = write_error(Path::new("some/folder"), &file, error);
        assert!(matches!(error, FetchError::DiskFull { needed: 7, .. }), "{error:?}");
        let message = "the disk that holds some/folder is full: train-labels-idx1-ubyte needs 7 bytes";
        assert_eq!(error.to_string(), message);
    }
}
