//! What a task tells people: one kind of event, shown in three ways.
//!
//! A task writes its events as text or as JSON lines. `phalanx train` reads the JSON lines of its tasks and
//! shows all of them together, on a terminal as a progress display.

mod plain;
mod terminal;

pub use terminal::Terminal;

use serde::{Deserialize, Serialize};
use std::{
    io::{IsTerminal, Write},
    path::PathBuf,
    sync::Arc,
};

/// Something worth telling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// What goes on, in a sentence.
    Note {
        /// The sentence.
        text: String,
    },
    /// What goes on and is not as it should be, in a sentence.
    Warning {
        /// The sentence.
        text: String,
    },
    /// A worker has made some steps.
    Step(StepReport),
    /// The run is over and its result is known.
    Done(Summary),
    /// This task cannot go on.
    Failed {
        /// Why.
        reason: String,
    },
}

/// How far a worker has got.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// The worker's task index.
    pub worker: usize,
    /// Its own steps.
    pub local_step: u64,
    /// The steps of all workers together.
    pub global_step: u64,
    /// The global step at which the run is over.
    pub train_steps: u64,
    /// From 1.
    pub epoch: u64,
    /// From 1.
    pub batch: u64,
    /// Batches in an epoch.
    pub batches: u64,
    /// The loss on the last batch.
    #[serde(deserialize_with = "maybe_not_a_number")]
    pub cost: f32,
    /// Milliseconds for each of this worker's steps since its last report.
    pub average_ms: f64,
    /// This worker's examples per second since its last report.
    pub examples_per_s: f64,
    /// Due by `--log_every`; the others only keep a display alive.
    pub milestone: bool,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// What it was trained on.
    pub dataset: String,
    /// The share of test examples it gets right, from 0 to 1.
    pub accuracy: f64,
    /// The mean cross-entropy on the test examples.
    #[serde(deserialize_with = "maybe_not_a_number")]
    pub cross_entropy: f64,
    /// Updates.
    pub global_step: u64,
    /// From the first step to the last.
    pub seconds: f64,
    /// The loss on the last batch.
    #[serde(deserialize_with = "maybe_not_a_number")]
    pub final_cost: f32,
    /// Everything that was written.
    pub saved: Vec<PathBuf>,
}

/// JSON has no word for what is not a number, and writes `null`.
fn maybe_not_a_number<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + From<f32>,
{
    Ok(Option::deserialize(from)?.unwrap_or_else(|| f32::NAN.into()))
}

/// How to show events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// A progress display on a terminal, plain lines elsewhere.
    #[default]
    Auto,
    /// One line of text for each event.
    Plain,
    /// One JSON object for each event.
    Json,
}

/// Where events go; cheap to clone.
#[derive(Clone)]
pub struct Report(Arc<dyn Fn(&Event) + Send + Sync>);

impl Report {
    /// Shows the events of one task.
    pub fn of_task(format: LogFormat) -> Self {
        match format {
            LogFormat::Auto | LogFormat::Plain => Self::new(|event| plain::print(None, event)),
            LogFormat::Json => {
                Self::new(|event| print_line(&serde_json::to_string(event).unwrap_or_default()))
            }
        }
    }

    /// Shows events in some other way.
    pub fn new(show: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(show))
    }

    /// Tells of an event.
    pub fn event(&self, event: Event) {
        (self.0)(&event);
    }

    /// Tells what goes on.
    pub fn note(&self, text: impl Into<String>) {
        self.event(Event::Note { text: text.into() });
    }

    /// Tells what is not as it should be.
    pub fn warning(&self, text: impl Into<String>) {
        self.event(Event::Warning { text: text.into() });
    }
}

/// Shows the events of a whole cluster, each with the name of its task.
pub trait ClusterReport {
    /// Tells of an event of one task.
    fn event(&mut self, task: &str, event: &Event);
}

/// The way to show a cluster that fits `format` and where the output goes.
pub fn of_cluster(format: LogFormat, workers: usize) -> Box<dyn ClusterReport> {
    match format {
        LogFormat::Auto if std::io::stdout().is_terminal() => Box::new(Terminal::new(workers)),
        LogFormat::Auto | LogFormat::Plain => Box::new(plain::Lines),
        LogFormat::Json => Box::new(JsonLines),
    }
}

struct JsonLines;

impl ClusterReport for JsonLines {
    fn event(&mut self, task: &str, event: &Event) {
        #[derive(Serialize)]
        struct Tagged<'a> {
            task: &'a str,
            #[serde(flatten)]
            event: &'a Event,
        }
        print_line(&serde_json::to_string(&Tagged { task, event }).unwrap_or_default());
    }
}

/// Prints a line. That nobody reads it any more is no reason to fail.
pub fn print_line(line: &str) {
    drop(writeln!(std::io::stdout().lock(), "{line}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_is_not_a_number_is_still_a_result() {
        let summary = Summary {
            dataset: "MNIST".into(),
            accuracy: 0.1,
            cross_entropy: f64::INFINITY,
            global_step: 1,
            seconds: 1.0,
            final_cost: f32::NAN,
            saved: vec![],
        };
        let json = serde_json::to_string(&Event::Done(summary)).unwrap();
        let Event::Done(summary) = serde_json::from_str(&json).unwrap() else { panic!("{json}") };
        assert!(summary.final_cost.is_nan() && summary.cross_entropy.is_nan());
    }
}
