//! One task of a cluster, from its flags to its exit code.

use crate::{
    cli::{Launched, TaskArgs},
    device,
    identity::{ClusterArgs, Identity},
    mnist::Mnist,
    parent,
    report::{Event, LogFormat, Report},
    rundir::RunDir,
    settings::Settings,
    source,
    stop::{INTERRUPTED, Stop},
    worker::{self, Halt, Worker},
};
use anyhow::{Context, bail};
use phalanx_cluster::{ClusterSpec, JobName, Task};
use phalanx_ps::{Farewell, Outcome, PsConfig, PsEvent};
use std::{net::TcpListener, os::fd::AsFd, process::ExitCode, time::Duration};

/// How long a task may take to obey a signal.
const GRACE: Duration = Duration::from_millis(700);

/// A task that has been told who it is.
struct Running {
    cluster: ClusterSpec,
    task: Task,
    report: Report,
    stop: Stop,
}

/// Runs one task.
pub fn run(args: TaskArgs, identity: Identity) -> anyhow::Result<ExitCode> {
    let stop = Stop::on_signals(GRACE)?;
    if let Some(pid) = args.launched.parent_pid {
        parent::end_with(pid)?;
    }
    let Identity { cluster, task } = identity;
    let (settings, report) = match &args.launched.config {
        Some(path) => (Settings::read(path)?, Report::of_task(LogFormat::Json)),
        None => {
            let report = Report::of_task(args.settings.log_format);
            report.note(format!("{task} of {cluster}"));
            (args.settings, report)
        }
    };
    let running = Running { cluster, task, report, stop };
    let result = match task.job {
        JobName::Ps => running.ps(&args.launched, &args.cluster),
        JobName::Worker => running.worker(&args.launched, settings),
        JobName::Evaluator => {
            running
                .report
                .note("the chief evaluates this run itself: a separate evaluator has nothing to do");
            Ok(ExitCode::SUCCESS)
        }
    };
    if let Err(error) = &result {
        running.report.event(Event::Failed { reason: crate::in_one_line(error) });
    }
    result.with_context(|| task.to_string())
}

impl Running {
    fn ps(&self, launched: &Launched, args: &ClusterArgs) -> anyhow::Result<ExitCode> {
        let listener = if launched.listen_on_stdin {
            TcpListener::from(std::io::stdin().as_fd().try_clone_to_owned()?)
        } else {
            phalanx_ps::listen(self.cluster.address(self.task)?, args.insecure)?
        };
        self.report.note(format!("listening on {}", listener.local_addr()?));
        let report = self.report.clone();
        let on_event = Box::new(move |event: PsEvent| match event {
            PsEvent::Refused { .. } | PsEvent::SetAside { .. } | PsEvent::Left { in_order: false, .. } => {
                report.warning(event.to_string());
            }
            _ => report.note(event.to_string()),
        });
        let (index, cluster, state_dir) = (self.task.index, self.cluster.clone(), args.state_dir());
        let config = PsConfig { index, cluster, state_dir, on_event };
        // Two threads: one worker's push is received while another's is applied.
        let network = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        match network.block_on(phalanx_ps::serve(listener, config, self.stop.receiver()))? {
            Outcome::Finished { updates } => {
                self.report.note(format!("done after {updates} updates"));
                Ok(ExitCode::SUCCESS)
            }
            Outcome::Unsaved { updates } => {
                bail!("the run was over after {updates} updates, but no worker came to save its result")
            }
            Outcome::Stopped { updates, kept_in } => {
                match kept_in {
                    Some(path) => self.report.note(format!(
                        "{updates} updates are kept in {}: start this ps again with the same flags, and it goes on",
                        path.display()
                    )),
                    None if updates > 0 => {
                        self.report.warning(format!("after {updates} updates, the parameters are gone"));
                    }
                    None => {}
                }
                Ok(self.interrupted())
            }
        }
    }

    fn worker(&self, launched: &Launched, settings: Settings) -> anyhow::Result<ExitCode> {
        device::set_threads(settings.threads.into())?;
        let run_dir = RunDir::new(settings.logdir());
        run_dir.check()?;
        if self.task.index == 0 {
            // The chief finds out at the start, not at the end, that it cannot save.
            let folder = run_dir.open()?;
            // Where `train` started this task, the settings are there already.
            if launched.config.is_none() {
                settings.write(&folder)?;
            }
        }
        let source = match source::find(&settings, &self.report, &self.stop) {
            Err(_) if self.stop.requested() => return Ok(self.interrupted()),
            source => source?,
        };
        let job = Mnist::new(settings.clone(), source.dataset, &source.folder)?;
        let worker = Worker {
            cluster: self.cluster.clone(),
            index: self.task.index,
            settings,
            dataset: source.to_string(),
            run_dir,
            report: self.report.clone(),
            stop: self.stop.clone(),
        };
        match worker::run(&job, &worker) {
            Ok(farewell) => {
                // The chief's summary ends with the same word.
                if farewell != Farewell::Saved {
                    self.report.note("done");
                }
                Ok(ExitCode::SUCCESS)
            }
            Err(Halt::TooLate { updates }) => {
                self.report.note(format!("nothing to do: the run is over after {updates} updates"));
                Ok(ExitCode::SUCCESS)
            }
            Err(Halt::Interrupted) => Ok(self.interrupted()),
            Err(Halt::Failed(error)) => Err(error),
        }
    }

    fn interrupted(&self) -> ExitCode {
        self.report.warning("interrupted");
        ExitCode::from(INTERRUPTED)
    }
}
