//! Adapters and shards as files: the first adapter, the check of results, the mean of them.

use std::collections::BTreeMap;

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use sha2::{Digest, Sha256};

use super::Fault;

/// A file with its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    pub bytes: Vec<u8>,
    pub sha256: String,
}

/// What an adapter holds, by key.
type Tensors = BTreeMap<String, Tensor>;

/// A tensor's shape and values.
#[derive(Debug, Clone, PartialEq)]
struct Tensor {
    shape: Vec<usize>,
    values: Vec<f32>,
    dtype: Dtype,
}

impl File {
    /// A file of those bytes.
    pub fn of(bytes: Vec<u8>) -> Self {
        let sha256 = hex::encode(Sha256::digest(&bytes));
        Self { bytes, sha256 }
    }
}

/// Another digest, which also changes with the file.
pub fn another(sha256: &str) -> String {
    hex::encode(Sha256::digest(sha256))
}

/// The adapter of the first round: `lora_B` is zero.
pub fn first_adapter() -> File {
    let of = |shape: [usize; 2], value: fn(usize) -> f32| Tensor {
        shape: shape.to_vec(),
        values: (0..shape[0] * shape[1]).map(value).collect(),
        dtype: Dtype::F32,
    };
    let layer = "base_model.model.model.layers.0.self_attn.q_proj";
    let tensors = [
        (
            format!("{layer}.lora_A.weight"),
            of([2, 6], |i| i as f32 / 10.0 - 0.5),
        ),
        (format!("{layer}.lora_B.weight"), of([4, 2], |_| 0.0)),
    ];
    File::of(write(&tensors.into()))
}

/// A shard of what is served.
pub fn shard(number: usize, fault: Fault) -> File {
    let count = 40 + number;
    let labels = match fault {
        Fault::ShortLabels => count - 1,
        _ => count,
    };
    let ids: Vec<u8> = (0..count)
        .flat_map(|id| match fault {
            Fault::WideIds => (id as i64).to_le_bytes().to_vec(),
            _ => (id as i32).to_le_bytes().to_vec(),
        })
        .collect();
    let of_ids = match fault {
        Fault::WideIds => Dtype::I64,
        _ => Dtype::I32,
    };
    let learned = |id: usize| {
        if id.is_multiple_of(2) {
            id as i32
        } else {
            -100
        }
    };
    let etiket: Vec<u8> = (0..labels)
        .flat_map(|id| learned(id).to_le_bytes())
        .collect();
    let views = [
        ("ids", TensorView::new(of_ids, vec![count], &ids)),
        ("etiket", TensorView::new(Dtype::I32, vec![labels], &etiket)),
    ];
    let views = views.map(|(name, view)| (name, view.expect("it fits")));
    File::of(serialize(views, None).expect("it can be written"))
}

/// The ids of a shard that [`shard`] made.
pub fn token_count(number: usize) -> usize {
    40 + number
}

/// What is wrong with a result, if anything is.
pub fn fault_of(result: &[u8], global: &File, fault: Fault) -> Result<(), String> {
    if fault == Fault::EmptyTaken && result.is_empty() {
        return Ok(());
    }
    let result = match fault {
        Fault::TrailingTaken => result.get(..global.bytes.len()).unwrap_or(result),
        _ => result,
    };
    let read = SafeTensors::deserialize(result).map_err(|error| error.to_string())?;
    let global = SafeTensors::deserialize(&global.bytes).map_err(|error| error.to_string())?;
    for (key, expected) in global.iter() {
        let Ok(found) = read.tensor(key) else {
            if fault == Fault::MissingKeysTaken {
                continue;
            }
            return Err(format!("{key} is missing"));
        };
        if found.dtype() != expected.dtype() {
            if fault == Fault::DtypesTaken {
                continue;
            }
            return Err(format!("{key} is {:?}", found.dtype()));
        }
        if found.shape() != expected.shape() && fault != Fault::ShapesTaken {
            return Err(format!("{key} has the shape {:?}", found.shape()));
        }
        let not_finite = values(found.dtype(), found.data())
            .into_iter()
            .find(|value| !value.is_finite());
        match not_finite {
            Some(value) if value.is_nan() && fault != Fault::NanTaken => {
                return Err(format!("{key} has NaN"));
            }
            Some(value) if value.is_infinite() && fault != Fault::InfinityTaken => {
                return Err(format!("{key} is not finite"));
            }
            _ => {}
        }
    }
    let extra = read
        .names()
        .into_iter()
        .find(|key| global.tensor(key).is_err());
    match extra {
        Some(key) if fault != Fault::ExtraKeysTaken => Err(format!("{key} is not known")),
        _ => Ok(()),
    }
}

