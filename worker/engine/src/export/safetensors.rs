//! Writes weights into safetensors files, one tensor after the other, in one file or in shards with their index.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::FloatType;
use crate::EngineError;

/// A tensor that is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedTensor {
    /// Its name in the file.
    pub name: String,
    /// Its shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// The type of its values in the file.
    pub float_type: FloatType,
}

impl PlannedTensor {
    fn bytes(&self) -> u64 {
        (self.shape.iter().product::<usize>() * self.float_type.bytes()) as u64
    }
}

/// Values that are converted and written at once.
const CHUNK: usize = 1 << 16;
/// Bytes at which the place of a file's first tensor is aligned.
const ALIGNMENT: usize = 8;

/// Writes `model.safetensors`, or `model-00001-of-0000N.safetensors`, … and `model.safetensors.index.json` where a
/// file would become larger than `max_shard_bytes` (a larger tensor gets a file of its own). `values` gives each
/// tensor's values, row-major, and is asked in the order of `tensors`.
///
/// # Errors
/// [`EngineError::Io`] naming the file; [`EngineError::InvalidCheckpoint`] naming a tensor with a value that is not
/// finite; whatever `values` answers.
pub(super) fn write_weights(
    folder: &Path,
    tensors: &[PlannedTensor],
    max_shard_bytes: u64,
    mut values: impl FnMut(&PlannedTensor) -> Result<Vec<f32>, EngineError>,
) -> Result<(), EngineError> {
    let shards = shards(tensors, max_shard_bytes);
    if let [_] = shards.as_slice() {
        return write_file(&folder.join("model.safetensors"), tensors, &mut values);
    }
    let mut weight_map = Map::new();
    for (i, range) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-{:05}.safetensors", i + 1, shards.len());
        write_file(&folder.join(&name), &tensors[range.clone()], &mut values)?;
        let names = tensors[range.clone()].iter();
        weight_map.extend(names.map(|tensor| (tensor.name.clone(), json!(name))));
    }
    let total: u64 = tensors.iter().map(PlannedTensor::bytes).sum();
    let index = json!({"metadata": {"total_size": total}, "weight_map": weight_map});
    super::model_folder::write_json(&folder.join("model.safetensors.index.json"), &index)
}

/// Runs of tensors, each of at most `max_bytes`, or of one tensor.
fn shards(tensors: &[PlannedTensor], max_bytes: u64) -> Vec<Range<usize>> {
    let mut shards = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (i, tensor) in tensors.iter().enumerate() {
        if i > start && bytes + tensor.bytes() > max_bytes {
            shards.push(start..i);
            (start, bytes) = (i, 0);
        }
        bytes += tensor.bytes();
    }
    shards.push(start..tensors.len());
    shards
}

fn write_file(
    path: &Path,
    tensors: &[PlannedTensor],
    values: &mut impl FnMut(&PlannedTensor) -> Result<Vec<f32>, EngineError>,
) -> Result<(), EngineError> {
    let failed = |error: io::Error| EngineError::io("write", path, error);
    let mut file = BufWriter::new(File::create_new(path).map_err(failed)?);
    file.write_all(&safetensors_header(tensors))
        .map_err(failed)?;
    let mut bytes = Vec::with_capacity(CHUNK * 4);
    for tensor in tensors {
        let values = values(tensor)?;
        for chunk in values.chunks(CHUNK) {
            bytes.clear();
            if let Err(place) = tensor.float_type.encode(chunk, &mut bytes) {
                return Err(not_finite(path, tensor, chunk[place]));
            }
            file.write_all(&bytes).map_err(failed)?;
        }
    }
    let file = file
        .into_inner()
        .map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(failed)
}

/// How a safetensors file begins: the length of its header, and there names, types, shapes and places of all tensors.
pub fn safetensors_header(tensors: &[PlannedTensor]) -> Vec<u8> {
    let mut entries = Map::from_iter([("__metadata__".to_owned(), json!({"format": "pt"}))]);
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.bytes();
        let entry = json!({
            "dtype": tensor.float_type.safetensors_name(),
            "shape": tensor.shape,
            "data_offsets": [start, end],
        });
        entries.insert(tensor.name.clone(), entry);
        start = end;
    }
    let mut text = Value::Object(entries).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(ALIGNMENT), b' ');
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.extend(text);
    header
}

fn not_finite(path: &Path, tensor: &PlannedTensor, value: f32) -> EngineError {
    let PlannedTensor {
        name, float_type, ..
    } = tensor;
    let message = if value.is_finite() {
        format!(
            "tensor {name} holds {value}, which {float_type} cannot hold; choose another type (f32, bf16)"
        )
    } else {
        format!("tensor {name} holds values that are not finite")
    };
    EngineError::InvalidCheckpoint {
        path: path.to_owned(),
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::SafetensorsFile;

    fn planned(name: &str, shape: &[usize], float_type: FloatType) -> PlannedTensor {
        PlannedTensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            float_type,
        }
    }

    #[test]
    fn tensors_of_every_type_come_back_as_they_were_rounded() {
        let folder = tempfile::tempdir().unwrap();
        let tensors = [
            planned("a", &[2, 2], FloatType::F32),
            planned("b", &[3], FloatType::F16),
            planned("c", &[3], FloatType::Bf16),
        ];
        write_weights(folder.path(), &tensors, 1 << 20, |tensor| {
            Ok(match tensor.name.as_str() {
                "a" => vec![0.1, 0.2, 0.3, 0.4],
                _ => vec![1.0, 1.001, -3.0],
            })
        })
        .unwrap();
        let file = SafetensorsFile::open(&folder.path().join("model.safetensors")).unwrap();
        assert_eq!(file.tensor("a").unwrap(), [0.1, 0.2, 0.3, 0.4]);
        let half = half::f16::from_f32(1.001).to_f32();
        assert_eq!(file.tensor("b").unwrap(), [1.0, half, -3.0]);
        assert_eq!(file.tensor("c").unwrap(), [1.0, 1.0, -3.0]);
    }

    #[test]
    fn a_shard_is_never_larger_than_allowed_but_for_a_single_tensor() {
        let four = |name: &str| planned(name, &[4], FloatType::F16);
        let tensors = [
            four("a"),
            four("b"),
            planned("large", &[100], FloatType::F32),
            four("c"),
        ];
        assert_eq!(shards(&tensors, 16), [0..2, 2..3, 3..4]);
        assert_eq!(shards(&tensors, 15), [0..1, 1..2, 2..3, 3..4]);
        let one = std::iter::once(0..4).collect::<Vec<_>>();
        assert_eq!(shards(&tensors, 1 << 20), one);
    }

    #[test]
    fn a_value_that_is_not_finite_in_the_type_is_refused_by_name() {
        for (value, float_type) in [(f32::NAN, FloatType::F32), (7e4, FloatType::F16)] {
            let folder = tempfile::tempdir().unwrap();
            let tensors = [planned("a.weight", &[2], float_type)];
            let failed = write_weights(folder.path(), &tensors, 64, |_| Ok(vec![1.0, value]));
            let error = failed.unwrap_err().to_string();
            assert!(error.contains("a.weight"), "{error}");
        }
    }
}
