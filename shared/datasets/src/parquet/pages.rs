//! Pages of a Parquet column, each looked at before it is unpacked and before its values are read.
//!
//! The Parquet reader allocates what a page's header claims. Here the header is read first: a page, a dictionary and
//! all pages that are held at once have limits, and so has the number of values that belong to one row.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parquet::basic::{Encoding, PageType, Type as PhysicalType};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

use super::MAX_ELEMENTS;
use super::thrift::{I32, STRUCT, ThriftError, Walker};
use crate::source::ReadAt;

/// The largest page, unpacked: the longest row, and its levels.
const MAX_PAGE_BYTES: usize = crate::MAX_ROW_BYTES + 4 * 1024 * 1024;
/// The largest dictionary, and its most values.
const MAX_DICTIONARY_BYTES: usize = 32 * 1024 * 1024;
const MAX_DICTIONARY_VALUES: u32 = 2_000_000;
/// All pages and dictionaries that are held at once.
const MAX_HELD_BYTES: usize = 192 * 1024 * 1024;
/// Page headers hold examples of values and may be long; longer ones are refused.
const MAX_HEADER_BYTES: usize = 1024 * 1024;
/// Most values of a page whose lengths are stored as differences: they are all unpacked at once.
const MAX_DELTA_VALUES: u32 = 4_000_000;

fn refused(message: impl Into<String>) -> ParquetError {
    ParquetError::General(message.into())
}

/// That the file cannot be read, as against bad content, which unpackers report as errors of reading too.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct SourceFault(pub(super) io::Error);

fn source_fault(error: io::Error) -> io::Error {
    io::Error::other(SourceFault(error))
}

/// A file as the Parquet reader wants it.
pub(super) struct Chunks {
    source: Arc<dyn ReadAt>,
}

impl Chunks {
    pub(super) fn new(source: Arc<dyn ReadAt>) -> Self {
        Self { source }
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.source.size_bytes()
    }

    /// The bytes from `start` on; `length` is known to be small.
    pub(super) fn bytes(&self, start: u64, length: u64) -> Result<Bytes> {
        let end = start.checked_add(length);
        if end.is_none_or(|end| end > self.size_bytes()) {
            return Err(refused("a part lies behind the file's end"));
        }
        let length = usize::try_from(length).map_err(|_| refused("a part is too large"))?;
        let mut bytes = vec![0; length];
        self.source
            .read_at(start, &mut bytes)
            .map_err(source_fault)?;
        Ok(bytes.into())
    }
}

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.size_bytes()
    }
}

impl ChunkReader for Chunks {
    type T = ReadFrom;

    fn get_read(&self, start: u64) -> Result<ReadFrom> {
        Ok(ReadFrom {
            source: self.source.clone(),
            at: start,
            ahead: Bytes::new(),
        })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if length > MAX_PAGE_BYTES + MAX_HEADER_BYTES {
            return Err(refused(format!(
                "a part of {length} bytes is over the limit"
            )));
        }
        self.bytes(start, length as u64)
    }
}

/// Reads a file from a place on, a few bytes ahead.
pub(super) struct ReadFrom {
    source: Arc<dyn ReadAt>,
    at: u64,
    ahead: Bytes,
}

impl Read for ReadFrom {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        const AHEAD_BYTES: u64 = 512;
        if self.ahead.is_empty() {
            let left = self.source.size_bytes().saturating_sub(self.at);
            let mut ahead = vec![0; left.min(AHEAD_BYTES) as usize];
            let read = self.source.read_at(self.at, &mut ahead);
            read.map_err(source_fault)?;
            self.at += ahead.len() as u64;
            self.ahead = ahead.into();
        }
        let count = into.len().min(self.ahead.len());
        into[..count].copy_from_slice(&self.ahead.split_to(count));
        Ok(count)
    }
}

/// What the pages of all columns of a row group may take up together.
#[derive(Debug, Clone)]
pub(super) struct PageBudget(Arc<AtomicUsize>);

impl PageBudget {
    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicUsize::new(0)))
    }

    /// Takes `bytes` in place of `instead`, which were taken before.
    fn take(&self, bytes: usize, instead: usize) -> Result<()> {
        let before = self.0.fetch_sub(instead, Ordering::Relaxed) - instead;
        self.0.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > MAX_HELD_BYTES {
            return Err(refused(format!(
                "its pages take up more than {MAX_HELD_BYTES} bytes at once"
            )));
        }
        Ok(())
    }
}

/// The pages of one column chunk.
pub(super) struct CheckedPages {
    inner: SerializedPageReader<Chunks>,
    source: Arc<Chunks>,
    budget: PageBudget,
    physical: PhysicalType,
    max_def_level: i16,
    max_rep_level: i16,
    /// Where the next page's header begins, and where the chunk ends.
    at: u64,
    end: u64,
    /// Bytes of the page that is held.
    held: usize,
    /// Values since the last row began.
    run: usize,
}

