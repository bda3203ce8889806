//! Puts an export in its place: written aside, synced, renamed, so that it is whole or not there.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::EngineError;
use crate::files::{rename_durably, sync_folder};

/// What the names of folders aside begin with.
const PREFIX: &str = ".exporting-";
/// The file in them that is locked as long as they are in use.
const LOCK: &str = "lock";
/// Older ones without it are left over.
const LOCKED_WITHIN: Duration = Duration::from_secs(60);

/// What becomes of a file or folder that stands where the export goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and the export is refused.
    Keep,
    /// It is replaced once the export is whole, if it is an export of the same kind.
    Replace,
}

/// What an export is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A model folder.
    Folder,
    /// A GGUF file.
    File,
}

/// Checks that an export may go to `output`, before any work is done for it.
///
/// # Errors
/// [`EngineError::InvalidSetting`] where something stands there that must stay.
pub(super) fn check(output: &Path, kind: Kind, existing: Existing) -> Result<(), EngineError> {
    let refused = |message: &str| {
        Err(EngineError::InvalidSetting {
            field: "output",
            message: format!("{} {message}", output.display()),
        })
    };
    if output.file_name().is_none() {
        return refused("names no file or folder");
    }
    let Ok(metadata) = fs::symlink_metadata(output) else {
        return Ok(());
    };
    let is_empty = || fs::read_dir(output).is_ok_and(|mut entries| entries.next().is_none());
    match (kind, existing) {
        (Kind::Folder, _) if metadata.is_dir() && is_empty() => Ok(()),
        (_, Existing::Keep) => refused("is there already"),
        (Kind::File, Existing::Replace) if metadata.is_file() => Ok(()),
        (Kind::Folder, Existing::Replace) if output.join("config.json").is_file() => Ok(()),
        (Kind::File, Existing::Replace) => refused("is no file and is not replaced by one"),
        (Kind::Folder, Existing::Replace) => refused("holds no model and is not replaced by one"),
    }
}

/// Lets `write` write a file or a folder aside, syncs it and moves it to `output`.
///
/// # Errors
/// As [`check`]; [`EngineError::Io`]; whatever `write` answers. Nothing is left aside, and what stood there stays.
pub(super) fn put(
    output: &Path,
    kind: Kind,
    existing: Existing,
    write: impl FnOnce(&Path) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    check(output, kind, existing)?;
    let parent = match output.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let output = &parent.join(output.file_name().unwrap_or_default());
    fs::create_dir_all(parent).map_err(|error| EngineError::io("create", parent, error))?;
    sweep(parent);
    let aside = Aside::within(parent).map_err(|error| EngineError::io("write", parent, error))?;
    let written = aside.folder.path().join("new");
    if kind == Kind::Folder {
        fs::create_dir(&written).map_err(|error| EngineError::io("create", &written, error))?;
    }
    write(&written).map_err(|error| at_its_place(error, &written, output))?;
    let failed = |error| EngineError::io("write", output, error);
    if kind == Kind::Folder {
        sync_files(&written).map_err(failed)?;
    }
    move_to(&written, output, &aside.folder.path().join("old")).map_err(failed)
}

/// A hidden folder on the same file system as the place of an export; removed with all that is in it when this value
/// goes. As long as it is in use its lock is held.
struct Aside {
    folder: TempDir,
    _lock: File,
}

impl Aside {
    fn within(parent: &Path) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        // It has its name only once it is locked: nobody can find it and think that it is left over.
        let unlocked = folder.path().join("new-lock");
        let lock = File::create(&unlocked)?;
        lock.lock()?;
        fs::rename(unlocked, folder.path().join(LOCK))?;
        Ok(Self {
            folder,
            _lock: lock,
        })
    }
}

/// Removes what exports left in `parent` that were killed. What cannot be removed stays, and does no harm.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let folder = entry.path();
        let is_aside = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if is_aside && is_left_over(&folder) {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

fn is_left_over(folder: &Path) -> bool {
    match File::open(folder.join(LOCK)) {
        Ok(lock) => lock.try_lock().is_ok(),
        // Killed before it was locked, unless that is just about to happen.
        Err(_) => {
            let made = fs::metadata(folder).and_then(|metadata| metadata.modified());
            made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > LOCKED_WITHIN))
        }
    }
}

/// Names the place that the user knows instead of the one aside.
fn at_its_place(error: EngineError, aside: &Path, output: &Path) -> EngineError {
    let place = |path: PathBuf| match path.strip_prefix(aside) {
        Ok(inner) if inner == Path::new("") => output.to_owned(),
        Ok(inner) => output.join(inner),
        Err(_) => path,
    };
    match error {
        EngineError::Io {
            action,
            path,
            source,
        } => EngineError::Io {
            action,
            path: place(path),
            source,
        },
        EngineError::InvalidCheckpoint { path, message } => EngineError::InvalidCheckpoint {
            path: place(path),
            message,
        },
        other => other,
    }
}

fn sync_files(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        File::open(entry?.path())?.sync_all()?;
    }
    sync_folder(folder)
}

fn move_to(written: &Path, output: &Path, old: &Path) -> io::Result<()> {
    if !output.is_dir() {
        return rename_durably(written, output);
    }
    fs::rename(output, old)?;
    rename_durably(written, output).inspect_err(|_| {
        // The error that matters is the one that kept the new folder from its place.
        let _ = fs::rename(old, output);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn what_a_killed_export_left_is_removed_by_the_next_and_what_is_in_use_is_not() {
        let parent = tempfile::tempdir().unwrap();
        let place = |name: &str| parent.path().join(name);
        let killed = place(".exporting-killed");
        fs::create_dir(&killed).unwrap();
        File::create(killed.join(LOCK)).unwrap();
        fs::write(killed.join("new"), b"half").unwrap();
        let (old, beginning) = (place(".exporting-old"), place(".exporting-beginning"));
        for folder in [&old, &beginning] {
            fs::create_dir(folder).unwrap();
        }
        let long_ago = SystemTime::now() - LOCKED_WITHIN * 2;
        File::open(&old).unwrap().set_modified(long_ago).unwrap();
        let in_use = Aside::within(parent.path()).unwrap();
        put(&place("out"), Kind::File, Existing::Keep, |path| {
            fs::write(path, b"whole").map_err(|error| EngineError::io("write", path, error))
        })
        .unwrap();
        assert!(place("out").exists());
        assert!(in_use.folder.path().exists() && beginning.exists());
        assert!(!killed.exists() && !old.exists());
    }
}
