//! The flags of a job: what is trained, on what, for how long, and where the results go.

use crate::{mnist::models::Activation, optimizer_args::OptimizerArgs, report::LogFormat};
use anyhow::Context;
use phalanx_cluster::Placement;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

const CONFIG: &str = "config.json";

/// Everything about a job but the cluster it runs on.
#[derive(clap::Args, Clone, Debug, Serialize, Deserialize)]
#[command(rename_all = "snake_case")]
pub struct Settings {
    /// The model to train.
    #[arg(long, value_enum, default_value_t = ModelKind::Mlp, help_heading = "Model")]
    pub model: ModelKind,
    /// Units of the mlp's hidden layer.
    #[arg(long, value_name = "N", default_value_t = 100, help_heading = "Model")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub hidden_units: u32,
    /// What follows the mlp's hidden layer.
    #[arg(long, value_enum, default_value_t = Activation::Relu, help_heading = "Model")]
    pub activation: Activation,
    /// The share of the convnet's hidden units that a training step leaves out.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = share, help_heading = "Model")]
    pub dropout: f64,

    /// What the ps do with gradients.
    #[command(flatten)]
    #[serde(flatten)]
    pub optimizer: OptimizerArgs,

    /// Examples in a batch.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = at_least_1(), help_heading = "Work")]
    pub batch_size: u32,
    /// Updates, of all workers together, after which the run is over.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Work")]
    pub train_steps: Option<u64>,
    /// Passes through the data after which the run is over [default: 10 for softmax, 20 for mlp, 2 for convnet].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Work")]
    #[arg(conflicts_with = "train_steps")]
    pub epochs: Option<u64>,
    /// What initial values and the order of the examples are drawn from.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Work")]
    pub seed: u64,
    /// Whether updates are synchronous: only 0, each worker's own, is there yet.
    #[arg(long, value_name = "0|1", default_value_t = 0, value_parser = asynchronous, help_heading = "Work")]
    pub issync: u8,
    /// Threads that each worker computes with.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Work")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// How the parameters are spread over several ps.
    #[arg(long, value_enum, default_value_t = PlacementKind::Balanced, help_heading = "Work")]
    pub placement: PlacementKind,

    /// Folder of the four MNIST idx files, plain or gzipped [default: MNIST_data, else the user's cache].
    #[arg(long, value_name = "DIR", help_heading = "Data")]
    pub data_dir: Option<PathBuf>,
    /// What to train on [default: mnist, fetched if it is not there].
    #[arg(long, value_enum, help_heading = "Data")]
    pub dataset: Option<Dataset>,
    /// How the workers divide the data.
    #[arg(long, value_enum, default_value_t = Sharding::Shared, help_heading = "Data")]
    pub sharding: Sharding,

    /// Folder for everything that is written [default: the next free runs/N].
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub logdir: Option<PathBuf>,
    /// Short for --logdir runs/N.
    #[arg(long, value_name = "N", conflicts_with = "logdir", help_heading = "Output")]
    pub folder_no: Option<u64>,
    /// Also write the last layer's weights to NAME.csv in the logdir.
    #[arg(long, value_name = "NAME", value_parser = file_name, help_heading = "Output")]
    pub weights_name: Option<String>,
    /// Steps of a worker between two lines of its log.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = at_least_1(), help_heading = "Output")]
    pub log_every: u32,
    /// How progress is shown.
    #[arg(long, value_enum, default_value_t = LogFormat::Auto, help_heading = "Output")]
    pub log_format: LogFormat,
}

/// The models of the seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelKind {
    /// One linear layer.
    Softmax,
    /// One hidden layer.
    Mlp,
    /// Two convolutions, a hidden layer of 1024 with dropout.
    Convnet,
}

/// Where the examples come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dataset {
    /// Handwritten digits.
    Mnist,
    /// Digits drawn by the program.
    Synthetic,
}

/// How the workers divide the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharding {
    /// In each epoch, every example goes to one worker.
    Shared,
    /// In each epoch, every worker goes through all examples, in an order of its own.
    Replicated,
}

/// How the parameters are spread over several ps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlacementKind {
    /// Equal shares of all parameters.
    Balanced,
    /// Whole variables in turn.
    RoundRobin,
}

impl Settings {
    /// The updates of a run with this many workers, for data of `batches` batches.
    pub fn total_steps(&self, batches: u64, workers: usize) -> u64 {
        let epochs = self.epochs.unwrap_or(match self.model {
            ModelKind::Softmax => 10,
            ModelKind::Mlp => 20,
            ModelKind::Convnet => 2,
        });
        let passes = match self.sharding {
            Sharding::Shared => epochs,
            Sharding::Replicated => epochs.saturating_mul(workers as u64),
        };
        self.train_steps.unwrap_or(passes.saturating_mul(batches))
    }

    /// The folder asked for, if one was.
    pub fn logdir(&self) -> Option<PathBuf> {
        self.logdir.clone().or_else(|| self.folder_no.map(|number| PathBuf::from(format!("runs/{number}"))))
    }

    /// Writes the settings to a folder, so that the run can be repeated.
    pub fn write(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let path = folder.join(CONFIG);
        // Whole or not at all, and as open as the user's umask allows.
        let write = || -> anyhow::Result<()> {
            let permissions = Permissions::from_mode(0o666);
            let mut file = tempfile::Builder::new().permissions(permissions).tempfile_in(folder)?;
            serde_json::to_writer_pretty(&mut file, self)?;
            file.persist(&path)?;
            Ok(())
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Reads what [`Settings::write`] wrote.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} does not hold settings", path.display()))
    }

    /// Whether the user said anything about the data.
    pub fn data_is_explicit(&self) -> bool {
        self.data_dir.is_some() || self.dataset.is_some()
    }
}

impl From<PlacementKind> for Placement {
    fn from(kind: PlacementKind) -> Self {
        match kind {
            PlacementKind::Balanced => Self::Balanced,
            PlacementKind::RoundRobin => Self::RoundRobin,
        }
    }
}

fn at_least_1() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..)
}

fn share(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_string())?;
    if (0.0..1.0).contains(&number) { Ok(number) } else { Err("expected a number from 0 to below 1".into()) }
}

fn asynchronous(text: &str) -> Result<u8, String> {
    match text {
        "0" => Ok(0),
        "1" => Err("synchronous updates are not there yet; --issync=0 applies each worker's own".into()),
        _ => Err("expected 0 or 1".into()),
    }
}

fn file_name(text: &str) -> Result<String, String> {
    let plain =
        (1..=200).contains(&text.len()) && !text.starts_with('.') && !text.contains(['/', '\\', '\0']);
    if plain { Ok(text.into()) } else { Err("expected the name of a file, without a folder".into()) }
}
