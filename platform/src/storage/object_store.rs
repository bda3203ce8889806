//! Owns what the platform asks of a store of objects, wherever the bytes lie.

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use trainyard_shared::Secret;

use super::{StorageKey, UploadTarget, UploadTerms};

/// Where objects are kept. An object appears whole or not at all, and what was finished is durable.
#[async_trait]
pub trait ObjectStore: Send + Sync {
    /// Begins a new object, or a new version of one. It can be seen once [`ObjectWriter::finish`] has succeeded.
    async fn create(
        &self,
        key: &StorageKey,
        expected: Expected,
    ) -> Result<Box<dyn ObjectWriter>, StorageError>;

    /// Makes a file of this machine an object, or a new version of one; the file is used up. Its size and digest
    /// are known already.
    async fn put_file(
        &self,
        key: &StorageKey,
        file: &Path,
        content: &StoredObject,
    ) -> Result<(), StorageError>;

    /// Where an object lies on this machine as a file that may be read; none for a store that is elsewhere, or
    /// where there is no such object.
    fn local_path(&self, key: &StorageKey) -> Option<PathBuf>;

    /// Opens an object for reading, wholly or in part.
    async fn open(
        &self,
        key: &StorageKey,
        range: Option<ByteRange>,
    ) -> Result<ObjectReader, StorageError>;

    /// Size and version of an object; [`StorageError::NotFound`] where there is none.
    async fn info(&self, key: &StorageKey) -> Result<ObjectInfo, StorageError>;

    /// SHA-256 of an object's bytes as they are kept now, as 64 lower-case hex digits.
    async fn sha256(&self, key: &StorageKey) -> Result<String, StorageError>;

    /// Removes an object; removing one that does not exist is no error.
    async fn delete(&self, key: &StorageKey) -> Result<(), StorageError>;

    /// All objects whose key lies under `prefix` (a key without its last part, no slash at the end), in order.
    async fn list(&self, prefix: &StorageKey) -> Result<Vec<ObjectInfo>, StorageError>;

    /// Whether the store can be used at the moment.
    async fn check(&self) -> Result<(), StorageError>;

    /// A URL under which anyone who holds it can read the object for a while.
    fn download_url(&self, key: &StorageKey, valid_for: Duration) -> Secret;

    /// A URL under which anyone who holds it can store the object for a while, with at most `most` bytes, by PUT.
    fn open_upload_url(&self, key: &StorageKey, most: u64, valid_for: Duration) -> Secret;

    /// Where and how to send an object of exactly these bytes.
    fn upload_target(
        &self,
        key: &StorageKey,
        terms: &UploadTerms,
        valid_for: Duration,
    ) -> UploadTarget;
}

/// An object that is being written. Dropped before `finish`, it leaves nothing behind.
#[async_trait]
pub trait ObjectWriter: Send {
    /// Adds bytes at the end.
    ///
    /// # Errors
    /// [`StorageError::TooLarge`] as soon as there are more than expected, [`StorageError::Full`] without space.
    async fn write(&mut self, chunk: Bytes) -> Result<(), StorageError>;

    /// Checks length and digest, makes the object durable, and only then visible.
    ///
    /// # Errors
    /// [`StorageError::WrongSize`] and [`StorageError::WrongDigest`] where the bytes are not those expected.
    async fn finish(self: Box<Self>) -> Result<StoredObject, StorageError>;
}

/// What is known beforehand about an object.
#[derive(Debug, Clone)]
pub struct Expected {
    /// More bytes than these are refused.
    pub max_bytes: u64,
    /// The exact size, where it is known.
    pub size_bytes: Option<u64>,
    /// The digest as 64 lower-case hex digits, where it is known.
    pub sha256: Option<String>,
}

impl Expected {
    /// Nothing is known but the largest size allowed.
    pub fn at_most(max_bytes: u64) -> Self {
        Self {
            max_bytes,
            size_bytes: None,
            sha256: None,
        }
    }

    /// Exactly these bytes.
    pub fn exactly(terms: &UploadTerms) -> Self {
        Self {
            max_bytes: terms.size_bytes,
            size_bytes: Some(terms.size_bytes),
            sha256: Some(terms.sha256.clone()),
        }
    }
}

