//! Finding the data, and fetching it if it is not there.

use crate::{
    data::{
        self,
        fetch::{Fetch, FetchError, Outcome, Progress},
    },
    report::Report,
    settings::{Dataset, Settings},
    stop::Stop,
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    fmt,
    path::{Path, PathBuf},
};

/// Where the examples come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Which they are.
    pub dataset: Dataset,
    /// Where their files are, if they have any.
    pub folder: PathBuf,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dataset {
            Dataset::Mnist => write!(f, "MNIST from {}", self.folder.display()),
            Dataset::Synthetic => write!(f, "synthetic digits (drawn by the program, not MNIST)"),
        }
    }
}

/// The data that the settings ask for; fetched if need be.
pub fn find(settings: &Settings, report: &Report, stop: &Stop) -> anyhow::Result<Source> {
    let folder = settings.data_dir.clone().unwrap_or_else(data::default_dir);
    let dataset = settings.dataset.unwrap_or(Dataset::Mnist);
    if dataset == Dataset::Mnist {
        fetch(&Fetch::default(), &folder, report, stop)?;
    }
    Ok(Source { dataset, folder })
}

/// Like [`find`], but where nobody asked for particular data and none can be had, digits are drawn.
pub fn find_or_draw(settings: &Settings, report: &Report, stop: &Stop) -> anyhow::Result<Source> {
    match find(settings, report, stop) {
        Err(error) if !settings.data_is_explicit() && no_source(&error) => {
            report.warning(format!("{error:#}"));
            report.warning("training on synthetic digits, drawn by the program, instead of MNIST");
            Ok(Source { dataset: Dataset::Synthetic, folder: PathBuf::new() })
        }
        result => result,
    }
}

// Nobody could give the data. A full disk, say, is another matter, and drawn digits do not help with it.
fn no_source(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(FetchError::NoSource { .. }))
}

/// Fetches MNIST into a folder unless it is there, and shows how far it has got.
pub fn fetch(fetch: &Fetch, folder: &Path, report: &Report, stop: &Stop) -> anyhow::Result<()> {
    // Hidden by itself where the output is not a terminal.
    let bar = ProgressBar::no_length();
    let style = ProgressStyle::with_template("{msg} {bar:32.cyan/blue} {bytes}/{total_bytes}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let progress = |progress: Progress<'_>| match progress {
        Progress::Receiving { file, bytes, total, .. } => {
            bar.set_message(file.to_owned());
            bar.set_length(total);
            bar.set_position(bytes);
        }
        _ => bar.suspend(|| report.note(format!("data: {progress}"))),
    };
    let outcome = fetch.ensure(folder, &progress, &|| stop.requested());
    bar.finish_and_clear();
    if let Outcome::Fetched { sources } = outcome? {
        report.note(format!("data: MNIST is now in {}, from {}", folder.display(), sources.join(" and ")));
    }
    Ok(())
}
