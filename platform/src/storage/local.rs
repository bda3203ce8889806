//! Objects as files below one folder.
//!
//! Writing: (1) the bytes go to a hidden file beside the target, so that the final rename stays within one file
//! system; (2) length and digest are checked; (3) the file is synced; (4) it is renamed over the target; (5) the
//! folder and those above it are synced. A crash leaves at most a hidden file, which the next start removes.
//!
//! Known gap: someone who can write to the folder itself could exchange a folder for a link between the check
//! and the use of a path; the folder is made for the platform's user alone (0700).

mod writer;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;
use trainyard_shared::Secret;

use super::object_store::{
    ByteRange, Expected, ObjectInfo, ObjectReader, ObjectStore, ObjectWriter, StorageError,
    StoredObject,
};
use super::{StorageKey, UploadTarget, UploadTerms, UrlSigner};
use writer::{LocalWriter, is_partial};

/// Size of the pieces in which a file is read.
const READ_CHUNK_BYTES: usize = 64 << 10;

/// Tells how much space is left for the file system that holds a path.
type FreeSpace = fn(&Path) -> io::Result<u64>;

/// Objects as files below one folder of this machine.
#[derive(Clone)]
pub struct LocalStore {
    root: PathBuf,
    signer: UrlSigner,
    free_space: FreeSpace,
}

impl LocalStore {
    /// Opens the store, making its folder where it is absent, and removes what interrupted writes left behind.
    ///
    /// # Errors
    /// When the folder cannot be made or read.
    pub fn open(root: &Path, signer: UrlSigner) -> io::Result<Self> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(root)?;
        let root = root.canonicalize()?;
        let mut removed = 0;
        visit_files(&root, &mut |path| {
            if is_partial(path) {
                fs::remove_file(path)?;
                removed += 1;
            }
            Ok(())
        })?;
        if removed > 0 {
            tracing::info!(files = removed, "interrupted uploads removed");
        }
        Ok(Self {
            root,
            signer,
            free_space,
        })
    }

    /// The path of a key, after making sure that no folder on the way is a link.
    fn path(&self, key: &StorageKey) -> Result<PathBuf, StorageError> {
        let mut path = self.root.clone();
        for part in key.as_str().split('/') {
            path.push(part);
            match fs::symlink_metadata(&path) {
                Ok(found) if found.file_type().is_symlink() => {
                    tracing::error!(path = %path.display(), "a link within the object store is not followed");
                    return Err(StorageError::InvalidKey("the key leads over a link"));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                    return Err(StorageError::NotFound);
                }
                Err(error) => return Err(StorageError::from_io("look at", key, error)),
            }
        }
        Ok(path)
    }

    /// Copies a file that lies on another file system, and removes it.
    async fn copy_in(
        &self,
        key: &StorageKey,
        file: &Path,
        content: &StoredObject,
    ) -> Result<(), StorageError> {
        let failed = |error| StorageError::from_io("read what becomes", key, error);
        let expected = Expected {
            max_bytes: content.size_bytes,
            size_bytes: Some(content.size_bytes),
            sha256: Some(content.sha256.clone()),
        };
        let mut writer = self.create(key, expected).await?;
        let source = tokio::fs::File::open(file).await.map_err(failed)?;
        let mut chunks = ReaderStream::with_capacity(source, READ_CHUNK_BYTES);
        while let Some(chunk) = chunks.next().await {
            writer.write(chunk.map_err(failed)?).await?;
        }
        writer.finish().await?;
        tokio::fs::remove_file(file).await.map_err(failed)
    }

    fn info_of(&self, key: &StorageKey, found: &fs::Metadata) -> Result<ObjectInfo, StorageError> {
        if !found.is_file() {
            return Err(StorageError::NotFound);
        }
        let modified = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let etag = format!(
            "{:x}-{:x}-{:x}-{:x}",
            found.ino(),
            found.size(),
            found.mtime(),
            found.mtime_nsec()
        );
        Ok(ObjectInfo {
            key: key.clone(),
            size_bytes: found.len(),
            modified,
            etag,
        })
    }
}

#[async_trait]
impl ObjectStore for LocalStore {
    async fn create(
        &self,
        key: &StorageKey,
        expected: Expected,
    ) -> Result<Box<dyn ObjectWriter>, StorageError> {
        let (store, key) = (self.clone(), key.clone());
        let writer = blocking(move || LocalWriter::begin(&store, &key, expected)).await?;
        Ok(Box::new(writer))
    }

    async fn put_file(
        &self,
        key: &StorageKey,
        file: &Path,
        content: &StoredObject,
    ) -> Result<(), StorageError> {
        let (store, wanted, source) = (self.clone(), key.clone(), file.to_owned());
        let moved = blocking(move || writer::move_in(&store, &wanted, &source)).await?;
        if !moved {
            self.copy_in(key, file, content).await?;
        }
        Ok(())
    }

    fn local_path(&self, key: &StorageKey) -> Option<PathBuf> {
        self.path(key).ok().filter(|path| path.is_file())
    }

