//! Reads the structure of a GGUF file: metadata and where each tensor lies, every claim checked.
//!
//! Nothing is allocated for a count or a length that the file only claims: each is held against the
//! bytes that are left first, so that no file, however wrong, costs more memory than a small multiple
//! of its own size.

use std::collections::BTreeMap;

use super::blocks::BlockType;

/// A metadata value. Integers of every width are one kind, so are floats.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any integer type.
    Integer(i128),
    /// `f32` or `f64`.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// UTF-8 text.
    String(String),
    /// An array of text.
    Strings(Vec<String>),
    /// An array of integers that fit an `i64`.
    Integers(Vec<i64>),
    /// An array of floats.
    Floats(Vec<f64>),
    /// An array of booleans or of arrays: read over, not kept.
    Ignored,
}

/// Where a tensor lies and what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Row-major shape, outermost dimension first (the file stores it the other way round).
    pub shape: Vec<usize>,
    /// How its values are stored.
    pub block_type: BlockType,
    /// First byte, from the start of the file.
    pub start: usize,
    /// Bytes it takes.
    pub bytes: usize,
}

/// The structure of one file.
#[derive(Debug, Clone, PartialEq)]
pub struct Structure {
    /// Metadata by key.
    pub metadata: BTreeMap<String, Value>,
    /// Tensors by the file's own names.
    pub tensors: BTreeMap<String, TensorInfo>,
}

/// Most dimensions that a tensor may have.
const MAX_DIMENSIONS: u32 = 4;
/// Deepest nesting of arrays in metadata that is read over.
const MAX_NESTING: u32 = 4;

/// Reads the structure out of the bytes of a whole file, or says what is wrong with it.
pub fn read_structure(file: &[u8]) -> Result<Structure, String> {
    let mut cursor = Cursor { bytes: file, at: 0 };
    if cursor.take(4, "magic")? != b"GGUF" {
        return Err("does not begin with GGUF".into());
    }
    let version = cursor.u32("version")?;
    if !(2..=3).contains(&version) {
        return Err(format!(
            "GGUF version {version}: only 2 and 3, little-endian, are read"
        ));
    }
    let tensor_count = cursor.u64("tensor count")?;
    let metadata_count = cursor.u64("metadata count")?;
    let mut metadata = BTreeMap::new();
    for _ in 0..metadata_count {
        let key = cursor.string("metadata key")?;
        let value_type = cursor.u32("metadata type")?;
        let value = cursor
            .value(value_type, 0)
            .map_err(|problem| format!("metadata {key:?}: {problem}"))?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(format!("duplicate key: metadata {key:?} stands twice"));
        }
    }
    let mut infos = Vec::new();
    for _ in 0..tensor_count {
        infos.push(cursor.tensor_info()?);
    }
    let alignment = match metadata.get("general.alignment") {
        None => 32,
        Some(Value::Integer(n)) if (1..=1 << 20).contains(n) && n & (n - 1) == 0 => *n as usize,
        Some(other) => return Err(format!("general.alignment {other:?} is no power of two")),
    };
    let data = cursor.at.next_multiple_of(alignment);
    let mut tensors = BTreeMap::new();
    for info in infos {
        let (name, place) = info.place(data, alignment, file.len())?;
        if tensors.contains_key(&name) {
            return Err(format!("duplicate key: tensor {name:?} stands twice"));
        }
        tensors.insert(name, place);
    }
    check_overlaps(&tensors)?;
    Ok(Structure { metadata, tensors })
}

fn check_overlaps(tensors: &BTreeMap<String, TensorInfo>) -> Result<(), String> {
    let mut by_start: Vec<_> = tensors
        .iter()
        .filter(|(_, tensor)| tensor.bytes > 0)
        .collect();
    by_start.sort_by_key(|(_, tensor)| tensor.start);
    for pair in by_start.windows(2) {
        let ((a, first), (b, second)) = (pair[0], pair[1]);
        if first.start + first.bytes > second.start {
            return Err(format!("overlap: tensors {a:?} and {b:?} share bytes"));
        }
    }
    Ok(())
}

/// A tensor as listed, not yet held against the file's size.
struct Listed {
    name: String,
    shape: Vec<u64>,
    type_id: u32,
    offset: u64,
}

