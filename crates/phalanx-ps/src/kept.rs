//! The state of a ps in a file, so that one that was killed and is started again goes on where it was.
//!
//! The file is named after the cluster and the ps, and its head says which run it is of. It is made whole before
//! it gets its name, locked while it is in use, and removed when the run has ended well.

use crate::{
    arena::{Arena, Layout},
    run::RunSpec,
    wire::SavedRun,
};
use phalanx_cluster::ClusterSpec;
use prost::Message;
use rustix::fs::{FallocateFlags, fallocate};
use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// What every file of this kind and version begins with.
const MAGIC: &[u8; 8] = b"PHLXPS01";
/// The magic, the length of the saved run, and its checksum.
const FIXED: usize = 8 + 8 + 32;
/// A saved run is the names of some variables; what claims to be more is not one.
const MAX_SAVED_RUN: u64 = 64 << 20;

/// Where the state of one ps is kept.
#[derive(Debug)]
pub(crate) struct Keeper {
    path: PathBuf,
    cluster: String,
    ps: usize,
    // Held as long as the file is in use.
    file: Option<File>,
}

/// Why a state that is there cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("another process is using it")]
    InUse,
    #[error("{0}")]
    Because(String),
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub run: RunSpec,
    pub run_id: u64,
    pub arena: Arena,
}

impl Keeper {
    pub fn new(folder: &Path, cluster: &ClusterSpec, ps: usize) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let cluster = cluster.to_string();
        let key = blake3::hash(cluster.as_bytes()).to_hex();
        let path = folder.join(format!("{}-ps-{ps}.state", key.get(..16).unwrap_or_default()));
        Ok(Self { path, cluster, ps, file: None })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The state that an earlier life of this ps left, if there is any; a reason if it cannot be used.
    pub fn find(&mut self, ps_count: usize, workers: usize) -> Result<Option<Found>, Unusable> {
        let because = |reason: String| Unusable::Because(reason);
        let file = match File::options().read(true).write(true).open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(because(error.to_string())),
        };
        file.try_lock().map_err(|_| Unusable::InUse)?;
        let (saved, head) =
            read_head(&file).map_err(|error| because(format!("it cannot be read: {error}")))?;
        if saved.cluster != self.cluster || saved.ps as usize != self.ps {
            return Err(because(format!("it is of ps {} of {}", saved.ps, saved.cluster)));
        }
        // Pages that were not yet written when a machine went down are lost, and nobody knows which.
        if saved.boot_id != boot_id() {
            return Err(because("the machine was restarted since".into()));
        }
        let run = RunSpec::from_wire(saved.run, ps_count).map_err(because)?;
        let len = run.plan.shards().get(self.ps).map_or(0, ExactSizeIterator::len);
        let layout = layout(head, len, &run, workers);
        let arena = Arena::of_file(&file, layout).map_err(|error| because(error.to_string()))?;
        if arena.record().block >= layout.blocks as u64 {
            return Err(because("it is damaged".into()));
        }
        self.file = Some(file);
        Ok(Some(Found { run, run_id: saved.run_id, arena }))
    }

    /// A new file for a run, to be filled before it gets its name.
    pub fn prepare(&mut self, run: &RunSpec, run_id: u64, workers: usize) -> io::Result<Arena> {
        let saved = SavedRun {
            cluster: self.cluster.clone(),
            ps: self.ps as u32,
            run_id,
            boot_id: boot_id(),
            run: Some(run.to_wire()),
        }
        .encode_to_vec();
        let len = run.plan.shards().get(self.ps).map_or(0, ExactSizeIterator::len);
        let layout = layout(FIXED + saved.len(), len, run, workers);
        let unfinished = self.path.with_extension("new");
        let mut file =
            File::options().read(true).write(true).create(true).truncate(true).open(&unfinished)?;
        // The room is taken now: a disk that is full later must not break a write into the mapping.
        fallocate(&file, FallocateFlags::empty(), 0, layout.bytes() as u64)?;
        file.write_all(MAGIC)?;
        file.write_all(&(saved.len() as u64).to_le_bytes())?;
        file.write_all(blake3::hash(&saved).as_bytes())?;
        file.write_all(&saved)?;
        file.try_lock().map_err(io::Error::from)?;
        let arena = Arena::of_file(&file, layout)?;
        self.file = Some(file);
        Ok(arena)
    }

    /// Gives the file that was prepared its name.
    pub fn name(&mut self) -> io::Result<()> {
        fs::rename(self.path.with_extension("new"), &self.path)
    }

    /// Puts a file that cannot be used, or that nobody wants, out of the way.
    pub fn set_aside(&mut self) -> io::Result<PathBuf> {
        self.file = None;
        let aside = self.path.with_extension("old");
        fs::rename(&self.path, &aside)?;
        Ok(aside)
    }

    /// The run has ended well.
    pub fn remove(&mut self) -> io::Result<()> {
        match self.file.take() {
            Some(_) => fs::remove_file(&self.path),
            None => Ok(()),
        }
    }
}

/// Twice as many blocks as workers, since each may have an old connection beside its new one, and those of the
/// values that count, of those to be made, and of a pull.
pub(crate) fn layout(head: usize, len: usize, run: &RunSpec, workers: usize) -> Layout {
    Layout { head, len, slots: run.optimizer.slots(), blocks: 2 * workers + 3, workers }
}

fn read_head(mut file: &File) -> io::Result<(SavedRun, usize)> {
    use io::Read;
    let bad = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
    let (mut magic, mut len, mut checksum) = ([0; 8], [0; 8], [0; 32]);
    file.read_exact(&mut magic)?;
    file.read_exact(&mut len)?;
    file.read_exact(&mut checksum)?;
    if magic != *MAGIC {
        return Err(bad("it is not the state of a ps, or of another version"));
    }
    let len = u64::from_le_bytes(len);
    let mut saved = Vec::new();
    file.take(len.min(MAX_SAVED_RUN)).read_to_end(&mut saved)?;
    if saved.len() as u64 != len || *blake3::hash(&saved).as_bytes() != checksum {
        return Err(bad("its head is damaged"));
    }
    let head = FIXED + saved.len();
    Ok((SavedRun::decode(saved.as_slice())?, head))
}

/// Differs after every start of the machine; nothing where the system does not say.
fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
