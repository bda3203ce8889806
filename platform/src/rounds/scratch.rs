//! Files that are on their way: uploads until they are checked, and what is being merged. Nothing in the folder
//! outlives the process; the next start empties it.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use tempfile::{NamedTempFile, TempDir, TempPath};
use tokio::io::AsyncWriteExt;

use crate::storage::{ObjectStore, StorageError, StorageKey};

/// Name of the folder in the data folder.
const FOLDER: &str = "scratch";

/// So much of the disk is never used for files on their way: the database must still be able to write.
pub const RESERVED_BYTES: u64 = 64 << 20;

/// The folder of files that are on their way.
#[derive(Debug, Clone)]
pub struct Scratch {
    folder: PathBuf,
    free_space: FreeSpace,
}

/// Tells how many bytes are left on the file system that holds a path.
type FreeSpace = fn(&Path) -> io::Result<u64>;

/// A stored object as a file of this machine.
#[derive(Debug)]
pub enum LocalFile {
    /// Where the store itself keeps it.
    Kept(PathBuf),
    /// A copy, removed when dropped.
    Copied(TempPath),
}

impl LocalFile {
    /// Its path.
    pub fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Copied(path) => path,
        }
    }
}

impl Scratch {
    /// The folder within the platform's data folder, empty.
    ///
    /// # Errors
    /// When it cannot be emptied or made.
    pub fn open(data_dir: &Path) -> io::Result<Self> {
        let folder = data_dir.join(FOLDER);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)?;
        Ok(Self { folder, free_space })
    }

    /// The same on a disk with so much space.
    #[cfg(test)]
    pub(crate) fn on_a_disk_with(self, free_space: FreeSpace) -> Self {
        Self { free_space, ..self }
    }

    /// Bytes that are left for the platform's user on the disk.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn free_bytes(&self) -> io::Result<u64> {
        (self.free_space)(&self.folder)
    }

    /// Whether so many bytes can be written beside what is never used.
    ///
    /// # Errors
    /// As [`Scratch::free_bytes`].
    pub fn has_room_for(&self, bytes: u64) -> io::Result<bool> {
        Ok(self.free_bytes()? >= bytes.saturating_add(RESERVED_BYTES))
    }

    /// A new file, removed when dropped.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn file(&self) -> io::Result<NamedTempFile> {
        NamedTempFile::new_in(&self.folder)
    }

    /// A new folder, removed when dropped.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn folder(&self) -> io::Result<TempDir> {
        TempDir::new_in(&self.folder)
    }

    /// An object as a file: where the store keeps it, or a copy where that is not on this machine.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn local(
        &self,
        storage: &dyn ObjectStore,
        key: &StorageKey,
    ) -> Result<LocalFile, StorageError> {
        if let Some(path) = storage.local_path(key) {
            return Ok(LocalFile::Kept(path));
        }
        let failed = |source| StorageError::Io {
            operation: "copy",
            key: key.to_string(),
            source,
        };
        let mut object = storage.open(key, None).await?;
        let (file, path) = self.file().map_err(failed)?.into_parts();
        let mut file = tokio::fs::File::from_std(file);
        while let Some(chunk) = object.chunks.next().await {
            file.write_all(&chunk.map_err(failed)?)
                .await
                .map_err(failed)?;
        }
        file.flush().await.map_err(failed)?;
        Ok(LocalFile::Copied(path))
    }
}

fn free_space(path: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(path)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}