    async fn open(
        &self,
        key: &StorageKey,
        range: Option<ByteRange>,
    ) -> Result<ObjectReader, StorageError> {
        let (store, wanted) = (self.clone(), key.clone());
        let (file, info) = blocking(move || {
            let failed = |error| StorageError::from_io("open", &wanted, error);
            let file = fs::File::open(store.path(&wanted)?).map_err(failed)?;
            let info = store.info_of(&wanted, &file.metadata().map_err(failed)?)?;
            Ok((file, info))
        })
        .await?;
        let (start, length) = match range {
            Some(range) => range.within(info.size_bytes)?,
            None => (0, info.size_bytes),
        };
        let mut file = tokio::fs::File::from_std(file);
        file.set_max_buf_size(READ_CHUNK_BYTES);
        if start > 0 {
            file.seek(io::SeekFrom::Start(start))
                .await
                .map_err(|error| StorageError::from_io("seek in", key, error))?;
        }
        let chunks = ReaderStream::with_capacity(file.take(length), READ_CHUNK_BYTES).boxed();
        Ok(ObjectReader {
            info,
            start,
            length,
            chunks,
        })
    }

    async fn info(&self, key: &StorageKey) -> Result<ObjectInfo, StorageError> {
        let (store, key) = (self.clone(), key.clone());
        blocking(move || {
            let found = fs::symlink_metadata(store.path(&key)?)
                .map_err(|error| StorageError::from_io("look at", &key, error))?;
            store.info_of(&key, &found)
        })
        .await
    }

    async fn sha256(&self, key: &StorageKey) -> Result<String, StorageError> {
        let (store, key) = (self.clone(), key.clone());
        blocking(move || {
            let failed = |error| StorageError::from_io("read", &key, error);
            let mut file = fs::File::open(store.path(&key)?).map_err(failed)?;
            let (mut digest, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
            loop {
                match file.read(&mut buffer).map_err(failed)? {
                    0 => return Ok(hex::encode(digest.finalize())),
                    count => digest.update(&buffer[..count]),
                }
            }
        })
        .await
    }

    async fn delete(&self, key: &StorageKey) -> Result<(), StorageError> {
        let (store, key) = (self.clone(), key.clone());
        blocking(move || {
            let path = store.path(&key)?;
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(StorageError::from_io("delete", &key, error));
                }
                _ => {}
            }
            // Folders that are empty now go too; the first one that is not stops this.
            let folders = path
                .ancestors()
                .skip(1)
                .take_while(|folder| *folder != store.root);
            for folder in folders {
                if fs::remove_dir(folder).is_err() {
                    break;
                }
            }
            Ok(())
        })
        .await
    }

    async fn list(&self, prefix: &StorageKey) -> Result<Vec<ObjectInfo>, StorageError> {
        let (store, prefix) = (self.clone(), prefix.clone());
        blocking(move || {
            let mut found = Vec::new();
            let visited = visit_files(&store.path(&prefix)?, &mut |path| {
                let relative = path
                    .strip_prefix(&store.root)
                    .ok()
                    .and_then(Path::to_str)
                    .unwrap_or_default();
                if let Ok(key) = StorageKey::parse(relative) {
                    found.push(store.info_of(&key, &fs::symlink_metadata(path)?));
                }
                Ok(())
            });
            visited.map_err(|error| StorageError::from_io("list", &prefix, error))?;
            let mut objects = found.into_iter().collect::<Result<Vec<_>, _>>()?;
            objects.sort_by(|left, right| left.key.cmp(&right.key));
            Ok(objects)
        })
        .await
    }

    async fn check(&self) -> Result<(), StorageError> {
        let probe = StorageKey::parse("readiness-probe")?;
        let mut writer = self.create(&probe, Expected::at_most(64)).await?;
        // Dropped without being finished: this shows that files can be made and leaves none.
        writer.write(Bytes::from_static(b"ready")).await
    }

    fn download_url(&self, key: &StorageKey, valid_for: Duration) -> Secret {
        self.signer.download_url(key, valid_for, SystemTime::now())
    }

    fn open_upload_url(&self, key: &StorageKey, most: u64, valid_for: Duration) -> Secret {
        self.signer
            .open_upload_url(key, most, valid_for, SystemTime::now())
    }

    fn upload_target(
        &self,
        key: &StorageKey,
        terms: &UploadTerms,
        valid_for: Duration,
    ) -> UploadTarget {
        self.signer
            .upload_target(key, terms, valid_for, SystemTime::now())
    }
}

/// Space left for the platform's user on the file system that holds `path`.
fn free_space(path: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(path)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Calls `visit` for each file below `folder`, without following links. A folder that is absent holds none.
fn visit_files(folder: &Path, visit: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(());
        }
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            visit_files(&entry.path(), visit)?;
        } else if kind.is_file() {
            visit(&entry.path())?;
        }
    }
    Ok(())
}

async fn blocking<T, F>(work: F) -> Result<T, StorageError>
where
    F: FnOnce() -> Result<T, StorageError> + Send + 'static,
    T: Send + 'static,
{
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| {
            Err(StorageError::Io {
                operation: "run",
                key: String::new(),
                source: io::Error::other(error),
            })
        })
}

#[cfg(test)]
mod tests;
