//! One safetensors file, mapped and checked as a whole before any of it is used.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::EngineError;
use crate::device::MappedFile;
use crate::export::FloatType;
use crate::gguf::BlockType;

/// A file of named tensors.
#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    file: MappedFile,
    data_start: usize,
    tensors: BTreeMap<String, Entry>,
    metadata: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Entry {
    dtype: Dtype,
    shape: Vec<usize>,
    start: usize,
    end: usize,
}

impl SafetensorsFile {
    /// Maps the file and checks its header against its bytes: lengths, shapes, overlaps, holes, names.
    ///
    /// # Errors
    /// [`EngineError::InvalidModel`] naming the file and what is wrong with it.
    pub fn open(path: &Path) -> Result<Self, EngineError> {
        let file = MappedFile::open(path).map_err(|error| EngineError::io("read", path, error))?;
        let invalid = |message: String| EngineError::InvalidModel {
            path: path.to_owned(),
            message,
        };
        if let Some(header) = header_of(&file) {
            check_entries(header, file.len()).map_err(invalid)?;
        }
        let (header_bytes, header) =
            SafeTensors::read_metadata(&file).map_err(|error| invalid(reason(&error, &file)))?;
        let data = 8 + header_bytes;
        let entry = |name: &String| {
            let info = header.info(name)?;
            let (start, end) = info.data_offsets;
            let entry = Entry {
                dtype: info.dtype,
                shape: info.shape.clone(),
                start: data + start,
                end: data + end,
            };
            Some((name.clone(), entry))
        };
        let tensors = header.offset_keys().iter().filter_map(entry).collect();
        let metadata = header
            .metadata()
            .iter()
            .flatten()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        Ok(Self {
            path: path.to_owned(),
            file,
            data_start: data,
            tensors,
            metadata,
        })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the memory back that tensors take up which were read.
    pub fn release_memory(&self) {
        self.file.release();
    }

    /// Names of all tensors, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The file's own remarks, as `format`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// A tensor's shape, if the file holds it.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|entry| entry.shape.as_slice())
    }

    /// All names with the type and place of their values, in the order in which the file holds them.
    pub(crate) fn layout(&self) -> Vec<(&str, Dtype, Range<usize>)> {
        let mut layout: Vec<_> = self
            .tensors
            .iter()
            .map(|(name, entry)| (name.as_str(), entry.dtype, entry.start..entry.end))
            .collect();
        layout.sort_by_key(|(_, _, place)| (place.start, place.end));
        layout
    }

    /// Everything in front of the tensors' values: the header with its length.
    pub(crate) fn head(&self) -> &[u8] {
        &self.file[..self.data_start]
    }

    /// Bytes of the file.
    pub fn size_bytes(&self) -> u64 {
        self.file.len() as u64
    }

    /// A row of 32-bit whole numbers as it is stored, little-endian; none where the file holds no such tensor.
    ///
    /// # Errors
    /// [`EngineError::InvalidModel`] where it is of another type or has more than one dimension.
    pub(crate) fn int32_row(&self, name: &str) -> Result<Option<&[u8]>, EngineError> {
        let Some(entry) = self.tensors.get(name) else {
            return Ok(None);
        };
        if entry.dtype == Dtype::I32 && entry.shape.len() == 1 {
            return Ok(Some(&self.file[entry.start..entry.end]));
        }
        Err(EngineError::InvalidModel {
            path: self.path.clone(),
            message: format!(
                "tensor {name} is {:?} {:?}, and I32 of one dimension is expected",
                entry.dtype, entry.shape
            ),
        })
    }

    /// The type of a tensor's values, if the file holds it and the type is one that is read.
    pub fn float_type(&self, name: &str) -> Option<FloatType> {
        match self.tensors.get(name)?.dtype {
            Dtype::F32 => Some(FloatType::F32),
            Dtype::F16 => Some(FloatType::F16),
            Dtype::BF16 => Some(FloatType::Bf16),
            _ => None,
        }
    }

    /// The type of a tensor's values as the file names it, also where it is none that is read.
    pub fn type_name(&self, name: &str) -> Option<String> {
        self.tensors.get(name).map(|entry| entry.dtype.to_string())
    }

    /// Which bytes of the file a tensor's values take up.
    pub fn place(&self, name: &str) -> Option<Range<u64>> {
        let entry = self.tensors.get(name)?;
        Some(entry.start as u64..entry.end as u64)
    }

