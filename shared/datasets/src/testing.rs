//! What the tests of all streams share: the same result however the bytes come.

use std::fmt::Debug;
use std::io::{BufReader, Cursor};

/// A file whose bytes come in chunks.
pub type Chunks = BufReader<Cursor<Vec<u8>>>;

/// What `read` makes of a file, which must be the same in chunks of every size.
pub fn in_chunks_of_any_size<T: PartialEq + Debug>(file: &[u8], read: impl Fn(Chunks) -> T) -> T {
    let whole = read(chunks_of(file.len().max(1), file));
    for bytes in 1..file.len() {
        assert_eq!(read(chunks_of(bytes, file)), whole, "chunks of {bytes}");
    }
    whole
}

/// A file whose bytes come in chunks of so many.
pub fn chunks_of(bytes: usize, file: &[u8]) -> Chunks {
    BufReader::with_capacity(bytes, Cursor::new(file.to_vec()))
}
