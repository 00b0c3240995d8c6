//! `train`: a whole cluster on this machine, every task a process of its own.

use crate::{
    cli::TrainArgs,
    report::{self, ClusterReport, Event, Report},
    rundir::RunDir,
    settings::Settings,
    source,
    stop::{INTERRUPTED, Stop},
};
use anyhow::Context;
use phalanx_cluster::{JobName, Task};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    collections::VecDeque,
    env,
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::Path,
    process::{self, Child, Command, ExitCode, ExitStatus, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

/// How long tasks may take to end in order, before they are made to.
const GRACE: Duration = Duration::from_millis(600);
/// How long to look for other causes once a task has failed, so that the first can be named first.
const OTHER_CAUSES: Duration = Duration::from_millis(300);
/// How often signals and ended tasks are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The same, when the tasks are about to end.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);
/// How long the outputs of tasks that have ended may take to close.
const CLOSING: Duration = Duration::from_secs(5);
/// Lines of a task's error output that are kept.
const LAST_LINES: usize = 10;

/// Runs a cluster from its start to its end.
pub fn train(args: TrainArgs) -> anyhow::Result<ExitCode> {
    let stop = Stop::on_signals(GRACE + OTHER_CAUSES)?;
    let format = args.settings.log_format;
    let plain = Report::of_task(format);
    let source = source::find_or_draw(&args.settings, &plain, &stop);
    if stop.requested() {
        plain.warning("interrupted");
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let source = source?;
    let run_dir = RunDir::new(args.settings.logdir()).open()?;
    let settings = Settings {
        dataset: Some(source.dataset),
        data_dir: Some(source.folder),
        logdir: Some(run_dir.clone()),
        folder_no: None,
        ..args.settings
    };
    let config = settings.write(&run_dir)?;
    plain.note(format!(
        "training on {} ps and {} workers of this machine, results in {}",
        args.ps,
        args.workers,
        run_dir.display()
    ));
    let mut cluster = Cluster::start(args.ps.into(), args.workers.into(), &config)?;
    let mut report = report::of_cluster(format, args.workers.into());
    let ending = cluster.watch(&stop, &mut *report);
    cluster.stop();
    drop(report);
    match ending {
        Ending::AllDone => Ok(ExitCode::SUCCESS),
        Ending::Interrupted => {
            plain.warning("interrupted: every task was stopped");
            Ok(ExitCode::from(INTERRUPTED))
        }
        Ending::Failed(causes) => Err(anyhow::anyhow!(causes.join("\n"))),
    }
}

/// The tasks, as child processes.
struct Cluster {
    tasks: Vec<Launched>,
    messages: mpsc::Receiver<(usize, Message)>,
    // What the chief said of the whole run.
    result: Option<(String, Event)>,
}

struct Launched {
    name: String,
    job: JobName,
    child: Child,
    ended: Option<ExitStatus>,
    reason: Option<String>,
    last_lines: VecDeque<String>,
}

/// What the output of a task brings.
enum Message {
    Event(Box<Event>),
    /// A line that is not an event: from a panic, for example.
    Line(String),
}

enum Ending {
    AllDone,
    Interrupted,
    /// Each with its cause, the first cause first.
    Failed(Vec<String>),
}

impl Cluster {
    fn start(ps: usize, workers: usize, config: &Path) -> anyhow::Result<Self> {
        // The sockets are bound here and handed down, so that nobody else can take a port in between.
        let bind = |_| TcpListener::bind("127.0.0.1:0");
        let sockets = (0..ps + workers).map(bind).collect::<Result<Vec<_>, _>>();
        let mut sockets = sockets.context("cannot listen on loopback")?;
        let addresses = sockets.iter().map(|socket| Ok(socket.local_addr()?.to_string()));
        let addresses = addresses.collect::<anyhow::Result<Vec<_>>>()?;
        let (ps_hosts, worker_hosts) = addresses.split_at(ps);
        let (ps_hosts, worker_hosts) = (ps_hosts.join(","), worker_hosts.join(","));
        sockets.truncate(ps);

        let (to_us, messages) = mpsc::channel();
        let mut cluster = Self { tasks: Vec::new(), messages, result: None };
        let sockets = sockets.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
        for (task, socket) in (0..ps).map(Task::ps).chain((0..workers).map(Task::worker)).zip(sockets) {
            let mut command = Command::new(env::current_exe().context("cannot find this program")?);
            command
                .args([format!("--job_name={}", task.job), format!("--task_index={}", task.index)])
                .args([format!("--ps_hosts={ps_hosts}"), format!("--worker_hosts={worker_hosts}")])
                .arg(format!("--parent_pid={}", process::id()))
                // If a ps dies here, so does the run.
                .arg("--state_dir=off")
                .arg("--config")
                .arg(config)
                .env_remove("TF_CONFIG")
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                // Ctrl-C on the terminal reaches this process alone, which then stops the others in order.
                .process_group(0);
            match socket {
                Some(socket) => command.arg("--listen_on_stdin").stdin(OwnedFd::from(socket)),
                None => command.stdin(Stdio::null()),
            };
            let child = command.spawn().with_context(|| format!("cannot start {task}"))?;
            cluster.add(task, child, &to_us)?;
        }
        Ok(cluster)
    }

    fn add(
        &mut self,
        task: Task,
        mut child: Child,
        to_us: &mpsc::Sender<(usize, Message)>,
    ) -> anyhow::Result<()> {
        let index = self.tasks.len();
        let outputs = [child.stdout.take().map(boxed), child.stderr.take().map(boxed)];
        self.tasks.push(Launched {
            name: task.to_string(),
            job: task.job,
            child,
            ended: None,
            reason: None,
            last_lines: VecDeque::new(),
        });
        for output in outputs.into_iter().flatten() {
            let to_us = to_us.clone();
            thread::Builder::new().name(format!("output of {task}")).spawn(move || {
                for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                    let message = match serde_json::from_slice(&line) {
                        Ok(event) => Message::Event(Box::new(event)),
                        Err(_) => Message::Line(String::from_utf8_lossy(&line).into_owned()),
                    };
                    if to_us.send((index, message)).is_err() {
                        return;
                    }
                }
            })?;
        }
        Ok(())
    }

    /// Shows what the tasks tell, until all are done or one cannot go on.
    fn watch(&mut self, stop: &Stop, report: &mut dyn ClusterReport) -> Ending {
        loop {
            if stop.requested() {
                return Ending::Interrupted;
            }
            self.read_for(LOOK_EVERY, report);
            let failed = self.look_for_ended().into_iter().filter(|index| !self.succeeded(*index));
            let mut failed: Vec<usize> = failed.collect();
            if !failed.is_empty() {
                self.read_for(OTHER_CAUSES, report);
                failed.extend(self.look_for_ended().into_iter().filter(|index| !self.succeeded(*index)));
                return Ending::Failed(failed.iter().filter_map(|index| self.cause(*index)).collect());
            }
            if self.tasks.iter().all(|task| task.ended.is_some()) {
                // All that they told is here once their outputs are closed.
                self.read_for(CLOSING, report);
                let Some((task, done)) = self.result.take() else {
                    return Ending::Failed(vec!["every task is done, but none told the result".into()]);
                };
                report.event(&task, &done);
                return Ending::AllDone;
            }
        }
    }

    /// Reads what the tasks tell, for as long as given.
    fn read_for(&mut self, time: Duration, report: &mut dyn ClusterReport) {
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let (index, message) = match self.messages.recv_timeout(left) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => return,
                // Every output is closed: what is left is for the tasks to end.
                Err(RecvTimeoutError::Disconnected) => return thread::sleep(BETWEEN_LOOKS),
            };
            let Some(task) = self.tasks.get_mut(index) else { continue };
            match message {
                // The result comes last, when there is nothing else to tell.
                Message::Event(event) if matches!(*event, Event::Done(_)) => {
                    self.result = Some((task.name.clone(), *event));
                }
                Message::Event(event) => {
                    if let Event::Failed { reason } = &*event {
                        task.reason = Some(reason.clone());
                    }
                    report.event(&task.name, &event);
                }
                Message::Line(line) => {
                    task.last_lines.push_back(line);
                    if task.last_lines.len() > LAST_LINES {
                        task.last_lines.pop_front();
                    }
                }
            }
        }
    }

    /// The tasks that have ended since the last look.
    fn look_for_ended(&mut self) -> Vec<usize> {
        let mut ended = Vec::new();
        for (index, task) in self.tasks.iter_mut().enumerate() {
            if task.ended.is_none()
                && let Ok(Some(status)) = task.child.try_wait()
            {
                task.ended = Some(status);
                ended.push(index);
            }
        }
        ended
    }

    fn succeeded(&self, index: usize) -> bool {
        self.tasks.get(index).and_then(|task| task.ended).is_some_and(|status| status.success())
    }

    /// Why a task ended as it did: its own words, its exit code, and its last lines.
    fn cause(&self, index: usize) -> Option<String> {
        let Launched { name, ended, reason, last_lines, .. } = self.tasks.get(index)?;
        let status = ended.map(|status| status.to_string()).unwrap_or_default();
        let mut text = format!("{name} ended with {status}");
        match reason {
            Some(reason) => text.push_str(&format!(": {reason}")),
            None => last_lines.iter().for_each(|line| text.push_str(&format!("\n  {name}| {line}"))),
        }
        Some(text)
    }

    /// Ends what still runs: first the workers, who say goodbye to the ps, then the ps.
    fn stop(&mut self) {
        let deadline = Instant::now() + GRACE;
        for job in [JobName::Worker, JobName::Ps] {
            let running = |task: &&mut Launched| task.job == job && task.ended.is_none();
            for task in self.tasks.iter_mut().filter(running) {
                if let Some(pid) = i32::try_from(task.child.id()).ok().and_then(Pid::from_raw) {
                    // A task that ended just now is no error.
                    let _ = kill_process(pid, Signal::TERM);
                }
            }
            while self.tasks.iter().any(|task| task.job == job && task.ended.is_none())
                && Instant::now() < deadline
            {
                thread::sleep(BETWEEN_LOOKS);
                self.look_for_ended();
            }
        }
        for task in self.tasks.iter_mut().filter(|task| task.ended.is_none()) {
            drop(task.child.kill());
            task.ended = task.child.wait().ok();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop();
    }
}

fn boxed<R: Read + Send + 'static>(output: R) -> Box<dyn Read + Send> {
    Box::new(output)
}