impl Listed {
    fn place(
        self,
        data: usize,
        alignment: usize,
        file_bytes: usize,
    ) -> Result<(String, TensorInfo), String> {
        let Self {
            name,
            shape,
            type_id,
            offset,
        } = self;
        let block_type = BlockType::from_id(type_id).ok_or_else(|| {
            format!(
                "tensor {name:?}: {} is not supported",
                BlockType::name_of(type_id)
            )
        })?;
        let too_large = || format!("tensor {name:?}: shape {shape:?} does not fit the file");
        let sizes: Vec<usize> = shape
            .iter()
            .map(|&n| usize::try_from(n))
            .collect::<Result<_, _>>()
            .map_err(|_| too_large())?;
        let values = sizes
            .iter()
            .try_fold(1usize, |all, &n| all.checked_mul(n))
            .ok_or_else(too_large)?;
        let row = sizes.last().copied().unwrap_or(1);
        if row % block_type.values_per_block() != 0 {
            return Err(format!(
                "tensor {name:?}: rows of {row} values are no whole number of {block_type} blocks"
            ));
        }
        let bytes = (values / block_type.values_per_block())
            .checked_mul(block_type.bytes_per_block())
            .ok_or_else(too_large)?;
        let start = usize::try_from(offset)
            .ok()
            .and_then(|offset| offset.checked_add(data));
        let end = start
            .and_then(|start| start.checked_add(bytes))
            .filter(|&end| end <= file_bytes);
        let (Some(start), Some(_)) = (start, end) else {
            return Err(format!(
                "tensor {name:?}: its bytes lie past the end of the file (cut off?)"
            ));
        };
        if !(start - data).is_multiple_of(alignment) {
            return Err(format!(
                "tensor {name:?}: offset {offset} is not aligned to {alignment}"
            ));
        }
        Ok((
            name,
            TensorInfo {
                shape: sizes,
                block_type,
                start,
                bytes,
            },
        ))
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, count: usize, what: &str) -> Result<&'a [u8], String> {
        if count > self.left() {
            return Err(format!("ends inside its {what}"));
        }
        let taken = &self.bytes[self.at..self.at + count];
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], String> {
        let taken = self.take(N, what)?;
        Ok(taken
            .try_into()
            .expect("take gives as many bytes as asked for"))
    }

    fn u32(&mut self, what: &str) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    fn string(&mut self, what: &str) -> Result<String, String> {
        let length = self.u64(what)?;
        let length = usize::try_from(length).map_err(|_| format!("ends inside its {what}"))?;
        let text = std::str::from_utf8(self.take(length, what)?)
            .map_err(|_| format!("{what} is not UTF-8"))?;
        Ok(text.to_owned())
    }

    fn tensor_info(&mut self) -> Result<Listed, String> {
        let name = self.string("tensor name")?;
        let dimensions = self.u32("tensor dimensions")?;
        if dimensions > MAX_DIMENSIONS {
            return Err(format!("tensor {name:?} claims {dimensions} dimensions"));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            shape.push(self.u64("tensor shape")?);
        }
        shape.reverse();
        Ok(Listed {
            name,
            shape,
            type_id: self.u32("tensor type")?,
            offset: self.u64("tensor offset")?,
        })
    }

    fn value(&mut self, value_type: u32, nesting: u32) -> Result<Value, String> {
        const WHAT: &str = "metadata";
        Ok(match value_type {
            0 => Value::Integer(i128::from(self.array::<1>(WHAT)?[0])),
            1 => Value::Integer(i128::from(i8::from_le_bytes(self.array(WHAT)?))),
            2 => Value::Integer(i128::from(u16::from_le_bytes(self.array(WHAT)?))),
            3 => Value::Integer(i128::from(i16::from_le_bytes(self.array(WHAT)?))),
            4 => Value::Integer(i128::from(self.u32(WHAT)?)),
            5 => Value::Integer(i128::from(i32::from_le_bytes(self.array(WHAT)?))),
            6 => Value::Float(f64::from(f32::from_le_bytes(self.array(WHAT)?))),
            7 => Value::Bool(self.array::<1>(WHAT)?[0] != 0),
            8 => Value::String(self.string(WHAT)?),
            9 => self.array_value(nesting)?,
            10 => Value::Integer(i128::from(self.u64(WHAT)?)),
            11 => Value::Integer(i128::from(i64::from_le_bytes(self.array(WHAT)?))),
            12 => Value::Float(f64::from_le_bytes(self.array(WHAT)?)),
            other => return Err(format!("value type {other} is unknown")),
        })
    }

    fn array_value(&mut self, nesting: u32) -> Result<Value, String> {
        if nesting == MAX_NESTING {
            return Err("arrays are nested too deeply".into());
        }
        let element_type = self.u32("array type")?;
        let count = self.u64("array length")?;
        // The smallest element takes a byte, so a count beyond the bytes left is a lie.
        if count > self.left() as u64 {
            return Err("ends inside an array".into());
        }
        match element_type {
            8 => (0..count)
                .map(|_| self.string("array"))
                .collect::<Result<_, _>>()
                .map(Value::Strings),
            6 | 12 => (0..count)
                .map(|_| match self.value(element_type, nesting)? {
                    Value::Float(x) => Ok(x),
                    other => Err(format!("{other:?} in an array of floats")),
                })
                .collect::<Result<_, String>>()
                .map(Value::Floats),
            7 | 9 => {
                for _ in 0..count {
                    self.value(element_type, nesting + 1)?;
                }
                Ok(Value::Ignored)
            }
            _ => (0..count)
                .map(|_| match self.value(element_type, nesting)? {
                    Value::Integer(n) => i64::try_from(n).map_err(|_| format!("{n} is too large")),
                    other => Err(format!("{other:?} in an array of integers")),
                })
                .collect::<Result<_, String>>()
                .map(Value::Integers),
        }
    }
}
