//! Which checkpoint to go on from: the newest one that is complete.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Manifest, put_back};
use crate::EngineError;

/// The newest complete checkpoint of a folder, and why newer ones were passed over.
#[derive(Debug, Default)]
pub struct Newest {
    /// Its folder, if there is any.
    pub folder: Option<PathBuf>,
    /// What is wrong with each newer one, for the log.
    pub passed_over: Vec<String>,
}

/// Looks through the `step-N` folders of `folder` from the highest number down. One that a crash caught while it was
/// replaced is put back first, so nothing may be saved there meanwhile.
///
/// # Errors
/// [`EngineError::Io`] where the folder cannot be read.
pub fn newest_complete(folder: &Path) -> Result<Newest, EngineError> {
    let mut newest = Newest::default();
    if folder.exists() {
        put_back(folder).map_err(|error| EngineError::io("write", folder, error))?;
    }
    for (_, path) in step_folders(folder)?.into_iter().rev() {
        match Manifest::check(&path) {
            Ok(()) => {
                newest.folder = Some(path);
                break;
            }
            Err(problem) => newest.passed_over.push(problem.to_string()),
        }
    }
    Ok(newest)
}

/// The `step-N` folders of `folder` by number; none where it is not there.
///
/// # Errors
/// [`EngineError::Io`] where the folder cannot be read.
pub fn step_folders(folder: &Path) -> Result<Vec<(u64, PathBuf)>, EngineError> {
    let failed = |error| EngineError::io("read", folder, error);
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut steps = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if let Some(step) = name.and_then(|name| name.strip_prefix("step-")?.parse().ok()) {
            steps.push((step, path));
        }
    }
    steps.sort_unstable();
    Ok(steps)
}
