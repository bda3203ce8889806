//! A whole file as bytes in memory, read by the system only where it is touched.

use std::fs::File;
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;

use crate::engine::EngineError;

/// A file mapped for reading. An empty file gives no bytes.
#[derive(Debug)]
pub struct MappedFile {
    map: Option<Mmap>,
}

impl MappedFile {
    /// Maps the file.
    ///
    /// # Errors
    /// [`EngineError::Io`] where it cannot be opened or mapped.
    pub fn open(path: &Path) -> Result<Self, EngineError> {
        let failed = |error| EngineError::io("read", path, error);
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(failed(std::io::Error::other("not a regular file")));
        }
        if metadata.len() == 0 {
            return Ok(Self { map: None });
        }
        // SAFETY: the map is read only and private. Model files are written aside and renamed into
        // place, never changed where they stand, so the bytes stay as they are while mapped.
        let map = unsafe { Mmap::map(&file) }.map_err(failed)?;
        Ok(Self { map: Some(map) })
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}
