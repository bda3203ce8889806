//! Checks and merges of small adapters in a temporary folder.

mod checks;
mod golden;
mod mean;
mod merging;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use tempfile::TempDir;
use trainyard_engine::export::{FloatType, PlannedTensor, safetensors_header};
use trainyard_engine::weights::SafetensorsFile;

use crate::{
    AggregationError, CheckError, Checked, GlobalAdapter, IsStopped, Merge, Merged, Rule, Update,
    check, merge,
};

/// A tensor of a test's adapter.
#[derive(Debug, Clone)]
struct Tensor {
    name: &'static str,
    shape: Vec<usize>,
    float_type: FloatType,
    values: Vec<f32>,
}

fn tensor(name: &'static str, shape: &[usize], values: &[f32]) -> Tensor {
    Tensor {
        name,
        shape: shape.to_vec(),
        float_type: FloatType::F32,
        values: values.to_vec(),
    }
}

/// An adapter of one value.
fn scalar(value: f32) -> Vec<Tensor> {
    vec![tensor("a", &[1], &[value])]
}

/// The tensors as bytes of the type, without a look at whether that can hold them.
fn encoded(tensor: &Tensor) -> Vec<u8> {
    let values = tensor.values.iter();
    match tensor.float_type {
        FloatType::F32 => values.flat_map(|x| x.to_le_bytes()).collect(),
        FloatType::F16 => values
            .flat_map(|x| f16::from_f32(*x).to_le_bytes())
            .collect(),
        FloatType::Bf16 => values
            .flat_map(|x| bf16::from_f32(*x).to_le_bytes())
            .collect(),
    }
}

/// The bytes of a file with these tensors.
fn file_of(tensors: &[Tensor]) -> Vec<u8> {
    let planned = |tensor: &Tensor| PlannedTensor {
        name: tensor.name.to_owned(),
        shape: tensor.shape.clone(),
        float_type: tensor.float_type,
    };
    let mut file = safetensors_header(&tensors.iter().map(planned).collect::<Vec<_>>());
    file.extend(tensors.iter().flat_map(encoded));
    file
}

/// A round in a folder: a global adapter, uploads, and what comes of them.
struct Round {
    folder: TempDir,
    global: GlobalAdapter,
    updates: Vec<Update>,
    rule: Rule,
    lr: f32,
    momentum: f32,
    threads: usize,
}

impl Round {
    fn of(global: &[Tensor]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("global.safetensors");
        fs::write(&path, file_of(global)).unwrap();
        Self {
            global: GlobalAdapter::open(&path).unwrap(),
            folder,
            updates: Vec::new(),
            rule: Rule::Nesterov,
            lr: 1.0,
            momentum: 0.5,
            threads: 1,
        }
    }

    fn with_rule(self, rule: Rule) -> Self {
        Self { rule, ..self }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Uploads bytes, which take part if they are sound.
    fn upload(&mut self, name: &str, file: &[u8]) -> Result<Checked, CheckError> {
        let path = self.path(&format!("{name}.update"));
        fs::write(&path, file).unwrap();
        let checked = check(&path, &self.global, None)?;
        self.updates.push(Update {
            name: name.to_owned(),
            path,
            weight: 1,
            delta_norm: checked.delta_norm,
        });
        Ok(checked)
    }

    /// Uploads an adapter that is sound.
    fn give(&mut self, name: &str, tensors: &[Tensor]) -> f64 {
        self.upload(name, &file_of(tensors)).unwrap().delta_norm
    }

    /// What is wrong with an upload.
    fn refusal(&mut self, file: &[u8]) -> String {
        match self.upload("refused", file) {
            Err(CheckError::Refused(refusal)) => refusal.to_string(),
            other => panic!("refused it must be, not {other:?}"),
        }
    }

    fn try_merge(&self) -> Result<Merged, AggregationError> {
        self.try_merge_until(&|| false)
    }

    fn try_merge_until(&self, is_stopped: IsStopped<'_>) -> Result<Merged, AggregationError> {
        let velocity = self.path("velocity.safetensors");
        let merged = Merge {
            global: &self.global,
            velocity: velocity.exists().then_some(velocity.as_path()),
            updates: &self.updates,
            rule: self.rule,
            outer_lr: self.lr,
            outer_momentum: self.momentum,
            threads: self.threads,
        };
        merge(
            &merged,
            &self.path("next.safetensors"),
            &self.path("next_velocity.safetensors"),
            is_stopped,
        )
    }

    fn merge(&self) -> Merged {
        self.try_merge().unwrap()
    }

    /// The values of the merged adapter.
    fn merged_values(&self) -> BTreeMap<String, Vec<f32>> {
        values_of(&self.path("next.safetensors"))
    }

    /// Goes on to the next round.
    fn go_on(self) -> Self {
        let global = self.path("global.safetensors");
        fs::rename(self.path("next.safetensors"), &global).unwrap();
        let velocity = self.path("next_velocity.safetensors");
        if velocity.exists() {
            fs::rename(velocity, self.path("velocity.safetensors")).unwrap();
        }
        Self {
            global: GlobalAdapter::open(&global).unwrap(),
            updates: Vec::new(),
            ..self
        }
    }
}

fn values_of(path: &Path) -> BTreeMap<String, Vec<f32>> {
    let file = SafetensorsFile::open(path).unwrap();
    let values = |name: &str| (name.to_owned(), file.tensor(name).unwrap());
    file.names().map(values).collect()
}
