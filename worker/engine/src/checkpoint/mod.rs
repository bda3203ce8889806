//! Checkpoints: everything that a run needs to go on bit for bit, in folders that are whole or not there.
//!
//! A checkpoint is a folder `step-N` with these files:
//!
//! | file | what |
//! | --- | --- |
//! | `adapter_model.safetensors`, `adapter_config.json` | the adapter, as PEFT reads it; or the files of a model folder, where all weights are trained |
//! | `optimizer.safetensors` | AdamW's moments of every weight |
//! | `best.safetensors` | the weights with the lowest evaluation loss, where the run is to end with them and they are not these |
//! | `trainer_state.json` | step, counters, the run's config and identity |
//! | `manifest.json` | names, sizes and digests of the others; written last, so its presence means that all are there |
//!
//! It is written aside, synced and renamed. A crash in the middle of saving leaves the checkpoints
//! before it as they are, and at most folders whose names begin with a dot: one in the making, which the next save removes,
//! and one that was being replaced, which is put back where its place is empty.

mod exact;
mod manifest;
mod newest;
mod state;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::EngineError;
use crate::files::{rename_durably, sync_folder};

pub use manifest::{MANIFEST, Manifest};
pub use newest::{Newest, newest_complete, step_folders};
pub use state::{Best, Evaluations, RunIdentity, TrainerState};

/// Name of the optimizer's file in a checkpoint.
pub const OPTIMIZER: &str = "optimizer.safetensors";
/// Name of the file with the best weights in a checkpoint that does not hold them itself.
pub const BEST: &str = "best.safetensors";
/// Name of the trainer's file in a checkpoint.
pub const TRAINER_STATE: &str = "trainer_state.json";

/// Folders in the making begin with this.
const ASIDE: &str = ".saving-";
/// Folders that are being replaced begin with this.
const REPLACED: &str = ".replaced-";

/// Writes a folder `name` in `parent`: `write` puts its files into a folder aside, which then takes its
/// place. A folder of that name that is there already is replaced.
///
/// # Errors
/// [`EngineError::Io`] where the disk does not take it; nothing is left aside and what was there stays.
pub fn write_folder(
    parent: &Path,
    name: &str,
    write: impl FnOnce(&Path) -> Result<(), EngineError>,
) -> Result<PathBuf, EngineError> {
    let failed = |path: &Path, error| EngineError::io("write", path, error);
    fs::create_dir_all(parent).map_err(|error| failed(parent, error))?;
    remove_left_over(parent).map_err(|error| failed(parent, error))?;
    let aside = parent.join(format!("{ASIDE}{name}"));
    let place = parent.join(name);
    let written = fs::create_dir(&aside)
        .map_err(|error| failed(&aside, error))
        .and_then(|()| write(&aside))
        .and_then(|()| {
            Manifest::of_folder(&aside)?.write(&aside)?;
            sync_files(&aside)
                .and_then(|()| replace(&aside, &place))
                .map_err(|error| failed(&place, error))
        });
    match written {
        Ok(()) => Ok(place),
        Err(error) => {
            // The error that matters is the one that stopped the writing.
            let _ = fs::remove_dir_all(&aside);
            Err(error)
        }
    }
}

/// Removes all but the newest `keep` checkpoints and the one of step `best`.
///
/// # Errors
/// [`EngineError::Io`] where one cannot be removed.
pub fn prune(folder: &Path, keep: usize, best: Option<u64>) -> Result<(), EngineError> {
    let steps = step_folders(folder)?;
    let old = steps.iter().rev().skip(keep);
    for (_, path) in old.filter(|(step, _)| Some(*step) != best) {
        fs::remove_dir_all(path).map_err(|error| EngineError::io("remove", path, error))?;
    }
    Ok(())
}

/// The name of the checkpoint after `step`.
pub fn folder_name(step: u64) -> String {
    format!("step-{step}")
}

fn remove_left_over(parent: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(ASIDE) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    put_back(parent)
}

/// Puts folders back that a crash left without a successor, and removes those that have one.
fn put_back(parent: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_prefix(REPLACED)) else {
            continue;
        };
        let place = parent.join(name);
        match place.exists() {
            true => fs::remove_dir_all(entry.path())?,
            false => rename_durably(&entry.path(), &place)?,
        }
    }
    Ok(())
}

fn sync_files(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        File::open(entry?.path())?.sync_all()?;
    }
    sync_folder(folder)
}

fn replace(aside: &Path, place: &Path) -> io::Result<()> {
    if !place.exists() {
        return rename_durably(aside, place);
    }
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    let old = place.with_file_name(format!("{REPLACED}{name}"));
    fs::rename(place, &old)?;
    rename_durably(aside, place)?;
    fs::remove_dir_all(old)
}

#[cfg(test)]
mod tests;
