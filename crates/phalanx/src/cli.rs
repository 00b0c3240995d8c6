//! The command line.

use crate::{identity::ClusterArgs, settings::Settings};
use clap::{Args, Parser, Subcommand};
use std::{ffi::OsString, path::PathBuf};

/// Distributed training for Burn: parameter servers and workers over gRPC.
///
/// `train` runs a whole cluster on this machine. Without a command this process is one task of a cluster,
/// by --job_name, --task_index, --ps_hosts and --worker_hosts, or by the environment variable TF_CONFIG.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true, max_term_width = 110)]
#[command(after_help = "Flags may be written with - or _: --task-index, --task_index.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// One task of a cluster.
    #[command(flatten)]
    pub task: TaskArgs,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train on a cluster of this machine: every task is a process of its own, and all end together.
    Train(Box<TrainArgs>),
    /// The data to train on.
    #[command(subcommand)]
    Data(DataCommand),
}

/// One task of a cluster.
#[derive(Args, Clone, Debug)]
#[command(rename_all = "snake_case")]
pub struct TaskArgs {
    /// Who this task is.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// What is trained.
    #[command(flatten)]
    pub settings: Settings,
    /// What `train` tells its tasks.
    #[command(flatten)]
    pub launched: Launched,
}

/// Flags by which `train` starts its tasks; not for people.
#[derive(Args, Clone, Debug)]
#[command(rename_all = "snake_case")]
pub struct Launched {
    /// Take the settings from this file instead of the flags.
    #[arg(long, hide = true)]
    pub config: Option<PathBuf>,
    /// End when the process with this id is no longer this one's parent.
    #[arg(long, hide = true)]
    pub parent_pid: Option<u32>,
    /// Standard input is the socket to listen on.
    #[arg(long, hide = true)]
    pub listen_on_stdin: bool,
}

/// A cluster on this machine.
#[derive(Args, Clone, Debug)]
#[command(rename_all = "snake_case")]
pub struct TrainArgs {
    /// Parameter servers.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    #[arg(help_heading = "Cluster")]
    pub ps: u16,
    /// Workers.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    #[arg(help_heading = "Cluster")]
    pub workers: u16,
    /// What is trained.
    #[command(flatten)]
    pub settings: Settings,
}

/// What to do with data.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Fetch the four files of MNIST, unless they are there.
    Fetch(FetchArgs),
    /// Say what is in a folder of idx files.
    Info(DataDir),
}

/// Where data is to be fetched from and to.
#[derive(Args, Clone, Debug)]
#[command(rename_all = "snake_case")]
pub struct FetchArgs {
    /// Where to.
    #[command(flatten)]
    pub to: DataDir,
    /// Fetch from this address and nowhere else: a folder of the .gz files, over https or http.
    #[arg(long, value_name = "URL")]
    pub mirror: Option<String>,
}

/// A folder of data.
#[derive(Args, Clone, Debug)]
#[command(rename_all = "snake_case")]
pub struct DataDir {
    /// The folder [default: MNIST_data, else the user's cache].
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

/// Flags are spelled with underscores here; people may use dashes too.
pub fn with_underscores(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let respell = |argument: OsString| match argument.to_str().and_then(|text| text.strip_prefix("--")) {
        Some(flag) if !flag.is_empty() => {
            let (name, value) = flag.split_at(flag.find('=').unwrap_or(flag.len()));
            format!("--{}{value}", name.replace('-', "_")).into()
        }
        _ => argument,
    };
    arguments.into_iter().map(respell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, error::ErrorKind};

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(with_underscores(line.split(' ').map(OsString::from)))
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_is_in_the_document_and_every_documented_flag_exists() {
        let document = include_str!("../../../docs/flags.md");
        let mut flags = std::collections::BTreeSet::new();
        let mut commands = vec![Cli::command()];
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands().cloned());
            for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
                let names = argument.get_long_and_visible_aliases().unwrap_or_default();
                flags.extend(names.into_iter().map(str::to_owned));
            }
        }
        for flag in &flags {
            assert!(document.contains(&format!("--{flag}")), "--{flag} is not documented");
        }
        for word in document.split(|c: char| !c.is_alphanumeric() && !matches!(c, '-' | '_')) {
            if let Some(flag) = word.strip_prefix("--").filter(|flag| !flag.is_empty()) {
                let known = flags.contains(&flag.replace('-', "_")) || ["help"].contains(&flag);
                assert!(known || flag.trim_matches('-').is_empty(), "there is no --{flag}");
            }
        }
    }

    #[test]
    fn every_spelling_of_the_seeds_is_understood() {
        for line in [
            "phalanx --ps_hosts=10.10.10.94:2222 --worker_hosts=10.10.10.191:2222 --job_name=ps --task_index=0",
            "phalanx --job-name=worker --ps-hosts=a:1 --worker-hosts=b:1,c:1 --task-index=1 --data-dir=MNIST-data \
             --hidden-units=100 --train-steps=10000 --batch-size=100 --learning-rate=0.01 --issync=0",
            "phalanx --workers=a:1,b:1 --parameter_servers=c:1 --job_name=worker --task_index=0",
            "phalanx --job_name=ps --task_id=0 --ps_hosts=tf1:2222 --worker_hosts=tf2:2222,tf3:2222,tf4:2222",
            "phalanx --ps_hosts=m:2223 --worker_hosts=m:2222,n:2222 --folder_no=2 --job_name=ps \
             --weights_name=30Aug_1kepcohs_2machines --epochs=1000 --task_index=0",
        ] {
            let cli = parse(line).unwrap();
            assert!(cli.command.is_none());
            cli.task.cluster.identify(None).unwrap();
        }
        let cli = parse("phalanx --data-dir=MNIST-data --job_name=ps").unwrap();
        assert_eq!(
            cli.task.settings.data_dir.unwrap(),
            PathBuf::from("MNIST-data"),
            "values keep their dashes"
        );
    }

    #[test]
    fn mistakes_are_answered_with_the_nearest_right_word() {
        for (line, words) in [
            ("phalanx train --worker 2", "'--workers'"),
            ("phalanx --task_indx 0", "'--task_index'"),
            ("phalanx train --model convet", "'convnet'"),
            ("phalanx --job_name wrker", "'worker'"),
            ("phalanx trian", "'train'"),
            ("phalanx train --dataset mnits", "'mnist'"),
            ("phalanx train --optimizer adan", "'adam'"),
        ] {
            let error = parse(line).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            let text = error.to_string();
            assert!(text.contains("similar") && text.contains(words), "{line}: {text}");
        }
        for (line, words) in [
            ("phalanx train --batch_size 0", "--batch_size"),
            ("phalanx train --learning_rate x", "--learning_rate"),
            ("phalanx train --lr_decay 0.9", "--lr_decay_steps"),
            ("phalanx train --dropout 1", "below 1"),
            ("phalanx train --epochs 1 --train_steps 2", "--train_steps"),
            ("phalanx train --ps 0", "--ps"),
            ("phalanx train --issync 1", "not there yet"),
            ("phalanx train --weights_name a/b", "name of a file"),
        ] {
            let error = parse(line).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(words), "{line}: {error}");
        }
        assert_eq!(parse("phalanx --help").unwrap_err().kind(), ErrorKind::DisplayHelp);
    }
}