    /// A tensor's values as `f32`, row-major.
    ///
    /// # Errors
    /// [`EngineError::MissingTensor`], or [`EngineError::InvalidModel`] where it is neither F32, F16
    /// nor BF16.
    pub fn tensor(&self, name: &str) -> Result<Vec<f32>, EngineError> {
        let (block_type, bytes) = self.stored(name)?;
        Ok(block_type.dequantise(bytes))
    }

    /// A tensor's values as they are stored, row-major.
    ///
    /// # Errors
    /// As [`SafetensorsFile::tensor`].
    pub fn stored(&self, name: &str) -> Result<(BlockType, &[u8]), EngineError> {
        let entry = self
            .tensors
            .get(name)
            .ok_or_else(|| EngineError::MissingTensor {
                name: name.to_owned(),
            })?;
        let block_type = match entry.dtype {
            Dtype::F32 => BlockType::F32,
            Dtype::F16 => BlockType::F16,
            Dtype::BF16 => BlockType::Bf16,
            other => {
                return Err(EngineError::InvalidModel {
                    path: self.path.clone(),
                    message: format!(
                        "tensor {name}: type {other:?} is not supported (F32, F16 and BF16 are)"
                    ),
                });
            }
        };
        Ok((block_type, &self.file[entry.start..entry.end]))
    }
}

/// What the format's own reader found, in words for people.
fn reason(error: &SafeTensorError, file: &[u8]) -> String {
    match error {
        SafeTensorError::HeaderTooSmall => {
            format!("incomplete or corrupt: only {} bytes", file.len())
        }
        SafeTensorError::HeaderTooLarge => "corrupt: its header claims to be over 100 MB".into(),
        SafeTensorError::InvalidHeaderLength => {
            "incomplete or corrupt: cut off inside its header".into()
        }
        SafeTensorError::MetadataIncompleteBuffer => NOT_ALL_BYTES.into(),
        SafeTensorError::TensorInvalidInfo | SafeTensorError::ValidationOverflow => {
            "corrupt: a tensor's size does not match shape and dtype".into()
        }
        SafeTensorError::InvalidOffset(name) => {
            format!(
                "corrupt: overlap or hole: tensor {name} does not begin where the one before it ends"
            )
        }
        other => format!("corrupt: {other}"),
    }
}

const NOT_ALL_BYTES: &str =
    "incomplete or corrupt: its tensors do not take up exactly the bytes that are there";

/// The longest header that the format's own reader takes, in bytes.
const LONGEST_HEADER: usize = 100_000_000;

/// Most tensors of a file: hundreds of times what models have, and little memory.
const MAX_TENSORS: usize = 100_000;

/// The header's bytes, if they are all there and not too many.
fn header_of(file: &[u8]) -> Option<&[u8]> {
    let (length, rest) = file.split_first_chunk()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    rest.get(..length)
        .filter(|header| header.len() <= LONGEST_HEADER)
}

/// Refuses what the format's own reader does not. It lets the last of two tensors of one name win, while other readers
/// take the first; and it adds to the places that a header claims before it compares them with the file's length, which
/// overflows where they are made for it.
fn check_entries(header: &[u8], file_bytes: usize) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Places {
        data_offsets: Option<(u64, u64)>,
    }

    struct Entries(u64);
    impl<'de> Visitor<'de> for Entries {
        type Value = Result<(), String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object of tensors")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut seen = HashSet::new();
            let mut sound = Ok(());
            while let Some(name) = map.next_key::<String>()? {
                let end = if name == "__metadata__" {
                    map.next_value::<IgnoredAny>()?;
                    0
                } else {
                    let places: Places = map.next_value()?;
                    places.data_offsets.map_or(0, |(_, end)| end)
                };
                if end > self.0 {
                    sound = Err(NOT_ALL_BYTES.to_owned());
                }
                if seen.contains(&name) {
                    sound = Err(format!(
                        "corrupt: duplicate key: tensor {name} stands twice"
                    ));
                }
                seen.insert(name);
                if seen.len() > MAX_TENSORS {
                    return Err(A::Error::custom(format!("more than {MAX_TENSORS} tensors")));
                }
            }
            Ok(sound)
        }
    }
    let mut reader = serde_json::Deserializer::from_slice(header);
    reader
        .deserialize_map(Entries(file_bytes as u64))
        .map_err(|error| format!("corrupt: {error}"))?
}