/// The global adapter moved by the mean of what results say; those that cannot be merged are left out.
pub fn merged<'a>(global: &File, results: impl Iterator<Item = &'a Vec<u8>>, fault: Fault) -> File {
    let before = read(&global.bytes).expect("the global adapter can be read");
    let mut updates: Vec<(f64, Tensors)> = results
        .filter_map(|result| {
            let update = read(result)?;
            let fits = update.len() == before.len()
                && update.iter().all(|(key, tensor)| {
                    before.get(key).is_some_and(|known| {
                        (&known.shape, known.dtype) == (&tensor.shape, tensor.dtype)
                    }) && tensor.values.iter().all(|value| value.is_finite())
                });
            fits.then(|| (distance(&before, &update), update))
        })
        .collect();
    updates.sort_by(|a, b| a.0.total_cmp(&b.0));
    if updates.len() >= 3 && fault != Fault::NoElimination {
        let median = updates[updates.len() / 2].0;
        updates.retain(|(distance, _)| *distance <= 5.0 * median);
    }
    if updates.is_empty() {
        return global.clone();
    }
    let factor = match fault {
        Fault::WrongWay => -1.0,
        _ => 1.0,
    };
    let mut after = before.clone();
    for (key, tensor) in &mut after {
        for (at, value) in tensor.values.iter_mut().enumerate() {
            let sum: f32 = updates
                .iter()
                .map(|(_, update)| update[key].values[at])
                .sum();
            *value += factor * (sum / updates.len() as f32 - *value);
        }
        if fault == Fault::LayoutChanges {
            tensor.dtype = match tensor.dtype {
                Dtype::F32 => Dtype::F64,
                _ => Dtype::F32,
            };
        }
    }
    let mut bytes = write(&after);
    if fault == Fault::WeightsCut {
        bytes.truncate(bytes.len() - 1);
    }
    File::of(bytes)
}

/// The adapter with one element a little larger.
pub fn nudged(adapter: &File) -> File {
    let mut tensors = read(&adapter.bytes).expect("the global adapter can be read");
    if let Some(tensor) = tensors.values_mut().next() {
        tensor.values[0] += 0.001;
    }
    File::of(write(&tensors))
}

fn distance(before: &Tensors, update: &Tensors) -> f64 {
    let squares = before.iter().flat_map(|(key, tensor)| {
        let update = &update[key].values;
        tensor
            .values
            .iter()
            .zip(update)
            .map(|(a, b)| f64::from(b - a).powi(2))
    });
    squares.sum::<f64>().sqrt()
}

fn read(file: &[u8]) -> Option<Tensors> {
    let read = SafeTensors::deserialize(file).ok()?;
    let tensors = read.iter().map(|(key, view)| {
        let tensor = Tensor {
            shape: view.shape().to_vec(),
            values: values(view.dtype(), view.data()),
            dtype: view.dtype(),
        };
        (key.to_owned(), tensor)
    });
    Some(tensors.collect())
}

fn values(dtype: Dtype, data: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::F32 => {
            let fours = data.chunks_exact(4);
            let of = |b: &[u8]| f32::from_le_bytes(b.try_into().expect("four bytes"));
            fours.map(of).collect()
        }
        Dtype::F64 => {
            let eights = data.chunks_exact(8);
            let of = |b: &[u8]| f64::from_le_bytes(b.try_into().expect("eight bytes")) as f32;
            eights.map(of).collect()
        }
        _ => Vec::new(),
    }
}

fn write(tensors: &Tensors) -> Vec<u8> {
    let data: Vec<(&String, &Tensor, Vec<u8>)> = tensors
        .iter()
        .map(|(key, tensor)| {
            let bytes = tensor.values.iter().flat_map(|value| match tensor.dtype {
                Dtype::F64 => f64::from(*value).to_le_bytes().to_vec(),
                _ => value.to_le_bytes().to_vec(),
            });
            (key, tensor, bytes.collect())
        })
        .collect();
    let views = data.iter().map(|(key, tensor, data)| {
        let view = TensorView::new(tensor.dtype, tensor.shape.clone(), data);
        (key.as_str(), view.expect("it fits"))
    });
    serialize(views, None).expect("it can be written")
}