/// What a page's header says.
#[derive(Debug, Default)]
struct PageHeader {
    kind: i64,
    unpacked_bytes: i64,
    packed_bytes: i64,
    header_bytes: usize,
}

impl CheckedPages {
    pub(super) fn new(
        source: &Arc<Chunks>,
        chunk: &ColumnChunkMetaData,
        rows: usize,
        budget: &PageBudget,
    ) -> Result<Self> {
        let is_sound = chunk.data_page_offset() >= 0
            && chunk
                .dictionary_page_offset()
                .is_none_or(|offset| offset >= 0)
            && chunk.compressed_size() >= 0;
        if !is_sound {
            return Err(refused("a column's place is negative"));
        }
        let (at, length) = chunk.byte_range();
        let end = at.checked_add(length);
        let Some(end) = end.filter(|end| *end <= source.size_bytes()) else {
            return Err(refused("a column lies behind the file's end"));
        };
        Ok(Self {
            inner: SerializedPageReader::new(source.clone(), chunk, rows, None)?,
            source: source.clone(),
            budget: budget.clone(),
            physical: chunk.column_type(),
            max_def_level: chunk.column_descr().max_def_level(),
            max_rep_level: chunk.column_descr().max_rep_level(),
            at,
            end,
            held: 0,
            run: 0,
        })
    }

    /// Looks at the headers up to that of the next page that the reader takes.
    fn look_ahead(&mut self) -> Result<()> {
        while self.at < self.end {
            let header = self.header()?;
            let sizes = (
                usize::try_from(header.unpacked_bytes),
                usize::try_from(header.packed_bytes),
            );
            let (Ok(unpacked), Ok(packed)) = sizes else {
                return Err(refused("a page's size is negative"));
            };
            let is_dictionary = header.kind == PageType::DICTIONARY_PAGE as i64;
            let limit = if is_dictionary {
                MAX_DICTIONARY_BYTES
            } else {
                MAX_PAGE_BYTES
            };
            if unpacked > limit || packed > limit {
                return Err(refused(format!(
                    "a page of {} bytes is over the limit of {limit}",
                    unpacked.max(packed)
                )));
            }
            self.at += (header.header_bytes + packed) as u64;
            if self.at > self.end {
                return Err(refused("a page lies behind its column's end"));
            }
            if is_dictionary {
                // It stays; its values are views into it, and each has a place in a list.
                self.budget.take(unpacked, 0)?;
                return Ok(());
            }
            if header.kind != PageType::INDEX_PAGE as i64 {
                self.budget.take(unpacked, self.held)?;
                self.held = unpacked;
                return Ok(());
            }
        }
        Ok(())
    }

    /// The header of the next page, read in ever larger parts.
    fn header(&self) -> Result<PageHeader> {
        let left = self.end - self.at;
        let mut size = 512;
        loop {
            let bytes = self.source.bytes(self.at, left.min(size as u64))?;
            match page_header(&bytes) {
                Ok(header) => return Ok(header),
                Err(ThriftError::TooShort) if size < MAX_HEADER_BYTES && (size as u64) < left => {
                    size *= 8;
                }
                Err(_) => return Err(refused("a page's header is damaged")),
            }
        }
    }

    /// Refuses a page whose values would take up far more than its bytes.
    fn check(&mut self, page: &Page) -> Result<()> {
        let list_limit = || refused(format!("a row has more than {MAX_ELEMENTS} list elements"));
        match page {
            Page::DictionaryPage {
                buf, num_values, ..
            } => {
                let least = match self.physical {
                    PhysicalType::BYTE_ARRAY => 4,
                    _ => 1,
                };
                let claimed = *num_values as usize * least;
                if claimed > 8 * buf.len() + 8 || *num_values > MAX_DICTIONARY_VALUES {
                    return Err(refused(format!(
                        "a dictionary of {num_values} values is refused"
                    )));
                }
                self.budget.take(*num_values as usize * 32, 0)
            }
            Page::DataPage {
                buf,
                num_values,
                encoding,
                rep_level_encoding,
                def_level_encoding,
                ..
            } => {
                let mut rest: &[u8] = buf;
                if self.max_rep_level > 0 {
                    let levels = v1_levels(&mut rest, *rep_level_encoding)?;
                    self.count(levels, *num_values).ok_or_else(list_limit)?;
                }
                if self.max_def_level > 0 {
                    v1_levels(&mut rest, *def_level_encoding)?;
                }
                self.check_values(*encoding, rest, *num_values)
            }
            Page::DataPageV2 {
                buf,
                num_values,
                encoding,
                def_levels_byte_len,
                rep_levels_byte_len,
                ..
            } => {
                let (rep, def) = (*rep_levels_byte_len as usize, *def_levels_byte_len as usize);
                let too_short = || refused("a page is shorter than its levels");
                if self.max_rep_level > 0 {
                    let levels = buf.get(..rep).ok_or_else(too_short)?;
                    self.count(levels, *num_values).ok_or_else(list_limit)?;
                }
                let values = rep.checked_add(def).and_then(|start| buf.get(start..));
                self.check_values(*encoding, values.ok_or_else(too_short)?, *num_values)
            }
        }
    }

