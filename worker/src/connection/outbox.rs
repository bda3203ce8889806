//! Messages that must not be lost: kept on disk with the files that they name until the platform acknowledges them.
//!
//! One JSON file for each message, named by its place in the order, and beside it a folder with its
//! files (hard links, so that they stay whatever happens to their first names):
//!
//! 1. [`Outbox::push`] links the files, then writes the message aside, syncs and renames it. What a
//!    crash leaves half-made is swept away by [`Outbox::open`].
//! 2. The connection takes entries in order, uploads their files, sends them.
//! 3. An `ack` removes the entry. A removal that a crash undoes is harmless: the message is sent and
//!    acknowledged once more.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use trainyard_shared::ids::{JobId, MessageId};
use trainyard_shared::message::{ArtifactFile, FromWorker};

use crate::files::{Access, create_private_folder, link_or_copy, sync_folder, write_atomically};

/// So many checkpoints of one job wait for delivery; beyond that the oldest that nobody works on is given up.
const WAITING_CHECKPOINTS: usize = 3;

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

/// An entry's place in the order of delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place(u64);

/// One message that waits for its `ack`.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its place in the order.
    pub place: Place,
    /// The message, with its `message_id`.
    pub message: FromWorker,
    /// Files that must be stored at the platform before the message is sent.
    pub files: Vec<WaitingFile>,
}

/// A file of an [`Entry`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingFile {
    /// What the platform is told of it.
    pub artifact: ArtifactFile,
    /// Where it lies.
    pub path: PathBuf,
}

/// The job and attempt that a message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct JobAttempt {
    /// The job.
    pub job_id: JobId,
    /// The attempt, as `start_training` gave it.
    pub attempt: Option<u32>,
}

/// The waiting messages. Shared by the task that makes them and the connection that delivers them.
#[derive(Debug)]
pub struct Outbox {
    dir: PathBuf,
    state: Mutex<State>,
    waiting: watch::Sender<usize>,
}

#[derive(Debug)]
struct State {
    entries: BTreeMap<Place, Entry>,
    /// Never given twice, also when nothing waits any more: the connection remembers how far it has sent.
    next: Place,
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
        let mut entries = BTreeMap::new();
        let mut folders = Vec::new();
        for item in fs::read_dir(dir).map_err(OutboxError::new("read", dir))? {
            let path = item.map_err(OutboxError::new("read", dir))?.path();
            let extension = path.extension().and_then(|extension| extension.to_str());
            match (extension, place_of(&path)) {
                (Some("json"), Some(place)) => match read_entry(dir, place) {
                    Ok(entry) => {
                        entries.insert(place, entry);
                    }
                    Err(message) => set_aside(&path, &message),
                },
                (Some("files"), Some(place)) => folders.push((place, path)),
                (Some("tmp"), _) => remove_quietly(&path),
                _ => {}
            }
        }
        for (place, folder) in folders {
            if !entries.contains_key(&place) {
                remove_folder_quietly(&folder);
            }
        }
        let next = Place(entries.last_key_value().map_or(1, |(last, _)| last.0 + 1));
        Ok(Self {
            dir: dir.to_owned(),
            waiting: watch::Sender::new(entries.len()),
            state: Mutex::new(State { entries, next }),
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
        let place = state.next;
        let entry = self.write(place, message, files)?;
        state.entries.insert(place, entry);
        state.next = Place(place.0 + 1);
        self.give_up_old_checkpoints(&mut state.entries, place);
        self.waiting.send_replace(state.entries.len());
        Ok(place)
    }

    /// The first entry after `place`, or the very first.
    pub fn next_after(&self, place: Option<Place>) -> Option<Entry> {
        let entries = &self.state().entries;
        match place {
            Some(place) => entries
                .range((std::ops::Bound::Excluded(place), std::ops::Bound::Unbounded))
                .next()
                .map(|(_, entry)| entry.clone()),
            None => entries.first_key_value().map(|(_, entry)| entry.clone()),
        }
    }

    /// The entry of this message, if it still waits.
    pub fn find(&self, message: MessageId) -> Option<Entry> {
        self.state()
            .entries
            .values()
            .find(|entry| entry.message.message_id() == Some(message))
            .cloned()
    }

    /// Forgets the message with this id: it was acknowledged, or refused for good. False if it was not there.
    pub fn remove(&self, message: MessageId) -> bool {
        let entries = &mut self.state().entries;
        let found = entries
            .values()
            .find(|entry| entry.message.message_id() == Some(message))
            .map(|entry| entry.place);
        match found {
            Some(place) => {
                entries.remove(&place);
                self.waiting.send_replace(entries.len());
                self.delete(place);
                true
            }
            None => false,
        }
    }

    /// Puts `message` in the place of one that can't be delivered; the files of the old one are dropped.
    ///
    /// # Errors
    ///
    /// The file system refused; the old message stays.
    pub fn replace(&self, place: Place, message: FromWorker) -> Result<(), OutboxError> {
        let entries = &mut self.state().entries;
        if let Some(entry) = entries.get_mut(&place) {
            *entry = self.write(place, message, Vec::new())?;
            remove_folder_quietly(&self.files_folder(place));
        }
        Ok(())
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.state().entries.is_empty()
    }

    /// Waits until nothing waits for delivery any more.
    pub async fn emptied(&self) {
        let mut waiting = self.waiting.subscribe();
        // The sender lives as long as this outbox.
        let _ = waiting.wait_for(|waiting| *waiting == 0).await;
    }

    /// The first job end that waits: its place and its job.
    pub fn undelivered_end(&self) -> Option<(Place, JobId)> {
        self.state()
            .entries
            .values()
            .find_map(|entry| Some((entry.place, ended_job(&entry.message)?.job_id)))
    }

    /// Every job attempt whose end waits for delivery.
    pub fn undelivered_ends(&self) -> Vec<JobAttempt> {
        self.state()
            .entries
            .values()
            .filter_map(|entry| ended_job(&entry.message))
            .collect()
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

    /// A long outage must not fill the disk with checkpoints that newer ones have made worthless. The
    /// first one in line may be on its way already and stays.
    fn give_up_old_checkpoints(&self, entries: &mut BTreeMap<Place, Entry>, newest: Place) {
        let Some(FromWorker::CheckpointSaved(saved)) =
            entries.get(&newest).map(|entry| &entry.message)
        else {
            return;
        };
        let job_id = saved.job_id;
        let waiting: Vec<Place> = entries
            .values()
            .filter(|entry| {
                matches!(&entry.message, FromWorker::CheckpointSaved(other) if other.job_id == job_id)
            })
            .map(|entry| entry.place)
            .collect();
        if waiting.len() > WAITING_CHECKPOINTS {
            entries.remove(&waiting[1]);
            self.delete(waiting[1]);
        }
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

    fn state(&self) -> MutexGuard<'_, State> {
        // It is changed by single calls that cannot stop half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The job attempt that `message` ends, if it is such a message.
pub fn ended_job(message: &FromWorker) -> Option<JobAttempt> {
    let (job_id, attempt) = match message {
        FromWorker::JobCompleted(end) => (end.job_id, end.attempt),
        FromWorker::JobFailed(end) => (end.job_id, end.attempt),
        FromWorker::JobStopped(end) => (end.job_id, end.attempt),
        _ => return None,
    };
    Some(JobAttempt { job_id, attempt })
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
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
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
