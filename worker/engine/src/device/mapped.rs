//! A file mapped into memory, read only.

use std::{fs::File, io, ops::Deref, path::Path};

use memmap2::Mmap;

/// The bytes of a file, read from disk as they are touched.
///
/// The file must not be changed or cut while it is mapped; models and caches are written aside and renamed, so
/// that a mapped file never changes under its reader.
#[derive(Debug)]
pub struct MappedFile(Mmap);

impl MappedFile {
    /// Maps a file.
    ///
    /// # Errors
    /// The system's error if it cannot be opened or mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::of(&File::open(path)?)
    }

    /// Maps an open file.
    ///
    /// # Errors
    /// The system's error if it cannot be mapped.
    pub fn of(file: &File) -> io::Result<Self> {
        // SAFETY: the map is read only, and files are never changed in place by this program (see above).
        Ok(Self(unsafe { Mmap::map(file)? }))
    }

    /// Gives the memory back that what was read takes up; what is read later comes from disk again.
    pub fn release(&self) {
        #[cfg(unix)]
        // SAFETY: the map is read only and backed by its file, so dropped pages come back as they were.
        let released = unsafe { self.0.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
        #[cfg(unix)]
        if let Err(error) = released {
            tracing::debug!(%error, "memory of a mapped file is not given back");
        }
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
