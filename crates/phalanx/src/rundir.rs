//! The folder of a run: `--logdir`, or the next free `runs/N`.

use anyhow::{Context, bail};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// Where the runs are that were given no folder.
const RUNS: &str = "runs";

/// A folder that is made when it is first needed, or when its maker wants to be sure that it can be.
#[derive(Debug)]
pub struct RunDir {
    wanted: Option<PathBuf>,
    made: OnceLock<PathBuf>,
}

impl RunDir {
    /// The folder asked for, or a new one.
    pub fn new(wanted: Option<PathBuf>) -> Self {
        Self { wanted, made: OnceLock::new() }
    }

    /// Fails if the folder asked for already holds a run.
    pub fn check(&self) -> anyhow::Result<()> {
        let Some(folder) = self.wanted.as_ref().filter(|folder| folder.exists()) else { return Ok(()) };
        let shown = folder.display();
        let entries = fs::read_dir(folder).with_context(|| format!("cannot read the folder {shown}"))?;
        for entry in entries {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.starts_with("checkpoint-") {
                bail!("{shown} already holds a run ({name}); choose another --logdir, or move it away");
            }
        }
        Ok(())
    }

    /// The folder; made now if it was not before.
    pub fn open(&self) -> anyhow::Result<PathBuf> {
        if let Some(made) = self.made.get() {
            return Ok(made.clone());
        }
        self.check()?;
        let folder = match &self.wanted {
            Some(folder) => make(folder)?,
            None => next_free(Path::new(RUNS))?,
        };
        Ok(self.made.get_or_init(|| folder).clone())
    }
}

fn make(folder: &Path) -> anyhow::Result<PathBuf> {
    let shown = folder.display();
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {shown}"))?;
    tempfile::tempfile_in(folder).with_context(|| format!("cannot write into {shown}"))?;
    Ok(folder.into())
}

fn next_free(runs: &Path) -> anyhow::Result<PathBuf> {
    let shown = runs.display();
    fs::create_dir_all(runs).with_context(|| format!("cannot make the folder {shown}; give a --logdir"))?;
    for number in 1u64.. {
        let folder = runs.join(number.to_string());
        match fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            // Taken, perhaps by a run that begins at this moment.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("cannot make {}", folder.display())),
        }
    }
    bail!("{shown} is full")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_numbered_and_never_share_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path().join("runs");
        let numbers: Vec<_> = (0..3).map(|_| next_free(&runs).unwrap()).collect();
        assert_eq!(numbers, [runs.join("1"), runs.join("2"), runs.join("3")]);
    }

    #[test]
    fn a_folder_with_a_run_in_it_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = || RunDir::new(Some(folder.path().into()));
        wanted().open().unwrap();
        fs::create_dir(folder.path().join("checkpoint-000000001")).unwrap();
        let error = wanted().open().unwrap_err().to_string();
        assert!(error.contains("already holds a run"), "{error}");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = make(&file.join("sub")).unwrap_err().to_string();
        assert!(error.contains("file/sub"), "{error}");
    }
}
