//! What a volunteer keeps of a session: the round's weights, its shard, and a result that the coordinator does not have
//! yet. Everything is written aside and renamed, so that a crash leaves it as it was before or as it is after.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use trainyard_shared::coordinator::Task;

use super::error::VolunteerError;
use super::local_data::OWN;
use super::{CoordinatorAddress, VolunteerConfig};
use crate::files::{self, Access};
use crate::state_dir::StateDir;

/// Folder of all sessions in the state folder.
pub const FOLDER: &str = "volunteer";

const RESULT: &str = "result.safetensors";
const RECORD: &str = "result.json";
const OPTIMIZER: &str = "optimizer";
const BLURRED: &str = "blurred.json";
const WEIGHTS: &str = "weights-";
const SHARD: &str = "shard-";

/// A volunteer's folder for one coordinator and name, taken for this process.
#[derive(Debug)]
pub(super) struct Session {
    dir: StateDir,
}

/// A result that is kept until the coordinator has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct KeptResult {
    /// The round that it belongs to.
    pub(super) round: u64,
    /// SHA-256 of the weights that it was trained from.
    pub(super) weights_sha256: String,
    /// SHA-256 of the result.
    pub(super) sha256: String,
    /// Its length.
    pub(super) size_bytes: u64,
}

/// Results that were blurred for differential privacy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Blurred {
    /// How many.
    pub(super) results: u64,
    /// The least noise of them, in multiples of the clipping norm.
    pub(super) noise_multiplier: f64,
}

impl KeptResult {
    /// Whether it is a result of this task.
    pub(super) fn is_of(&self, task: &Task) -> bool {
        self.round == task.round && self.weights_sha256 == task.weights_sha256
    }
}

impl Session {
    /// Takes the folder of `config`'s coordinator and name.
    ///
    /// # Errors
    /// Another process has it, or it cannot be made.
    pub(super) fn open(config: &VolunteerConfig) -> Result<Self, VolunteerError> {
        let folder = config.state_dir.join(FOLDER);
        let path = folder.join(folder_name(&config.coordinator, &config.name));
        Ok(Self {
            dir: StateDir::open(&path)?,
        })
    }

    /// The session's folder.
    pub(super) fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// Whether an earlier run has left weights or a result there.
    pub(super) fn was_used(&self) -> bool {
        let entries = fs::read_dir(self.folder()).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        { names }.any(|name| name.starts_with(WEIGHTS) || name == RECORD)
    }

    /// A file or folder of the session.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Where the weights with this digest are kept.
    pub(super) fn weights(&self, sha256: &str) -> PathBuf {
        self.path(&format!("{WEIGHTS}{sha256}.safetensors"))
    }

    /// Where the shard with this digest is kept.
    pub(super) fn shard(&self, sha256: &str) -> PathBuf {
        self.path(&format!("{SHARD}{sha256}.safetensors"))
    }

    /// Where a round's result goes.
    pub(super) fn result(&self) -> PathBuf {
        self.path(RESULT)
    }

    /// Where AdamW's moments are kept between rounds.
    pub(super) fn optimizer(&self) -> PathBuf {
        self.path(OPTIMIZER)
    }

    /// The result that is kept, where it is whole.
    pub(super) fn kept(&self) -> Option<KeptResult> {
        let record = fs::read(self.path(RECORD)).ok()?;
        let kept: KeptResult = serde_json::from_slice(&record).ok()?;
        let found = files::digest(&self.result()).ok()?;
        (found.1 == kept.sha256).then_some(kept)
    }

    /// Keeps the result that is written at [`Session::result`].
    pub(super) fn keep(&self, kept: &KeptResult) -> Result<(), VolunteerError> {
        self.write_json(RECORD, kept)
    }

    fn write_json(&self, name: &str, content: &impl Serialize) -> Result<(), VolunteerError> {
        let (path, text) = (self.path(name), serde_json::to_vec_pretty(content));
        let text = text.expect("plain fields are written as JSON");
        files::write_atomically(&path, &text, Access::Default)
            .map_err(|source| VolunteerError::state("write", &path, source))
    }

    /// What was blurred so far, in all runs.
    pub(super) fn blurred(&self) -> Option<Blurred> {
        let text = fs::read(self.path(BLURRED)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Keeps that.
    pub(super) fn keep_blurred(&self, blurred: &Blurred) -> Result<(), VolunteerError> {
        self.write_json(BLURRED, blurred)
    }

    /// Forgets what only the session needed that has come to its end: weights, shards, packed data, moments. The number
    /// of blurred results stays.
    pub(super) fn end(&self) -> Result<(), VolunteerError> {
        self.drop_result()?;
        let entries = fs::read_dir(self.folder()).into_iter().flatten().flatten();
        for entry in entries {
            let (name, path) = (entry.file_name(), entry.path());
            let name = name.to_string_lossy();
            if name.starts_with(WEIGHTS) || name.starts_with(SHARD) {
                self.remove(&path)?;
            } else if name == OPTIMIZER || name.starts_with(OWN) {
                fs::remove_dir_all(&path)
                    .map_err(|error| VolunteerError::state("remove", &path, error))?;
            }
        }
        Ok(())
    }

    /// Forgets the result.
    pub(super) fn drop_result(&self) -> Result<(), VolunteerError> {
        self.remove(&self.path(RECORD))?;
        self.remove(&self.result())
    }

    /// Deletes weights and shards of earlier tasks, and what is left of their downloads.
    pub(super) fn sweep(&self, task: &Task) -> Result<(), VolunteerError> {
        let is_needed = |name: &str| {
            let digests = [Some(&task.weights_sha256), task.data_sha256.as_ref()];
            digests
                .into_iter()
                .flatten()
                .any(|digest| name.contains(digest.as_str()))
        };
        let folder = self.dir.path();
        let entries =
            fs::read_dir(folder).map_err(|source| VolunteerError::state("read", folder, source))?;
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_fetched = name.starts_with(WEIGHTS) || name.starts_with(SHARD);
            if is_fetched && !is_needed(&name) {
                self.remove(&entry.path())?;
            }
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<(), VolunteerError> {
        files::remove_if_there(path).map_err(|error| VolunteerError::state("remove", path, error))
    }
}

/// A name is never part of a path as it is.
fn folder_name(coordinator: &CoordinatorAddress, name: &str) -> String {
    const DIGITS: usize = 24;
    let mut digest = hex::encode(Sha256::digest(format!("{coordinator}\n{name}")));
    digest.truncate(DIGITS);
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_of_other_names_and_coordinators_have_folders_of_their_own() {
        let address = |text: &str| text.parse::<CoordinatorAddress>().unwrap();
        let (a, b) = (address("https://a.example"), address("https://b.example"));
        let names = [
            folder_name(&a, "ali"),
            folder_name(&a, "../../etc"),
            folder_name(&b, "ali"),
        ];
        assert!(
            names
                .iter()
                .all(|name| name.bytes().all(|byte| byte.is_ascii_hexdigit()))
        );
        assert!(names[0] != names[1] && names[0] != names[2]);
    }
}
