//! One task of a cluster, from its flags to its exit code.

use crate::{
    cli::TaskArgs,
    identity::Identity,
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
use phalanx_ps::{Outcome, PsConfig, PsEvent};
use std::{net::TcpListener, os::fd::AsFd, process::ExitCode, time::Duration};

/// How long a task may take to obey a signal.
const GRACE: Duration = Duration::from_millis(700);

/// Runs one task.
pub fn run(args: TaskArgs, identity: Identity) -> anyhow::Result<ExitCode> {
    let stop = Stop::on_signals(GRACE)?;
    if let Some(pid) = args.launched.parent_pid {
        parent::end_with(pid)?;
    }
    let settings = match &args.launched.config {
        Some(path) => Settings::read(path)?,
        None => args.settings.clone(),
    };
    let format = if args.launched.config.is_some() { LogFormat::Json } else { settings.log_format };
    let report = Report::of_task(format);
    let Identity { cluster, task } = identity;
    if args.launched.config.is_none() {
        report.note(format!("{task} of {cluster}"));
    }
    let result = match task.job {
        JobName::Ps => run_ps(&args, cluster, task, &report, stop),
        JobName::Worker => run_worker(settings, cluster, task, &report, stop),
        JobName::Evaluator => {
            report.note("the chief evaluates this run itself: a separate evaluator has nothing to do");
            Ok(ExitCode::SUCCESS)
        }
    };
    if let Err(error) = &result {
        report.event(Event::Failed { reason: crate::in_one_line(error) });
    }
    result.with_context(|| task.to_string())
}

fn run_ps(
    args: &TaskArgs,
    cluster: ClusterSpec,
    task: Task,
    report: &Report,
    stop: Stop,
) -> anyhow::Result<ExitCode> {
    let address = cluster.address(task)?.clone();
    let listener = if args.launched.listen_on_stdin {
        TcpListener::from(std::io::stdin().as_fd().try_clone_to_owned()?)
    } else {
        phalanx_ps::listen(&address, args.cluster.insecure)?
    };
    report.note(format!("listening on {}", listener.local_addr()?));
    let on_event = {
        let report = report.clone();
        Box::new(move |event: PsEvent| match event {
            PsEvent::Refused { .. } | PsEvent::Left { in_order: false, .. } => {
                report.warning(event.to_string())
            }
            _ => report.note(event.to_string()),
        })
    };
    let config = PsConfig { index: task.index, cluster, on_event };
    // Two threads: one worker's push is received while another's is applied.
    let network = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    match network.block_on(phalanx_ps::serve(listener, config, stop.receiver()))? {
        Outcome::Finished { updates } => {
            report.note(format!("done after {updates} updates"));
            Ok(ExitCode::SUCCESS)
        }
        Outcome::Unsaved { updates } => {
            bail!("the run was over after {updates} updates, but no worker came to save its result")
        }
        Outcome::Stopped { updates: 0 } => Ok(interrupted(report)),
        Outcome::Stopped { updates } => {
            report.warning(format!("interrupted after {updates} updates; the parameters are gone"));
            Ok(ExitCode::from(INTERRUPTED))
        }
    }
}

fn run_worker(
    settings: Settings,
    cluster: ClusterSpec,
    task: Task,
    report: &Report,
    stop: Stop,
) -> anyhow::Result<ExitCode> {
    let run_dir = RunDir::new(settings.logdir());
    run_dir.check()?;
    if task.index == 0 {
        // The chief finds out at the start, not at the end, that it cannot save.
        let folder = run_dir.open()?;
        settings.write(&folder)?;
    }
    let source = match source::find(&settings, report, &stop) {
        Err(_) if stop.requested() => return Ok(interrupted(report)),
        source => source?,
    };
    let job = Mnist::new(settings.clone(), source.dataset, &source.folder)?;
    let dataset = source.to_string();
    let worker =
        Worker { cluster, index: task.index, settings, dataset, run_dir, report: report.clone(), stop };
    match worker::run(&job, &worker) {
        Ok(()) => {
            report.note("done");
            Ok(ExitCode::SUCCESS)
        }
        Err(Halt::TooLate { updates }) => {
            report.note(format!("nothing to do: the run is over after {updates} updates"));
            Ok(ExitCode::SUCCESS)
        }
        Err(Halt::Interrupted) => Ok(interrupted(report)),
        Err(Halt::Failed(error)) => Err(error),
    }
}

fn interrupted(report: &Report) -> ExitCode {
    report.warning("interrupted");
    ExitCode::from(INTERRUPTED)
}
