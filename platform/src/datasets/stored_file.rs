//! A stored object as a file that is read at any place, by threads that may wait.

use std::io;
use std::sync::Arc;

use futures_util::StreamExt;
use tokio::runtime::Handle;
use trainyard_datasets::ReadAt;

use crate::storage::{ByteRange, ObjectStore, StorageError, StorageKey};

/// An object of the store. It must not be read on a thread that runs asynchronous work.
pub(super) struct StoredFile {
    storage: Arc<dyn ObjectStore>,
    key: StorageKey,
    size_bytes: u64,
    runtime: Handle,
}

impl StoredFile {
    /// The object, which has `size_bytes`. To be made where asynchronous work runs.
    pub(super) fn new(storage: Arc<dyn ObjectStore>, key: StorageKey, size_bytes: u64) -> Self {
        Self {
            storage,
            key,
            size_bytes,
            runtime: Handle::current(),
        }
    }

    async fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let last = offset + into.len() as u64 - 1;
        let opened = self
            .storage
            .open(&self.key, Some(ByteRange::FromTo(offset, last)))
            .await;
        let mut object = opened.map_err(|error| match error {
            StorageError::Io { source, .. } => source,
            other => io::Error::other(other),
        })?;
        let mut filled = 0;
        while let Some(chunk) = object.chunks.next().await {
            let chunk = chunk?;
            let end = filled + chunk.len();
            into.get_mut(filled..end)
                .ok_or(io::ErrorKind::UnexpectedEof)?
                .copy_from_slice(&chunk);
            filled = end;
        }
        if filled == into.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}

impl ReadAt for StoredFile {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if into.is_empty() {
            return Ok(());
        }
        self.runtime.block_on(self.read(offset, into))
    }
}
