//! The list of a folder's files with their sizes and digests, which makes it complete.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::EngineError;
use crate::files::digest;

/// Name of the file that holds the list.
pub const MANIFEST: &str = "manifest.json";

/// What a folder must hold to be complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The files, in the order of their names.
    pub files: Vec<ListedFile>,
}

/// One file of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedFile {
    /// Its name within the folder.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its SHA-256 in hexadecimal.
    pub sha256: String,
}

impl Manifest {
    /// Lists the files that are in `folder` now.
    ///
    /// # Errors
    /// [`EngineError::Io`] where one cannot be read.
    pub fn of_folder(folder: &Path) -> Result<Self, EngineError> {
        let list = || -> io::Result<Vec<ListedFile>> {
            let mut files = Vec::new();
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                let (size_bytes, sha256) = digest(&entry.path())?;
                files.push(ListedFile {
                    name: entry.file_name().to_string_lossy().into_owned(),
                    size_bytes,
                    sha256,
                });
            }
            files.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(files)
        };
        let files = list().map_err(|error| EngineError::io("read", folder, error))?;
        Ok(Self { files })
    }

    /// Writes the list into `folder`.
    ///
    /// # Errors
    /// [`EngineError::Io`] where the disk does not take it.
    pub fn write(&self, folder: &Path) -> Result<(), EngineError> {
        let path = folder.join(MANIFEST);
        let text =
            serde_json::to_string_pretty(self).expect("names and numbers are written as JSON");
        fs::write(&path, text + "\n").map_err(|error| EngineError::io("write", path, error))
    }

    /// Reads the list of `folder` and checks every file in it, by size and digest.
    ///
    /// # Errors
    /// [`EngineError::InvalidCheckpoint`] naming what is missing, cut off or changed.
    pub fn check(folder: &Path) -> Result<(), EngineError> {
        let invalid = |message: String| EngineError::InvalidCheckpoint {
            path: folder.to_owned(),
            message,
        };
        let text = fs::read_to_string(folder.join(MANIFEST))
            .map_err(|_| invalid(format!("{MANIFEST} is missing: not complete")))?;
        let manifest: Self =
            serde_json::from_str(&text).map_err(|error| invalid(format!("{MANIFEST}: {error}")))?;
        for ListedFile {
            name,
            size_bytes,
            sha256,
        } in &manifest.files
        {
            if name.contains(['/', '\\']) || name == ".." {
                return Err(invalid(format!(
                    "{MANIFEST}: {name:?} is no plain file name"
                )));
            }
            let found =
                digest(&folder.join(name)).map_err(|_| invalid(format!("{name} is missing")))?;
            if found != (*size_bytes, sha256.clone()) {
                return Err(invalid(format!(
                    "{name} is not as it was saved (cut off or changed)"
                )));
            }
        }
        Ok(())
    }
}
