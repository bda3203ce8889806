//! Writes a GGUF file: metadata, the list of tensors, then one tensor's values after the other.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::{Value, WrittenType};
use crate::EngineError;

/// A tensor that is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenTensor {
    /// Its name in the file.
    pub name: String,
    /// Row-major shape, outermost dimension first (the file stores it the other way round).
    pub shape: Vec<usize>,
    /// How its values are stored; rows must be whole blocks.
    pub written_type: WrittenType,
}

/// Version of the format.
const VERSION: u32 = 3;
/// Where tensors begin, without `general.alignment`.
const ALIGNMENT: usize = 32;
/// Values that are converted and written at once: whole blocks of every type.
const CHUNK: usize = 1 << 16;

impl WrittenTensor {
    fn bytes(&self) -> usize {
        let block_type = self.written_type.block_type();
        let values: usize = self.shape.iter().product();
        values / block_type.values_per_block() * block_type.bytes_per_block()
    }
}

/// Writes a new file and syncs it. `values` gives the values of the tensor with that index, row-major, and is asked
/// in order.
///
/// Integers are stored as `u32`, those of arrays as `i32`, floats as `f32`: what readers expect of every key that
/// the engine writes.
///
/// # Errors
/// [`EngineError::Io`] naming the file; [`EngineError::InvalidCheckpoint`] for a tensor with a value that is not
/// finite and for metadata that the format cannot hold; whatever `values` answers.
pub fn write_file(
    path: &Path,
    metadata: &[(String, Value)],
    tensors: &[WrittenTensor],
    mut values: impl FnMut(usize) -> Result<Vec<f32>, EngineError>,
) -> Result<(), EngineError> {
    let failed = |error: io::Error| EngineError::io("write", path, error);
    let invalid = |message: String| EngineError::InvalidCheckpoint {
        path: path.to_owned(),
        message,
    };
    let head = head(metadata, tensors).map_err(invalid)?;
    let mut file = BufWriter::new(File::create_new(path).map_err(failed)?);
    file.write_all(&head).map_err(failed)?;
    let mut bytes = Vec::new();
    for (i, tensor) in tensors.iter().enumerate() {
        for chunk in values(i)?.chunks(CHUNK) {
            bytes.clear();
            if let Err(place) = tensor.written_type.encode(chunk, &mut bytes) {
                return Err(invalid(not_finite(tensor, chunk[place])));
            }
            file.write_all(&bytes).map_err(failed)?;
        }
        let padding = tensor.bytes().next_multiple_of(ALIGNMENT) - tensor.bytes();
        file.write_all(&[0; ALIGNMENT][..padding]).map_err(failed)?;
    }
    let file = file
        .into_inner()
        .map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(failed)
}

fn not_finite(tensor: &WrittenTensor, value: f32) -> String {
    let WrittenTensor {
        name, written_type, ..
    } = tensor;
    if value.is_finite() {
        format!("tensor {name} holds values that {written_type} cannot hold; choose f32 or bf16")
    } else {
        format!("tensor {name} holds values that are not finite")
    }
}

/// Everything in front of the values.
fn head(metadata: &[(String, Value)], tensors: &[WrittenTensor]) -> Result<Vec<u8>, String> {
    let mut head = b"GGUF".to_vec();
    head.extend(VERSION.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        put_text(&mut head, key);
        put_value(&mut head, value).map_err(|problem| format!("metadata {key:?}: {problem}"))?;
    }
    let mut offset = 0;
    for tensor in tensors {
        put_text(&mut head, &tensor.name);
        head.extend((tensor.shape.len() as u32).to_le_bytes());
        for &size in tensor.shape.iter().rev() {
            head.extend((size as u64).to_le_bytes());
        }
        head.extend(tensor.written_type.id().to_le_bytes());
        head.extend((offset as u64).to_le_bytes());
        offset += tensor.bytes().next_multiple_of(ALIGNMENT);
    }
    head.resize(head.len().next_multiple_of(ALIGNMENT), 0);
    Ok(head)
}

fn put_value(out: &mut Vec<u8>, value: &Value) -> Result<(), String> {
    const U32: u32 = 4;
    const I32: u32 = 5;
    const F32: u32 = 6;
    const BOOL: u32 = 7;
    const STRING: u32 = 8;
    const ARRAY: u32 = 9;
    let array = |out: &mut Vec<u8>, element_type: u32, count: usize| {
        out.extend(ARRAY.to_le_bytes());
        out.extend(element_type.to_le_bytes());
        out.extend((count as u64).to_le_bytes());
    };
    match value {
        Value::Integer(n) => {
            let n = u32::try_from(*n).map_err(|_| format!("{n} does not fit 32 bits"))?;
            out.extend(U32.to_le_bytes());
            out.extend(n.to_le_bytes());
        }
        Value::Float(x) => {
            out.extend(F32.to_le_bytes());
            out.extend((*x as f32).to_le_bytes());
        }
        Value::Bool(yes) => {
            out.extend(BOOL.to_le_bytes());
            out.push(u8::from(*yes));
        }
        Value::String(text) => {
            out.extend(STRING.to_le_bytes());
            put_text(out, text);
        }
        Value::Strings(items) => {
            array(out, STRING, items.len());
            items.iter().for_each(|item| put_text(out, item));
        }
        Value::Integers(items) => {
            array(out, I32, items.len());
            for n in items {
                let n = i32::try_from(*n).map_err(|_| format!("{n} does not fit 32 bits"))?;
                out.extend(n.to_le_bytes());
            }
        }
        Value::Floats(items) => {
            array(out, F32, items.len());
            out.extend(items.iter().flat_map(|x| (*x as f32).to_le_bytes()));
        }
        Value::Ignored => return Err("has a kind that is not written".into()),
    }
    Ok(())
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
