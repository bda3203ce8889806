//! Differential privacy of what a worker sends: its change of the adapter is clipped and noise is added before anything of
//! it leaves the machine. Masks, with secure aggregation, are in [`masked`].

pub mod masked;

use std::io::{self, Write};
use std::path::Path;

use trainyard_privacy::{GaussianMechanism, GaussianNoise};

use crate::engine::EngineError;
use crate::engine::export::{PlannedTensor, safetensors_header};
use crate::engine::weights::SafetensorsFile;
use crate::files::{WrittenFile, write_hashed};

/// Replaces the adapter at `result`, which was trained from the one at `weights`, by what may be sent of it. Tensors keep
/// their names, shapes and types; one of them is in memory at a time.
///
/// # Errors
/// [`EngineError::InvalidCheckpoint`] where the two do not belong together or a value would not be finite in its type;
/// [`EngineError::Io`], also where the operating system gives no random numbers. `result` is then as it was.
pub fn protect(
    result: &Path,
    weights: &Path,
    mechanism: &GaussianMechanism,
) -> Result<WrittenFile, EngineError> {
    let (after, before) = (
        SafetensorsFile::open(result)?,
        SafetensorsFile::open(weights)?,
    );
    let tensors = tensors_of(&after)?;
    let mut squared = 0.0;
    for tensor in &tensors {
        let (x, y) = both(tensor, &after, &before)?;
        let square = |(x, y): (&f32, &f32)| (f64::from(*x) - f64::from(*y)).powi(2);
        squared += x.iter().zip(&y).map(square).sum::<f64>();
    }
    let norm = squared.sqrt();
    if !norm.is_finite() {
        return Err(unusable(result, "it holds values that are not finite"));
    }
    let mut noise = GaussianNoise::from_system().map_err(|error| {
        EngineError::io("read random numbers for", result, io::Error::other(error))
    })?;
    let written = write_hashed(result, |out| {
        out.write_all(&safetensors_header(&tensors))?;
        let mut bytes = Vec::new();
        for tensor in &tensors {
            let (mut x, y) = both(tensor, &after, &before)?;
            mechanism.apply(&mut x, &y, norm, &mut noise);
            bytes.clear();
            if tensor.float_type.encode(&x, &mut bytes).is_err() {
                let message = format!(
                    "with noise, tensor {} is too large for its type",
                    tensor.name
                );
                return Err(unusable(result, message).into());
            }
            out.write_all(&bytes)?;
        }
        Ok::<(), NotWritten>(())
    });
    written.map_err(|error| error.into_engine_error(result))
}

enum NotWritten {
    Io(io::Error),
    Engine(EngineError),
}

impl NotWritten {
    fn into_engine_error(self, path: &Path) -> EngineError {
        match self {
            Self::Io(error) => EngineError::io("write", path, error),
            Self::Engine(error) => error,
        }
    }
}

impl From<io::Error> for NotWritten {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<EngineError> for NotWritten {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

fn unusable(path: &Path, message: impl Into<String>) -> EngineError {
    EngineError::InvalidCheckpoint {
        path: path.to_owned(),
        message: message.into(),
    }
}

/// The file's tensors in the order of their values.
fn tensors_of(file: &SafetensorsFile) -> Result<Vec<PlannedTensor>, EngineError> {
    let mut tensors = Vec::new();
    for name in file.names() {
        let float_type = file.float_type(name);
        let float_type = float_type.ok_or_else(|| {
            unusable(
                file.path(),
                format!("tensor {name} has no type that can be blurred"),
            )
        })?;
        let tensor = PlannedTensor {
            name: name.to_owned(),
            shape: file.shape(name).unwrap_or_default().to_vec(),
            float_type,
        };
        tensors.push((file.place(name).map(|place| place.start), tensor));
    }
    tensors.sort_by_key(|(place, _)| *place);
    Ok(tensors.into_iter().map(|(_, tensor)| tensor).collect())
}

/// A tensor's values after and before the training.
fn both(
    tensor: &PlannedTensor,
    after: &SafetensorsFile,
    before: &SafetensorsFile,
) -> Result<(Vec<f32>, Vec<f32>), EngineError> {
    let (x, y) = (after.tensor(&tensor.name)?, before.tensor(&tensor.name)?);
    if x.len() != y.len() {
        let message = format!("tensor {} is not that of the round's weights", tensor.name);
        return Err(unusable(after.path(), message));
    }
    Ok((x, y))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::engine::export::FloatType;

    pub(super) const VALUES: usize = 20_000;

    pub(super) fn write(path: &Path, value: f32) {
        let tensor = |name: &str, float_type| PlannedTensor {
            name: name.to_owned(),
            shape: vec![VALUES / 2],
            float_type,
        };
        let tensors = [tensor("b", FloatType::F32), tensor("a", FloatType::Bf16)];
        let mut file = safetensors_header(&tensors);
        for tensor in &tensors {
            let values = [value; VALUES / 2];
            tensor.float_type.encode(&values, &mut file).unwrap();
        }
        fs::write(path, file).unwrap();
    }

    fn values(path: &Path) -> Vec<f64> {
        let file = SafetensorsFile::open(path).unwrap();
        let both = [file.tensor("b").unwrap(), file.tensor("a").unwrap()];
        both.concat().into_iter().map(f64::from).collect()
    }

    #[test]
    fn what_is_sent_is_clipped_and_blurred_and_never_twice_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let [weights, result] = ["weights", "result"].map(|name| folder.path().join(name));
        write(&weights, 0.0);
        write(&result, 1.0);
        let clip = 2.0 * (VALUES as f64).sqrt();
        let mechanism = GaussianMechanism::new(clip / 4.0, 0.001).unwrap();
        let written = protect(&result, &weights, &mechanism).unwrap();
        assert_eq!(
            crate::files::digest(&result).unwrap(),
            (written.size_bytes, written.sha256)
        );
        let sent = values(&result);
        let mean = sent.iter().sum::<f64>() / VALUES as f64;
        // Half of the change is let through; the noise's deviation is a thousandth of the clipped norm.
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        let spread = sent.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / VALUES as f64;
        let expected = mechanism.standard_deviation();
        assert!((spread.sqrt() / expected - 1.0).abs() < 0.05, "{spread}");

        write(&result, 1.0);
        protect(&result, &weights, &mechanism).unwrap();
        assert_ne!(values(&result), sent);
    }

    #[test]
    fn what_does_not_belong_to_the_weights_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let [weights, result] = ["weights", "result"].map(|name| folder.path().join(name));
        write(&result, 1.0);
        let tensor = PlannedTensor {
            name: "other".to_owned(),
            shape: Vec::new(),
            float_type: FloatType::F32,
        };
        let file = [safetensors_header(&[tensor]), vec![0; 4]].concat();
        fs::write(&weights, file).unwrap();
        let mechanism = GaussianMechanism::new(1.0, 1.0).unwrap();
        protect(&result, &weights, &mechanism).unwrap_err();
        assert_eq!(values(&result), [1.0; VALUES]);
    }
}
