//! A volunteer's own data as a token shard: it is one already, or it is packed once and kept.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use chrono::Local;
use sha2::{Digest, Sha256};
use trainyard_shared::coordinator::Mode;

use super::error::VolunteerError;
use super::state::Session;
use crate::engine::EngineError;
use crate::engine::data::{DataFile, Packing};
use crate::engine::weights::ModelFiles;
use crate::files;

/// Begins the names of the folders where own data is packed.
const OWN: &str = "own-";
const MANIFEST: &str = "shards.json";

/// The shard of `file` for this model and mode. `is_stopped` is asked between blocks of rows.
///
/// # Errors
/// Data that cannot be used.
pub(super) fn shard(
    file: &DataFile,
    mode: Mode,
    model: &ModelFiles,
    session: &Session,
    is_stopped: &dyn Fn() -> bool,
) -> Result<PathBuf, VolunteerError> {
    if is_shard(&file.path) {
        return Ok(file.path.clone());
    }
    let chat = model.chat(Local::now())?;
    let (_, digest) = files::digest(&file.path)
        .map_err(|error| VolunteerError::state("read", &file.path, error))?;
    let key = format!("{digest} {} {mode:?} {}", file.format, chat.digest()?);
    let name = format!("{OWN}{}", &hex::encode(Sha256::digest(key))[..24]);
    let folder = session.path(&name);
    let path = folder.join("shard-00000.safetensors");
    if !folder.join(MANIFEST).exists() {
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
