//! A volunteer's own data as a token shard: it is one already, or it is packed once and kept.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Local};
use sha2::{Digest, Sha256};
use trainyard_shared::coordinator::Mode;

use super::digests::Digests;
use super::error::VolunteerError;
use crate::engine::EngineError;
use crate::engine::data::{DataFile, Packing};
use crate::engine::weights::ModelFiles;
use crate::tasks::transfers::check_room;

/// Begins the names of the folders where own data is packed.
pub(super) const OWN: &str = "own-";
const MANIFEST: &str = "shards.json";

/// What packed data may take up, in multiples of the file's own length.
const PACKED_TIMES: u64 = 3;

/// Own data that is to become a shard.
pub(super) struct OwnShard<'a> {
    pub(super) file: &'a DataFile,
    pub(super) mode: Mode,
    pub(super) model: &'a ModelFiles,
    /// Where it is packed.
    pub(super) folder: &'a Path,
    pub(super) digests: &'a Digests,
    /// Bytes of the disk that stay free.
    pub(super) kept_bytes: u64,
}

/// The shard of own data. `is_stopped` is asked before every row.
///
/// # Errors
/// Data that cannot be used; a disk without room.
pub(super) fn shard(
    own: &OwnShard<'_>,
    is_stopped: &(dyn Fn() -> bool + Sync),
) -> Result<PathBuf, VolunteerError> {
    let &OwnShard {
        file,
        mode,
        model,
        folder,
        ..
    } = own;
    if is_shard(&file.path) {
        return Ok(file.path.clone());
    }
    let unreadable = |error| VolunteerError::state("read", &file.path, error);
    let metadata = std::fs::metadata(&file.path).map_err(unreadable)?;
    let changed = metadata.modified();
    // What a template that asks is told to be the time: the same for every round.
    let chat = model.chat(DateTime::<Local>::from(changed.map_err(unreadable)?))?;
    let digest = own.digests.of(&file.path).map_err(unreadable)?;
    let key = format!("{digest} {} {mode:?} {}", file.format, chat.digest()?);
    let name = format!("{OWN}{}", &hex::encode(Sha256::digest(key))[..24]);
    remove_others(folder, &name);
    let folder = folder.join(&name);
    let path = folder.join("shard-00000.safetensors");
    if !folder.join(MANIFEST).exists() {
        let needed = PACKED_TIMES * metadata.len();
        check_room("the packed data", &folder, needed, own.kept_bytes)
            .map_err(VolunteerError::Disk)?;
        let packing = Packing {
            dataset: file,
            max_bad_rows: 0,
            chat: &chat,
            vocab_size: model.config.vocab_size,
            mode,
            shards: 1,
        };
        let packed = packing.write(&folder, is_stopped);
        packed.map_err(|error| match error {
            EngineError::Stopped => VolunteerError::Stopped { kept: false },
            error => error.into(),
        })?;
    }
    Ok(path)
}

/// Deletes what was packed of other data; what cannot be deleted stays.
fn remove_others(folder: &Path, name: &str) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let found = entry.file_name().to_string_lossy().into_owned();
        if found.starts_with(OWN) && found != name {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether a file begins like one in safetensors: with the length of a JSON object, and the object.
fn is_shard(path: &Path) -> bool {
    let mut head = [0; 9];
    let Ok(()) = File::open(path).and_then(|mut file| file.read_exact(&mut head)) else {
        return false;
    };
    let length = u64::from_le_bytes(*head.first_chunk().expect("it has nine bytes"));
    let size = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    head[8] == b'{' && length < size
}
