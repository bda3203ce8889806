//! What was fetched into a model's folder, and of which commit: told from what its owner has put there, and noticed when
//! it is damaged.
//!
//! The mark is a file in the folder. It names each fetched file with its length and time; whoever looks for the model
//! reads only those files again that have changed since.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::CONFIG;
use crate::engine::EngineError;
use crate::engine::gguf::GgufModel;
use crate::engine::weights::SafetensorsFile;
use crate::files::{self, Access};

/// Name of the mark.
const FETCHED: &str = ".fetched";

/// What was fetched into a folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    /// The hub's commit that all of the files are of; none where they are the platform's.
    pub(super) commit: Option<String>,
    /// By name; no stamp while a file is on its way.
    files: BTreeMap<String, Option<Stamp>>,
}

/// A file as it was when it had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    size_bytes: u64,
    /// Since 1970.
    modified_ns: u64,
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let there = fs::metadata(path).ok()?;
        let since = there.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(Self {
            size_bytes: there.len(),
            modified_ns: u64::try_from(since.as_nanos()).ok()?,
        })
    }
}

impl Mark {
    /// The folder's mark; that of a folder into which nothing was fetched where there is none.
    pub(super) fn read(folder: &Path) -> Self {
        let text = fs::read(folder.join(FETCHED)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// From now on what is fetched is of this commit. What was fetched of another one is deleted, so that no model is
    /// put together from two.
    pub(super) fn begin(&mut self, folder: &Path, commit: Option<&str>) {
        if self.commit.as_deref() != commit {
            for name in std::mem::take(&mut self.files).into_keys() {
                delete(&folder.join(name));
            }
            self.commit = commit.map(str::to_owned);
        }
        self.write(folder);
    }

    /// The file is about to be fetched.
    pub(super) fn expect(&mut self, folder: &Path, name: &str) {
        self.files.insert(name.to_owned(), None);
        self.write(folder);
    }

    /// The file has come whole. One that cannot be read although it has just come is not to be fetched again.
    pub(super) fn add(&mut self, folder: &Path, name: &str) {
        let path = folder.join(name);
        match Stamp::of(&path) {
            stamp @ Some(_) if read(&path).is_ok() => self.files.insert(name.to_owned(), stamp),
            _ => self.files.remove(name),
        };
        self.write(folder);
    }

    fn write(&self, folder: &Path) {
        let text = serde_json::to_vec(self).expect("plain fields are written as JSON");
        let mark = folder.join(FETCHED);
        if let Err(error) = files::write_atomically(&mark, &text, Access::Default) {
            tracing::warn!(folder = %folder.display(), %error, "a fetched model is not marked as such");
        }
    }
}

/// Deletes fetched files that have changed since and cannot be read as what they are: cut off, or with a damaged header.
/// What cannot be read for other reasons stays.
pub(super) fn delete_damaged(folder: &Path) {
    for (name, stamp) in Mark::read(folder).files {
        let path = folder.join(name);
        if stamp.is_some() && Stamp::of(&path) == stamp {
            continue;
        }
        let Err(why) = read(&path) else { continue };
        tracing::warn!(file = %path.display(), why, "a fetched file of a model is damaged and is deleted");
        // Without its config the folder is not whole: what is missing is fetched, also what not every model has.
        delete(&path);
        delete(&folder.join(CONFIG));
    }
}

fn delete(file: &Path) {
    if let Err(error) = files::remove_if_there(file) {
        tracing::warn!(file = %file.display(), %error, "it cannot be deleted");
    }
}

/// Looks at a file's header, or the whole of a text.
fn read(path: &Path) -> Result<(), String> {
    let opened = match path.extension().and_then(OsStr::to_str) {
        Some("safetensors") => SafetensorsFile::open(path).map(drop),
        Some("gguf") => GgufModel::open(path).map(drop),
        Some("json") => {
            return match fs::read(path) {
                Ok(text) => serde_json::from_slice::<IgnoredAny>(&text)
                    .map(drop)
                    .map_err(|error| error.to_string()),
                Err(_) => Ok(()),
            };
        }
        _ => return Ok(()),
    };
    match opened {
        Err(EngineError::Io { .. }) | Ok(()) => Ok(()),
        Err(damaged) => Err(damaged.to_string()),
    }
}
