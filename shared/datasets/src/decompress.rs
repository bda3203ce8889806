//! Files that are packed as a whole: gzip and zstd, unpacked as they are read, with a limit on what comes out.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;
use zstd::stream::read::Decoder;

/// A file may unpack to this many bytes whatever its size …
const FREE_BYTES: u64 = 256 * 1024 * 1024;
/// … and beyond that to so many times its packed size. Text packs to a tenth, much repeated text to a hundredth.
const MAX_RATIO: u64 = 500;
/// zstd's largest window, as a power of two: 128 MiB, what its own tool takes without being asked.
const MAX_WINDOW_LOG: u32 = 27;

/// How a file is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    Gzip,
    Zstd,
}

impl Packing {
    /// By a file's first bytes.
    pub(crate) fn of(start: &[u8]) -> Option<Self> {
        match start {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    /// What `packed` unpacks to.
    pub(crate) fn unpack(self, packed: Box<dyn Read + Send>) -> io::Result<Box<dyn Read + Send>> {
        let taken = Arc::new(AtomicU64::new(0));
        let packed = Counted {
            inner: packed,
            bytes: taken.clone(),
        };
        let inner: Box<dyn Read + Send> = match self {
            Self::Gzip => Box::new(MultiGzDecoder::new(io::BufReader::new(packed))),
            Self::Zstd => {
                let mut decoder = Decoder::new(packed)?;
                decoder.window_log_max(MAX_WINDOW_LOG)?;
                Box::new(decoder)
            }
        };
        Ok(Box::new(Unpacked {
            inner,
            packing: self,
            taken,
            given: 0,
        }))
    }
}

struct Counted {
    inner: Box<dyn Read + Send>,
    bytes: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

struct Unpacked {
    inner: Box<dyn Read + Send>,
    packing: Packing,
    taken: Arc<AtomicU64>,
    given: u64,
}

impl Read for Unpacked {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let name = self.packing.name();
        let count = self.inner.read(into).map_err(|error| {
            let message = format!("the {name} data is damaged: {error}");
            match error.kind() {
                io::ErrorKind::Other
                | io::ErrorKind::InvalidData
                | io::ErrorKind::InvalidInput
                | io::ErrorKind::UnexpectedEof => {
                    io::Error::new(io::ErrorKind::InvalidData, message)
                }
                _ => error,
            }
        })?;
        self.given += count as u64;
        let allowed = FREE_BYTES.max(self.taken.load(Ordering::Relaxed).saturating_mul(MAX_RATIO));
        if self.given > allowed {
            let message = format!(
                "the {name} data unpacks to more than {MAX_RATIO} times its size: that is no data set"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn what_unpacks_to_far_more_than_data_does_is_refused() {
        let bomb = zstd::encode_all(io::repeat(b' ').take(300 << 20), 1).unwrap();
        assert!(bomb.len() < 1 << 20);
        let mut unpacked = Packing::Zstd.unpack(Box::new(Cursor::new(bomb))).unwrap();
        let error = io::copy(&mut unpacked, &mut io::sink()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("unpacks to more than 500 times its size"),
            "{error}"
        );
    }
}
