//! The weights of a round as a file: read into the model, and written back with other values and nothing else changed.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use safetensors::tensor::Dtype;

use crate::EngineError;
use crate::adapter::{peft_name, read_tensor};
use crate::export::FloatType;
use crate::files::{self, WrittenFile};
use crate::model::Parameter;
use crate::weights::SafetensorsFile;

/// Values that are converted and written at once.
const CHUNK: usize = 1 << 16;

/// A file of weights with one tensor for each parameter.
pub(super) struct WeightsFile {
    file: SafetensorsFile,
    /// The file's name for each parameter, in the parameters' order.
    names: Vec<String>,
}

impl WeightsFile {
    /// Opens the file whose digest is `sha256`. Names may have another front than PEFT's
    /// (`base_model.model.model.layers.…`), and the adapter's name in them (`lora_A.default.weight`).
    ///
    /// # Errors
    /// [`EngineError::InvalidCheckpoint`] where it is another file, or has a tensor that is no parameter or two for
    /// one; [`EngineError::MissingTensor`], [`EngineError::ShapeMismatch`].
    pub(super) fn open(
        path: &Path,
        sha256: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Self, EngineError> {
        let invalid = |message: String| EngineError::InvalidCheckpoint {
            path: path.to_owned(),
            message,
        };
        let (_, found) =
            files::digest(path).map_err(|error| EngineError::io("read", path, error))?;
        if !found.eq_ignore_ascii_case(sha256) {
            return Err(invalid(format!("its SHA-256 is {found}, not {sha256}")));
        }
        let file = SafetensorsFile::open(path)?;
        let mut by_parameter = BTreeMap::new();
        for name in file.names() {
            if let Some(other) = by_parameter.insert(canonical(name), name) {
                return Err(invalid(format!("tensors {other} and {name} mean the same")));
            }
        }
        let mut names = Vec::new();
        for parameter in parameters {
            let name = by_parameter
                .remove(&canonical(parameter.name))
                .ok_or_else(|| EngineError::MissingTensor {
                    name: peft_name(parameter.name),
                })?;
            let found = file.shape(name).unwrap_or_default();
            if found != parameter.shape {
                return Err(EngineError::ShapeMismatch {
                    name: name.to_owned(),
                    expected: parameter.shape.to_vec(),
                    found: found.to_vec(),
                });
            }
            names.push(name.to_owned());
        }
        if let Some(name) = by_parameter.into_values().next() {
            return Err(invalid(format!(
                "tensor {name} belongs to no layer that the adapter has"
            )));
        }
        Ok(Self { file, names })
    }

    /// Copies the values into the parameters.
    ///
    /// # Errors
    /// A tensor of a type that is not read, or with values that are not finite.
    pub(super) fn take_up(&self, parameters: &mut [Parameter<'_>]) -> Result<(), EngineError> {
        for (parameter, name) in parameters.iter_mut().zip(&self.names) {
            let values = read_tensor(&self.file, name, parameter.shape)?;
            parameter.value.copy_from_slice(&values);
        }
        Ok(())
    }

    /// Writes a file that differs from this one in the tensors' values alone: names, shapes, types, their order and the
    /// file's remarks stay. `step` is named where values are no longer finite.
    ///
    /// # Errors
    /// [`EngineError::Diverged`] naming a tensor with a value that its type cannot hold; [`EngineError::Io`]. Nothing is
    /// left at `path` then that was not there before.
    pub(super) fn write(
        &self,
        parameters: &[Parameter<'_>],
        path: &Path,
        step: u64,
    ) -> Result<WrittenFile, EngineError> {
        let values: BTreeMap<&str, &[f32]> = self
            .names
            .iter()
            .zip(parameters)
            .map(|(name, parameter)| (name.as_str(), &*parameter.value))
            .collect();
        let written = files::write_hashed(path, |out| {
            out.write_all(self.file.head())?;
            for (name, dtype, _) in self.file.layout() {
                let values = values.get(name).copied().unwrap_or_default();
                write_values(out, values, float_type(dtype))?
                    .map_err(|()| NotWritten::NotFinite(name.to_owned()))?;
            }
            Ok(())
        });
        written.map_err(|error| match error {
            NotWritten::Io(error) => EngineError::io("write", path, error),
            NotWritten::NotFinite(name) => EngineError::Diverged {
                step,
                message: format!("weights of {name} are no longer finite"),
            },
        })
    }
}

enum NotWritten {
    Io(io::Error),
    NotFinite(String),
}

impl From<io::Error> for NotWritten {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn write_values(
    out: &mut impl Write,
    values: &[f32],
    float_type: FloatType,
) -> io::Result<Result<(), ()>> {
    let mut bytes = Vec::with_capacity(CHUNK.min(values.len()) * float_type.bytes());
    for chunk in values.chunks(CHUNK) {
        bytes.clear();
        if float_type.encode(chunk, &mut bytes).is_err() {
            return Ok(Err(()));
        }
        out.write_all(&bytes)?;
    }
    Ok(Ok(()))
}

/// The type of a tensor that was read, which is one of these.
fn float_type(dtype: Dtype) -> FloatType {
    match dtype {
        Dtype::F16 => FloatType::F16,
        Dtype::BF16 => FloatType::Bf16,
        _ => FloatType::F32,
    }
}

/// A name without what differs between writers: what stands in front of `layers.`, or PEFT's prefix; the adapter's own
/// name behind `lora_A`; `.weight` at the end of a matrix of a pair.
fn canonical(name: &str) -> String {
    let name = match name.find("layers.") {
        Some(at) if at == 0 || name[..at].ends_with('.') => &name[at..],
        _ => name.strip_prefix("base_model.model.").unwrap_or(name),
    };
    match name.find(".lora_") {
        Some(at) => {
            let end = name[at + 1..]
                .find('.')
                .map_or(name.len(), |dot| at + 1 + dot);
            name[..end].to_owned()
        }
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn names_of_one_parameter_mean_the_same_whatever_their_front() {
        let expected = "layers.3.self_attn.q_proj.lora_A";
        for name in [
            "model.layers.3.self_attn.q_proj.lora_A",
            "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight",
            "base_model.model.model.layers.3.self_attn.q_proj.lora_A.default.weight",
            "layers.3.self_attn.q_proj.lora_A.weight",
        ] {
            assert_eq!(canonical(name), expected, "{name}");
        }
        assert_eq!(
            canonical("base_model.model.lm_head.weight"),
            "lm_head.weight"
        );
        assert_ne!(
            canonical("model.layers.3.mlp.up_proj.lora_B"),
            canonical("model.layers.3.mlp.up_proj.lora_A")
        );
    }
}
