//! Messages that must not be lost: kept on disk with the files that they name until the platform acknowledges them.
//!
//! What waits, and in which order, is in [`Waiting`]; this is its disk. One JSON file for each message, named
//! by its place in the order, and beside it a folder with its files (hard links, so that they stay whatever
//! happens to their first names):
//!
//! 1. [`Outbox::push`] links the files, then writes the message aside, syncs and renames it. What a
//!    crash leaves half-made is swept away by [`Outbox::open`].
//! 2. The connection takes entries in order, uploads their files, sends them.
//! 3. An `ack` removes the entry. A removal that a crash undoes is harmless: the message is sent and
//!    acknowledged once more.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use trainyard_shared::ids::{FederatedSessionId, JobId, MessageId};
use trainyard_shared::message::{ArtifactFile, FromWorker};

use super::waiting::Waiting;
use crate::files::{
    self, Access, create_private_folder, link_or_copy, sync_folder, write_atomically,
};

pub use super::waiting::{
    Entry, JobAttempt, Place, Undelivered, WaitingFile, ended_job, ended_task,
};

/// A message could not be kept.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct OutboxError {
    action: &'static str,
    path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

impl OutboxError {
    fn new(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self {
            action,
            path,
            source,
        }
    }
}

/// The waiting messages. Shared by the task that makes them and the connection that delivers them.
#[derive(Debug)]
pub struct Outbox {
    dir: PathBuf,
    state: Mutex<Waiting>,
    waiting: watch::Sender<usize>,
}

/// How an entry stands on disk.
#[derive(Serialize, Deserialize)]
struct Stored {
    frame: String,
    files: Vec<ArtifactFile>,
}

impl Outbox {
    /// Opens the outbox in `dir`, which is made if need be, and sweeps away what a crash left half-made.
    ///
    /// A file that is no message of ours is set aside as `*.damaged` and logged, never sent.
    ///
    /// # Errors
    ///
    /// The folder cannot be read or written.
    pub fn open(dir: &Path) -> Result<Self, OutboxError> {
        create_private_folder(dir).map_err(OutboxError::new("create", dir))?;
        let mut waiting = Waiting::default();
        let mut folders = Vec::new();
        for item in fs::read_dir(dir).map_err(OutboxError::new("read", dir))? {
            let path = item.map_err(OutboxError::new("read", dir))?.path();
            let extension = path.extension().and_then(|extension| extension.to_str());
            match (extension, place_of(&path)) {
                (Some("json"), Some(place)) => match read_entry(dir, place) {
                    Ok(entry) => waiting.put(entry),
                    Err(message) => set_aside(&path, &message),
                },
                (Some("files"), Some(place)) => folders.push((place, path)),
                (Some("tmp"), _) => remove_quietly(&path),
                _ => {}
            }
        }
        for (place, folder) in folders {
            if waiting.get(place).is_none() {
                remove_folder_quietly(&folder);
            }
        }
        Ok(Self {
            dir: dir.to_owned(),
            waiting: watch::Sender::new(waiting.len()),
            state: Mutex::new(waiting),
        })
    }

    /// Keeps `message` with the files that it names (their content lies at `paths`, in the same order).
    ///
    /// When this returns, message and files survive a crash and `paths` may be deleted.
    ///
    /// # Errors
    ///
    /// The file system refused, as on a full disk; nothing is kept then.
    pub fn push(
        &self,
        message: FromWorker,
        files: Vec<(ArtifactFile, PathBuf)>,
    ) -> Result<Place, OutboxError> {
        let mut state = self.state();
        let place = state.next_place();
        let entry = self.write(place, message, files)?;
        state.put(entry);
        let checkpoint = state.give_up_old_checkpoint(place);
        for given_up in checkpoint
            .into_iter()
            .chain(state.give_up_older_attempts(place))
        {
            self.delete(given_up);
        }
        self.waiting.send_replace(state.len());
        Ok(place)
    }

    /// The first entry after `place`, or the very first.
    pub fn next_after(&self, place: Option<Place>) -> Option<Entry> {
        self.state().next_after(place).cloned()
    }

    /// The entry of this message, if it still waits.
    pub fn find(&self, message: MessageId) -> Option<Entry> {
        self.state().find(message).cloned()
    }

    /// Forgets the message with this id: it was acknowledged, or refused for good. False if it was not there.
    pub fn remove(&self, message: MessageId) -> bool {
        let mut state = self.state();
        let found = state.remove(message);
        if let Some(place) = found {
            self.waiting.send_replace(state.len());
            self.delete(place);
        }
        found.is_some()
    }

    /// Puts `message` in the place of one that can't be delivered; the files of the old one are dropped.
    ///
    /// # Errors
    ///
    /// The file system refused; the old message stays.
    pub fn replace(&self, place: Place, message: FromWorker) -> Result<(), OutboxError> {
        let mut state = self.state();
        if state.get(place).is_some() {
            state.put(self.write(place, message, Vec::new())?);
            remove_folder_quietly(&self.files_folder(place));
        }
        Ok(())
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.state().is_empty()
    }

