//! Real processes on loopback, for tests. Everything started here is ended by its own id.

#![allow(dead_code)] // Each test binary uses its own part of this.

use rustix::process::{Pid, Signal, kill_process};
use socket2::{Domain, Socket, Type};
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Far longer than anything takes even on a loaded machine: a test that gets here hangs.
const HANGS: Duration = Duration::from_secs(120);

/// The program under test.
pub fn phalanx() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    command.env_remove("TF_CONFIG").stdin(Stdio::null());
    command
}

/// A port of loopback that nobody else can take while this lives, and that nobody listens on: it is bound but
/// not listening, so that a ps of the test may bind it too.
pub struct Port {
    socket: Socket,
}

impl Port {
    pub fn reserve() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        Self { socket }
    }

    pub fn listen(&self) {
        self.socket.listen(1).unwrap();
    }

    pub fn address(&self) -> String {
        self.socket.local_addr().unwrap().as_socket().unwrap().to_string()
    }
}

/// A cluster's addresses.
pub struct Hosts {
    ports: Vec<Port>,
    ps: usize,
    state: TempDir,
}

impl Hosts {
    pub fn new(ps: usize, workers: usize) -> Self {
        let ports = (0..ps + workers).map(|_| Port::reserve()).collect();
        Self { ports, ps, state: tempfile::tempdir().unwrap() }
    }

    pub fn ps(&self) -> String {
        join(&self.ports[..self.ps])
    }

    pub fn workers(&self) -> String {
        join(&self.ports[self.ps..])
    }

    /// Where the ps of this cluster keep their state.
    pub fn state_dir(&self) -> &Path {
        self.state.path()
    }

    /// One task, by the flags that the seeds use.
    pub fn task(&self, job: &str, index: usize) -> Command {
        let mut command = phalanx();
        command.args([
            format!("--ps_hosts={}", self.ps()),
            format!("--worker_hosts={}", self.workers()),
            format!("--job_name={job}"),
            format!("--task_index={index}"),
        ]);
        command.arg(format!("--state_dir={}", self.state_dir().display()));
        command
    }

    /// A worker that trains on `data` for `steps` steps and writes into its own part of `data`.
    pub fn worker(&self, index: usize, data: &Data, steps: u64) -> Command {
        let mut command = self.task("worker", index);
        command.args(data.flags(&format!("run-{index}"))).arg(format!("--train_steps={steps}"));
        command
    }
}

fn join(ports: &[Port]) -> String {
    ports.iter().map(Port::address).collect::<Vec<_>>().join(",")
}

/// A small data set that is easy to learn, in a temporary folder with room for results.
pub struct Data {
    folder: TempDir,
}

impl Data {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, count) in [("train", 1200usize), ("t10k", 300)] {
            let label = |index: usize| (index * 7 % 10) as u8;
            let mut images = header(&[0x803, count as u32, 28, 28]);
            for index in 0..count {
                // A bright band whose height tells the digit, and some dirt.
                let band = usize::from(label(index)) * 2 + 3;
                let pixel = |at: usize| {
                    let dirt = (index * 31 + at * 17) % 61;
                    if (band..band + 3).contains(&(at / 28)) { 190 + dirt as u8 } else { dirt as u8 }
                };
                images.extend((0..784).map(pixel));
            }
            let mut labels = header(&[0x801, count as u32]);
            labels.extend((0..count).map(label));
            fs::write(folder.path().join(format!("{name}-images-idx3-ubyte")), images).unwrap();
            fs::write(folder.path().join(format!("{name}-labels-idx1-ubyte")), labels).unwrap();
        }
        Self { folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn results(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub fn flags(&self, results: &str) -> [String; 2] {
        [
            format!("--data_dir={}", self.path().display()),
            format!("--logdir={}", self.results(results).display()),
        ]
    }

    /// A whole local cluster on this data.
    pub fn train(&self, flags: &[&str]) -> Command {
        let mut command = phalanx();
        command.arg("train").args(self.flags("run")).args(flags);
        command
    }
}

fn header(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A process that runs, and what it has printed so far.
pub struct Running {
    pub child: Child,
    output: Arc<(Mutex<Output>, Condvar)>,
}

#[derive(Default)]
struct Output {
    text: String,
    open: usize,
}

/// A process that has ended, and what it printed.
pub struct Ended {
    pub status: ExitStatus,
    pub output: String,
}

pub fn start(mut command: Command) -> Running {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = Arc::new((Mutex::new(Output { text: String::new(), open: 2 }), Condvar::new()));
    let read = |from: Box<dyn Read + Send>| {
        let output = Arc::clone(&output);
        thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                output.0.lock().unwrap().text.push_str(&format!("{line}\n"));
                output.1.notify_all();
            }
            output.0.lock().unwrap().open -= 1;
            output.1.notify_all();
        });
    };
    read(Box::new(child.stdout.take().unwrap()));
    read(Box::new(child.stderr.take().unwrap()));
    Running { child, output }
}

pub fn run(command: Command) -> Ended {
    start(command).wait()
}

impl Running {
    /// Waits until the process has printed these words.
    pub fn wait_for(&self, words: &str) -> String {
        self.wait_until(&format!("{words:?}"), |output| output.text.contains(words))
    }

    fn wait_until(&self, what: &str, condition: impl Fn(&Output) -> bool) -> String {
        let (output, changed) = &*self.output;
        let waiting = changed.wait_timeout_while(output.lock().unwrap(), HANGS, |output| !condition(output));
        let (output, timeout) = waiting.unwrap();
        assert!(!timeout.timed_out(), "waited in vain for {what} in:\n{}", output.text);
        output.text.clone()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }

    /// Waits until the process has ended.
    pub fn wait(mut self) -> Ended {
        let output = self.wait_until("the end", |output| output.open == 0);
        Ended { status: self.child.wait().unwrap(), output }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Ended {
    #[track_caller]
    pub fn assert_code(&self, code: i32) -> &Self {
        assert_eq!(self.status.code(), Some(code), "{:?} {}", self.status.signal(), self.output);
        self
    }

    #[track_caller]
    pub fn assert_says(&self, words: &str) -> &Self {
        assert!(self.output.contains(words), "no {words:?} in:\n{}", self.output);
        self
    }

    /// The test accuracy that it printed.
    #[track_caller]
    pub fn accuracy(&self) -> f64 {
        let line = self.output.lines().find_map(|line| line.strip_prefix("Test-Accuracy: "));
        let line = line.unwrap_or_else(|| panic!("no accuracy in:\n{}", self.output));
        line.split(' ').next().unwrap().parse().unwrap()
    }
}

/// The children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let children = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("children")).ok());
    children.collect::<String>().split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Waits until none of these processes runs any more.
pub fn wait_until_gone(pids: &[u32]) {
    let running = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // One that has ended may still be listed, as a zombie.
        !status.is_empty() && !status.contains(") Z ")
    };
    let start = Instant::now();
    while pids.iter().any(running) {
        assert!(start.elapsed() < HANGS, "some of {pids:?} still run");
        thread::sleep(Duration::from_millis(20));
    }
}
