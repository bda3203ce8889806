//! What leaves the engine: whole models in Hugging Face's form or as GGUF files, adapters as GGUF files, and the card that
//! goes with an adapter.
//!
//! Values are written tensor by tensor, so that memory holds a few tensors whatever the model's size. A value that
//! is not finite, or would not be in the type that is asked for, is never written. What is written is whole or not there.

mod aside;
mod card;
mod float_type;
mod gguf;
mod merge;
mod model_folder;
mod safetensors;

use std::path::{Path, PathBuf};

use crate::EngineError;
use crate::adapter::SavedAdapter;
use crate::gguf::WrittenType;
use crate::weights::ModelFiles;
use aside::Kind;
use merge::MergedWeights;
use model_folder::write_changed_model;

pub use aside::Existing;
pub use card::{ModelCard, write_card};
pub use float_type::FloatType;
pub use model_folder::{FolderOptions, MAX_SHARD_BYTES, write_model_folder};
pub use safetensors::{PlannedTensor, safetensors_header};

/// What is written.
#[derive(Debug, Clone, Copy)]
pub enum Format {
    /// A folder that transformers loads.
    MergedSafetensors(FolderOptions),
    /// One GGUF file with matrices of this type.
    GgufMerged(WrittenType),
    /// One GGUF file with the adapter alone.
    GgufLora(FloatType),
}

/// A model, with or without an adapter, and where it goes in which form.
#[derive(Debug)]
pub struct Export<'a> {
    /// The base model.
    pub base: &'a ModelFiles,
    /// What is merged into it, or is written by itself.
    pub adapter: Option<&'a SavedAdapter>,
    /// `general.name` of a GGUF file.
    pub name: &'a str,
    /// In which form.
    pub format: Format,
    /// The folder or file; folders above it are made if need be.
    pub output: &'a Path,
    /// What becomes of something that stands there.
    pub existing: Existing,
}

/// Who is told how far an export is, and who may stop it.
pub struct Watch<'a> {
    /// Asked before every weight.
    pub is_stopped: &'a dyn Fn() -> bool,
    /// Told after every weight: how much is done, of how much.
    pub tell: &'a mut dyn FnMut(u64, u64),
}

impl Watch<'_> {
    fn check_stop(&self) -> Result<(), EngineError> {
        match (self.is_stopped)() {
            true => Err(EngineError::Stopped),
            false => Ok(()),
        }
    }

    fn tell(&mut self, done: u64, total: u64) {
        (self.tell)(done, total);
    }
}

/// Writes an export.
///
/// # Errors
/// [`EngineError::InvalidSetting`] where something stands in its place, or where a GGUF adapter is asked for without an
/// adapter; [`EngineError::InvalidCheckpoint`] naming a weight that is not finite; [`EngineError::Io`];
/// [`EngineError::Stopped`]; what the base model's files say of themselves. Nothing is left behind then.
pub fn export(export: &Export<'_>, watch: &mut Watch<'_>) -> Result<(), EngineError> {
    let Export {
        base,
        adapter,
        name,
        format,
        output,
        existing,
    } = *export;
    match format {
        Format::MergedSafetensors(options) => {
            aside::put(output, Kind::Folder, existing, |folder| {
                let mut merged = MergedWeights::new(base, adapter, watch);
                let config = merged.config().clone();
                write_changed_model(folder, base, &config, options, |name, shape| {
                    merged.values(name, shape)
                })
            })
        }
        Format::GgufMerged(written_type) => aside::put(output, Kind::File, existing, |path| {
            gguf::write_merged(path, base, adapter, name, written_type, watch)
        }),
        Format::GgufLora(float_type) => {
            let adapter = export.adapter.ok_or_else(|| EngineError::InvalidSetting {
                field: "adapter",
                message: "a GGUF adapter cannot be written without one".to_owned(),
            })?;
            aside::put(output, Kind::File, existing, |path| {
                gguf::write_lora(path, &base.config, adapter, name, float_type, watch)
            })
        }
    }
}

/// The files of an export with their sizes in bytes, in order.
///
/// # Errors
/// [`EngineError::Io`] where they cannot be looked at.
pub fn files_of(output: &Path) -> Result<Vec<(PathBuf, u64)>, EngineError> {
    let listed = || -> std::io::Result<Vec<(PathBuf, u64)>> {
        let mut files = Vec::new();
        if output.is_dir() {
            for entry in std::fs::read_dir(output)? {
                let entry = entry?;
                files.push((entry.path(), entry.metadata()?.len()));
            }
        } else {
            files.push((output.to_owned(), output.metadata()?.len()));
        }
        files.sort();
        Ok(files)
    };
    listed().map_err(|error| EngineError::io("read", output, error))
}

#[cfg(test)]
mod tests;