    /// Waits until nothing waits for delivery any more.
    pub async fn emptied(&self) {
        let mut waiting = self.waiting.subscribe();
        // The sender lives as long as this outbox.
        let _ = waiting.wait_for(|waiting| *waiting == 0).await;
    }

    /// The first job end that waits: its place and its job.
    pub fn undelivered_end(&self) -> Option<(Place, JobId)> {
        self.state().undelivered_end()
    }

    /// Everything whose end waits for delivery.
    pub fn undelivered_ends(&self) -> Undelivered {
        self.state().undelivered()
    }

    /// The rounds of a federated session whose results wait for delivery as they are.
    pub fn undelivered_rounds(&self, session: FederatedSessionId) -> Vec<u64> {
        self.state().undelivered_rounds(session)
    }

    /// Whether a masked result of that round and attempt waits for delivery.
    pub fn has_masked(&self, session: FederatedSessionId, round: u64, attempt: u64) -> bool {
        self.state().has_masked(session, round, attempt)
    }

    fn write(
        &self,
        place: Place,
        message: FromWorker,
        files: Vec<(ArtifactFile, PathBuf)>,
    ) -> Result<Entry, OutboxError> {
        let folder = self.files_folder(place);
        let waiting = self.link_files(&folder, files).inspect_err(|_| {
            remove_folder_quietly(&folder);
        })?;
        let stored = Stored {
            frame: message.encode(),
            files: waiting.iter().map(|file| file.artifact.clone()).collect(),
        };
        let text = serde_json::to_vec(&stored).expect("plain fields are always JSON");
        let path = self.message_file(place);
        write_atomically(&path, &text, Access::Owner).map_err(|source| {
            remove_folder_quietly(&folder);
            OutboxError::new("write", &path)(source)
        })?;
        Ok(Entry {
            place,
            message,
            files: waiting,
        })
    }

    fn link_files(
        &self,
        folder: &Path,
        files: Vec<(ArtifactFile, PathBuf)>,
    ) -> Result<Vec<WaitingFile>, OutboxError> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        create_private_folder(folder).map_err(OutboxError::new("create", folder))?;
        let mut waiting = Vec::with_capacity(files.len());
        for (index, (artifact, from)) in files.into_iter().enumerate() {
            let path = folder.join(index.to_string());
            link_or_copy(&from, &path).map_err(OutboxError::new("keep", &from))?;
            waiting.push(WaitingFile { artifact, path });
        }
        sync_folder(folder)
            .and_then(|()| sync_folder(&self.dir))
            .map_err(OutboxError::new("sync", folder))?;
        Ok(waiting)
    }

    fn delete(&self, place: Place) {
        remove_quietly(&self.message_file(place));
        remove_folder_quietly(&self.files_folder(place));
    }

    fn message_file(&self, place: Place) -> PathBuf {
        self.dir.join(format!("{:012}.json", place.0))
    }

    fn files_folder(&self, place: Place) -> PathBuf {
        files_folder(&self.dir, place)
    }

    fn state(&self) -> MutexGuard<'_, Waiting> {
        // It is changed by single calls that cannot stop half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn files_folder(dir: &Path, place: Place) -> PathBuf {
    dir.join(format!("{:012}.files", place.0))
}

fn place_of(path: &Path) -> Option<Place> {
    let stem = path.file_stem()?.to_str()?;
    let digits = stem.len() == 12 && stem.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| stem.parse().ok()).flatten().map(Place)
}

fn read_entry(dir: &Path, place: Place) -> Result<Entry, String> {
    let path = dir.join(format!("{:012}.json", place.0));
    let text = fs::read_to_string(&path).map_err(|error| error.to_string())?;
    let stored: Stored = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let message = FromWorker::decode(&stored.frame).map_err(|error| error.to_string())?;
    if message.message_id().is_none() {
        return Err("the message has no message_id".to_owned());
    }
    let folder = files_folder(dir, place);
    let files = stored
        .files
        .into_iter()
        .enumerate()
        .map(|(index, artifact)| WaitingFile {
            artifact,
            path: folder.join(index.to_string()),
        })
        .collect();
    Ok(Entry {
        place,
        message,
        files,
    })
}

fn set_aside(path: &Path, message: &str) {
    tracing::warn!(outbox.file = %path.display(), error = message, "damaged message is set aside");
    if let Err(error) = fs::rename(path, path.with_extension("json.damaged")) {
        tracing::warn!(outbox.file = %path.display(), %error, "damaged message cannot be set aside");
    }
}

fn remove_quietly(path: &Path) {
    if let Err(error) = files::remove_if_there(path) {
        tracing::warn!(outbox.file = %path.display(), %error, "delivered message cannot be deleted");
    }
}

fn remove_folder_quietly(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(outbox.file = %path.display(), %error, "delivered files cannot be deleted");
    }
}

#[cfg(test)]
mod tests;
