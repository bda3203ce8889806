//! Where the bytes of a file come from when they are wanted out of order.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes that can be read at any place.
pub trait ReadAt: Send + Sync {
    /// How many there are.
    fn size_bytes(&self) -> u64;

    /// Fills `into` from `offset` on.
    ///
    /// # Errors
    /// The system's error, and [`io::ErrorKind::UnexpectedEof`] where there are not so many bytes.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
}

/// A file of this machine.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    size_bytes: u64,
}

impl FileSource {
    /// Takes an open file.
    ///
    /// # Errors
    /// The system's error where its size is not told.
    pub fn new(file: File) -> io::Result<Self> {
        let size_bytes = file.metadata()?.len();
        Ok(Self { file, size_bytes })
    }
}

impl ReadAt for FileSource {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }
}
