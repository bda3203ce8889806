//! An object on its way into a folder: written aside, checked, synced, renamed.

use async_trait::async_trait;
use bytes::Bytes;
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tokio::io::AsyncWriteExt;

use super::super::StorageKey;
use super::super::object_store::{Expected, ObjectWriter, StorageError, StoredObject};
use super::{FreeSpace, LocalStore, blocking};

/// Space that uploads leave free, so that the database on the same disk can still record what is deleted.
pub(super) const RESERVED_BYTES: u64 = 8 << 20;
/// How much is written between two looks at the free space.
const SPACE_CHECK_BYTES: u64 = 1 << 20;
/// How often a folder is made again that was removed under our feet.
const MAX_CREATE_TRIES: u32 = 8;
/// How the hidden file of an object that is still being written ends.
const PARTIAL_SUFFIX: &str = ".partial";

/// Writes one object.
pub(super) struct LocalWriter {
    key: StorageKey,
    pub(super) file: tokio::fs::File,
    pub(super) partial: Partial,
    target: PathBuf,
    root: PathBuf,
    expected: Expected,
    digest: Sha256,
    size_bytes: u64,
    space_checked_at: u64,
    free_space: FreeSpace,
}

impl LocalWriter {
    /// Begins an object, unless the disk is too full for what is known of its size.
    pub(super) fn begin(
        store: &LocalStore,
        key: &StorageKey,
        expected: Expected,
    ) -> Result<Self, StorageError> {
        let target = store.path(key)?;
        let failed = |error| StorageError::from_io("create", key, error);
        let (path, file) = create_partial(&target, key).map_err(failed)?;
        let writer = Self {
            key: key.clone(),
            file: tokio::fs::File::from_std(file),
            partial: Partial { path: Some(path) },
            target,
            root: store.root.clone(),
            expected,
            digest: Sha256::new(),
            size_bytes: 0,
            space_checked_at: 0,
            free_space: store.free_space,
        };
        writer.check_space(writer.expected.size_bytes.unwrap_or(0))?;
        Ok(writer)
    }

    /// Refuses to go on when fewer than `needed_bytes` could be written without touching the reserve.
    fn check_space(&self, needed_bytes: u64) -> Result<(), StorageError> {
        let folder = self.target.parent().unwrap_or(&self.target);
        let free = (self.free_space)(folder)
            .map_err(|error| StorageError::from_io("measure", &self.key, error))?;
        if free < needed_bytes.saturating_add(RESERVED_BYTES) {
            Err(StorageError::Full)
        } else {
            Ok(())
        }
    }

    fn failed(&self, operation: &'static str) -> impl FnOnce(io::Error) -> StorageError + use<> {
        let key = self.key.clone();
        move |error| StorageError::from_io(operation, &key, error)
    }

    fn check_expected(&self, sha256: &str) -> Result<(), StorageError> {
        if let Some(expected_bytes) = self
            .expected
            .size_bytes
            .filter(|size| *size != self.size_bytes)
        {
            return Err(StorageError::WrongSize {
                expected_bytes,
                found_bytes: self.size_bytes,
            });
        }
        match &self.expected.sha256 {
            Some(expected) if expected != sha256 => Err(StorageError::WrongDigest {
                expected: expected.clone(),
                found: sha256.to_owned(),
            }),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl ObjectWriter for LocalWriter {
    async fn write(&mut self, chunk: Bytes) -> Result<(), StorageError> {
        let size_bytes = self.size_bytes + chunk.len() as u64;
        if size_bytes > self.expected.max_bytes {
            return Err(StorageError::TooLarge {
                limit_bytes: self.expected.max_bytes,
            });
        }
        if size_bytes >= self.space_checked_at + SPACE_CHECK_BYTES {
            self.check_space(chunk.len() as u64)?;
            self.space_checked_at = size_bytes;
        }
        let failed = self.failed("write");
        self.file.write_all(&chunk).await.map_err(failed)?;
        self.digest.update(&chunk);
        self.size_bytes = size_bytes;
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> Result<StoredObject, StorageError> {
        let failed = self.failed("flush");
        self.file.flush().await.map_err(failed)?;
        let sha256 = hex::encode(self.digest.clone().finalize());
        self.check_expected(&sha256)?;
        let failed = self.failed("sync");
        self.file.sync_all().await.map_err(failed)?;
        blocking(move || {
            let failed = self.failed("rename");
            self.partial.rename_to(&self.target).map_err(failed)?;
            let failed = self.failed("sync the folder of");
            sync_folders(&self.target, &self.root).map_err(failed)?;
            Ok(StoredObject {
                size_bytes: self.size_bytes,
                sha256,
            })
        })
        .await
    }
}

/// Makes a file an object by giving it its name; false where it lies on another file system. It is synced first:
/// what has a name is whole.
pub(super) fn move_in(
    store: &LocalStore,
    key: &StorageKey,
    file: &Path,
) -> Result<bool, StorageError> {
    let target = store.path(key)?;
    let failed = |operation| move |error| StorageError::from_io(operation, key, error);
    fs::File::open(file)
        .and_then(|file| file.sync_all())
        .map_err(failed("sync what becomes"))?;
    let folder = target
        .parent()
        .expect("a key has at least one part below the root");
    let mut tries = 0;
    loop {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(failed("create"))?;
        match fs::rename(file, &target) {
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => return Ok(false),
            // A folder that a deletion has just removed, because it was empty, is made again.
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < MAX_CREATE_TRIES => {
                tries += 1;
            }
            renamed => {
                renamed.map_err(failed("rename"))?;
                break;
            }
        }
    }
    sync_folders(&target, &store.root).map_err(failed("sync the folder of"))?;
    Ok(true)
}

/// The hidden file of an unfinished object; removed when dropped.
pub(super) struct Partial {
    path: Option<PathBuf>,
}

impl Partial {
    /// Makes the file visible under its name.
    fn rename_to(&mut self, target: &Path) -> io::Result<()> {
        let path = self.path.as_ref().expect("a file is renamed once");
        fs::rename(path, target)?;
        self.path = None;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if let Some(path) = self.path.take()
            && let Err(error) = fs::remove_file(&path)
        {
            tracing::warn!(path = %path.display(), %error, "unfinished file not removed");
        }
    }
}

/// Makes the hidden file beside `target`, with the folders on the way. A folder that a deletion removes in
/// between, because it was empty, is made again.
fn create_partial(target: &Path, key: &StorageKey) -> io::Result<(PathBuf, fs::File)> {
    let folder = target
        .parent()
        .expect("a key has at least one part below the root");
    let name = format!(
        ".{}.{:016x}{PARTIAL_SUFFIX}",
        key.file_name(),
        rand::random::<u64>()
    );
    let path = folder.join(name);
    let mut tries = 0;
    loop {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        match fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
        {
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < MAX_CREATE_TRIES => {
                tries += 1
            }
            opened => return Ok((path, opened?)),
        }
    }
}

/// Makes the entries of `target` and of the folders above it durable, up to `root`.
fn sync_folders(target: &Path, root: &Path) -> io::Result<()> {
    for folder in target.ancestors().skip(1) {
        fs::File::open(folder)?.sync_all()?;
        if folder == root {
            break;
        }
    }
    Ok(())
}

/// Whether a file is one that an interrupted write has left.
pub(super) fn is_partial(path: &Path) -> bool {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    name.starts_with('.') && name.ends_with(PARTIAL_SUFFIX)
}