/// An object that has been stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// Its size.
    pub size_bytes: u64,
    /// Digest of its bytes, as 64 lower-case hex digits.
    pub sha256: String,
}

/// What is known of an object without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its key.
    pub key: StorageKey,
    /// Its size.
    pub size_bytes: u64,
    /// When this version of it was stored.
    pub modified: SystemTime,
    /// Differs for every version of the object: an HTTP entity tag without its quotes.
    pub etag: String,
}

/// An open object.
pub struct ObjectReader {
    /// The whole object.
    pub info: ObjectInfo,
    /// First byte that `chunks` yields.
    pub start: u64,
    /// How many bytes `chunks` yields.
    pub length: u64,
    /// The bytes.
    pub chunks: BoxStream<'static, std::io::Result<Bytes>>,
}

/// A part of an object, as an HTTP `Range` header asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteRange {
    /// From the first to the last byte, both included.
    FromTo(u64, u64),
    /// From a byte to the end.
    From(u64),
    /// The last so many bytes.
    Last(u64),
}

impl ByteRange {
    /// Start and length within an object of `size_bytes`.
    ///
    /// # Errors
    /// [`StorageError::RangeNotSatisfiable`] when no byte lies in the range.
    pub fn within(self, size_bytes: u64) -> Result<(u64, u64), StorageError> {
        let (start, end) = match self {
            Self::FromTo(first, last) => (first, last.saturating_add(1).min(size_bytes)),
            Self::From(first) => (first, size_bytes),
            Self::Last(count) => (size_bytes.saturating_sub(count), size_bytes),
        };
        if start >= end {
            return Err(StorageError::RangeNotSatisfiable { size_bytes });
        }
        Ok((start, end - start))
    }
}

/// Why the store did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// There is no such object.
    #[error("no such object")]
    NotFound,
    /// The key is not one.
    #[error("{0}")]
    InvalidKey(&'static str),
    /// More bytes came than are allowed.
    #[error("larger than the {limit_bytes} bytes that are allowed")]
    TooLarge {
        /// The limit.
        limit_bytes: u64,
    },
    /// The size is not the one announced.
    #[error("{found_bytes} bytes came where {expected_bytes} were announced")]
    WrongSize {
        /// The announced size.
        expected_bytes: u64,
        /// The size that came.
        found_bytes: u64,
    },
    /// The bytes are not those announced.
    #[error("the SHA-256 of what came is {found}, announced was {expected}")]
    WrongDigest {
        /// The announced digest.
        expected: String,
        /// The digest of what came.
        found: String,
    },
    /// No byte of the object lies in the range.
    #[error("the range lies outside the object's {size_bytes} bytes")]
    RangeNotSatisfiable {
        /// Size of the object.
        size_bytes: u64,
    },
    /// No space is left. Nothing was kept of the object.
    #[error("no space is left in the object store")]
    Full,
    /// The store itself failed.
    #[error("{operation} {key}: {source}")]
    Io {
        /// What was being done.
        operation: &'static str,
        /// To which object.
        key: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl StorageError {
    /// Tells a full disk and a missing file from other failures of the system.
    pub(super) fn from_io(
        operation: &'static str,
        key: &StorageKey,
        source: std::io::Error,
    ) -> Self {
        use std::io::ErrorKind;
        match source.kind() {
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::Full,
            _ => Self::Io {
                operation,
                key: key.to_string(),
                source,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_to_the_object() {
        assert_eq!(ByteRange::FromTo(0, 0).within(10).unwrap(), (0, 1));
        assert_eq!(ByteRange::FromTo(4, 99).within(10).unwrap(), (4, 6));
        assert_eq!(ByteRange::FromTo(4, u64::MAX).within(10).unwrap(), (4, 6));
        assert_eq!(ByteRange::From(9).within(10).unwrap(), (9, 1));
        assert_eq!(ByteRange::Last(3).within(10).unwrap(), (7, 3));
        assert_eq!(ByteRange::Last(30).within(10).unwrap(), (0, 10));
    }

    #[test]
    fn ranges_without_a_byte_are_refused() {
        for range in [
            ByteRange::From(10),
            ByteRange::FromTo(5, 4),
            ByteRange::Last(0),
        ] {
            assert!(range.within(10).is_err(), "{range:?}");
        }
        assert!(ByteRange::From(0).within(0).is_err());
    }
}