    /// Refuses encodings by which few bytes stand for many.
    fn check_values(&self, encoding: Encoding, values: &[u8], num_values: u32) -> Result<()> {
        match encoding {
            Encoding::DELTA_BYTE_ARRAY if self.max_rep_level > 0 => Err(refused(
                "lists of strings in the encoding DELTA_BYTE_ARRAY are not read",
            )),
            Encoding::DELTA_BYTE_ARRAY | Encoding::DELTA_LENGTH_BYTE_ARRAY
                if !values.is_empty() =>
            {
                // Block size, number of its parts, number of values.
                let mut walker = Walker::new(values);
                let count = (0..3).try_fold(0, |_, _| walker.varint());
                let allowed = u64::from(num_values.min(MAX_DELTA_VALUES));
                match count {
                    Ok(count) if count <= allowed => Ok(()),
                    _ => Err(refused("a page's lengths are damaged")),
                }
            }
            _ => Ok(()),
        }
    }

    /// Goes over repetition levels; none where one row has too many.
    fn count(&mut self, levels: &[u8], num_values: u32) -> Option<()> {
        let width = u32::from(self.max_rep_level.cast_unsigned()).ilog2() as usize + 1;
        let mut left = num_values as usize;
        let mut walker = Walker::new(levels);
        while left > 0 {
            // What is wrong with the levels themselves, the reader says.
            let Ok(run) = walker.varint() else { break };
            let count = usize::try_from(run >> 1).ok()?;
            if run & 1 == 0 {
                let level = walker.take(width.div_ceil(8)).unwrap_or(&[0]);
                let count = count.min(left);
                left -= count;
                self.run = if level.iter().all(|byte| *byte == 0) {
                    count.min(1)
                } else {
                    self.run + count
                };
                if self.run > MAX_ELEMENTS {
                    return None;
                }
            } else {
                let Some(packed) = count
                    .checked_mul(width)
                    .and_then(|bytes| walker.take(bytes))
                else {
                    break;
                };
                let levels = (count * 8).min(left);
                for level in 0..levels {
                    let bit = |bit: usize| packed[bit / 8] >> (bit % 8) & 1 == 1;
                    let is_start = !(level * width..(level + 1) * width).any(bit);
                    self.run = if is_start { 1 } else { self.run + 1 };
                    if self.run > MAX_ELEMENTS {
                        return None;
                    }
                }
                left -= levels;
            }
        }
        Some(())
    }
}

/// The levels that stand before the values of a page of version 1; `rest` goes on behind them.
fn v1_levels<'a>(rest: &mut &'a [u8], encoding: Encoding) -> Result<&'a [u8]> {
    if encoding != Encoding::RLE {
        return Err(refused("levels in an encoding other than RLE are not read"));
    }
    let too_short = || refused("a page is shorter than its levels");
    let (length, behind) = rest.split_first_chunk().ok_or_else(too_short)?;
    let length = u32::from_le_bytes(*length) as usize;
    let (levels, behind) = behind.split_at_checked(length).ok_or_else(too_short)?;
    *rest = behind;
    Ok(levels)
}

/// Source: `PageHeader` in <https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift>.
fn page_header(bytes: &[u8]) -> std::result::Result<PageHeader, ThriftError> {
    let mut walker = Walker::new(bytes);
    let mut header = PageHeader::default();
    let mut last = 0;
    while let Some(field) = walker.field(last)? {
        last = field.id;
        match (field.id, field.kind) {
            (1, I32) => header.kind = walker.zigzag()?,
            (2, I32) => header.unpacked_bytes = walker.zigzag()?,
            (3, I32) => header.packed_bytes = walker.zigzag()?,
            (1..=3, _) | (5 | 7 | 8, 0..STRUCT) => return Err(ThriftError::Invalid),
            (_, kind) => walker.skip(kind)?,
        }
    }
    header.header_bytes = walker.position();
    Ok(header)
}

impl Iterator for CheckedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        self.look_ahead()?;
        let page = self.inner.get_next_page()?;
        if let Some(page) = &page {
            self.check(page)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        Err(refused("pages are not skipped here"))
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        // The header that the reader looks at must have been looked at here.
        Ok(self.at >= self.end)
    }
}
