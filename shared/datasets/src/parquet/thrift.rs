//! As much of Thrift's compact protocol as is needed to walk over a Parquet file's headers without believing the
//! sizes in them.
//!
//! Source: <https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md>

/// Deepest nesting of structs and lists.
const MAX_DEPTH: usize = 16;

/// Why the bytes cannot be walked over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThriftError {
    /// They end too early.
    TooShort,
    /// They are no Thrift.
    Invalid,
}

/// A field of a struct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) id: i16,
    pub(super) kind: u8,
}

/// Type codes.
pub(super) const I32: u8 = 5;
pub(super) const LIST: u8 = 9;
pub(super) const STRUCT: u8 = 12;

/// Walks over bytes.
#[derive(Debug)]
pub(super) struct Walker<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Walker<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes that were walked over.
    pub(super) const fn position(&self) -> usize {
        self.at
    }

    /// The next field of a struct whose last field had the id `last`; none at the struct's end.
    pub(super) fn field(&mut self, last: i16) -> Result<Option<Field>, ThriftError> {
        let byte = self.byte()?;
        let (delta, kind) = (byte >> 4, byte & 0x0f);
        if kind == 0 {
            return Ok(None);
        }
        let id = if delta == 0 {
            i16::try_from(self.zigzag()?).map_err(|_| ThriftError::Invalid)?
        } else {
            last.checked_add(i16::from(delta))
                .ok_or(ThriftError::Invalid)?
        };
        Ok(Some(Field { id, kind }))
    }

    /// An integer of any width.
    pub(super) fn zigzag(&mut self) -> Result<i64, ThriftError> {
        let value = self.varint()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// The beginning of a list: number and type of its elements. No more than there are bytes.
    pub(super) fn list(&mut self) -> Result<(usize, u8), ThriftError> {
        let byte = self.byte()?;
        let count = match byte >> 4 {
            15 => usize::try_from(self.varint()?).map_err(|_| ThriftError::Invalid)?,
            short => usize::from(short),
        };
        if count > self.bytes.len() - self.at {
            return Err(ThriftError::TooShort);
        }
        Ok((count, byte & 0x0f))
    }

    /// Walks over the value of a field.
    pub(super) fn skip(&mut self, kind: u8) -> Result<(), ThriftError> {
        self.skip_at(kind, 0)
    }

    fn skip_at(&mut self, kind: u8, depth: usize) -> Result<(), ThriftError> {
        if depth > MAX_DEPTH {
            return Err(ThriftError::Invalid);
        }
        match kind {
            // A boolean field has its value in its type.
            1 | 2 => Ok(()),
            3 => self.pass(1),
            4..=6 => self.varint().map(|_| ()),
            7 => self.pass(8),
            8 => {
                let length = self.varint()?;
                self.pass(usize::try_from(length).map_err(|_| ThriftError::Invalid)?)
            }
            9 | 10 => {
                let (count, kind) = self.list()?;
                (0..count).try_for_each(|_| self.skip_element(kind, depth))
            }
            11 => {
                let count = self.varint()?;
                if count == 0 {
                    return Ok(());
                }
                let kinds = self.byte()?;
                if count > (self.bytes.len() - self.at) as u64 {
                    return Err(ThriftError::TooShort);
                }
                (0..count).try_for_each(|_| {
                    self.skip_element(kinds >> 4, depth)?;
                    self.skip_element(kinds & 0x0f, depth)
                })
            }
            12 => {
                let mut last = 0;
                while let Some(field) = self.field(last)? {
                    self.skip_at(field.kind, depth + 1)?;
                    last = field.id;
                }
                Ok(())
            }
            _ => Err(ThriftError::Invalid),
        }
    }

    /// In lists a boolean takes a byte.
    fn skip_element(&mut self, kind: u8, depth: usize) -> Result<(), ThriftError> {
        match kind {
            1 | 2 => self.pass(1),
            kind => self.skip_at(kind, depth + 1),
        }
    }

    fn byte(&mut self) -> Result<u8, ThriftError> {
        let byte = *self.bytes.get(self.at).ok_or(ThriftError::TooShort)?;
        self.at += 1;
        Ok(byte)
    }

    fn pass(&mut self, count: usize) -> Result<(), ThriftError> {
        if count > self.bytes.len() - self.at {
            return Err(ThriftError::TooShort);
        }
        self.at += count;
        Ok(())
    }

    /// The next `count` bytes; none where there are not so many.
    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..)?.get(..count)?;
        self.at += count;
        Some(taken)
    }

    /// An unsigned integer.
    pub(super) fn varint(&mut self) -> Result<u64, ThriftError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ThriftError::Invalid)
    }
}
