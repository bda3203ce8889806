//! Files that are written aside, hashed meanwhile, and put in their place once they are whole.

use std::io::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use trainyard_engine::export::{PlannedTensor, safetensors_header};
use trainyard_engine::files::{Access, AsideFile};

use crate::{AggregationError, Layout, TensorLayout};

/// A file on its way.
pub(crate) struct Output<'a> {
    file: AsideFile<'a>,
    path: &'a Path,
    digest: Option<Sha256>,
    size_bytes: u64,
}

/// A file that stands in its place.
pub(crate) struct Written {
    /// SHA-256 in hexadecimal; empty where none was asked for.
    pub sha256: String,
    /// Its length.
    pub size_bytes: u64,
}

impl<'a> Output<'a> {
    /// Begins a file whose SHA-256 is taken.
    pub fn hashed(path: &'a Path) -> Result<Self, AggregationError> {
        Ok(Self {
            digest: Some(Sha256::new()),
            ..Self::create(path)?
        })
    }

    /// Begins a file.
    pub fn create(path: &'a Path) -> Result<Self, AggregationError> {
        let file = AsideFile::create(path, Access::Default)
            .map_err(|error| AggregationError::io("write", path, error))?;
        Ok(Self {
            file,
            path,
            digest: None,
            size_bytes: 0,
        })
    }

    /// Appends bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), AggregationError> {
        if let Some(digest) = &mut self.digest {
            digest.update(bytes);
        }
        self.size_bytes += bytes.len() as u64;
        self.file
            .write_all(bytes)
            .map_err(|error| AggregationError::io("write", self.path, error))
    }

    /// Puts the file in its place, durably.
    pub fn put_in_place(self) -> Result<Written, AggregationError> {
        let path: PathBuf = self.path.to_owned();
        self.file
            .put_in_place()
            .map_err(|error| AggregationError::io("write", &path, error))?;
        let digest = self.digest.map(Digest::finalize);
        Ok(Written {
            sha256: digest.map(hex::encode).unwrap_or_default(),
            size_bytes: self.size_bytes,
        })
    }
}

/// How a file with the tensors of a layout begins, up to the first value.
pub(crate) fn header(layout: &Layout) -> Vec<u8> {
    let planned = |tensor: &TensorLayout| PlannedTensor {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        float_type: tensor.float_type,
    };
    let tensors: Vec<PlannedTensor> = layout.tensors().iter().map(planned).collect();
    safetensors_header(&tensors)
}
