//! A model folder in Hugging Face's form: its weights in one safetensors file or in indexed shards.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use serde_json::Value;
use trainyard_shared::json;

use super::safetensors_file::SafetensorsFile;
use crate::EngineError;
use crate::export::FloatType;
use crate::gguf::BlockType;

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The weights of a model folder.
#[derive(Debug)]
pub struct FolderWeights {
    shards: Vec<SafetensorsFile>,
    /// Which shard holds a tensor.
    places: BTreeMap<String, usize>,
}

impl FolderWeights {
    /// Opens the files that hold the weights: those that the index names, or the one file.
    ///
    /// # Errors
    /// [`EngineError::InvalidModel`] naming missing files and tensors, and names that lead elsewhere.
    pub fn open(folder: &Path) -> Result<Self, EngineError> {
        let index_path = folder.join(INDEX);
        if !index_path.exists() {
            let shard = SafetensorsFile::open(&inside(folder, WEIGHTS)?)?;
            let places = shard.names().map(|name| (name.to_owned(), 0)).collect();
            return Ok(Self {
                shards: vec![shard],
                places,
            });
        }
        let invalid = |message: String| EngineError::InvalidModel {
            path: index_path.clone(),
            message,
        };
        let index = read_json(&inside(folder, INDEX)?)?;
        let Some(Value::Object(weight_map)) = index.get("weight_map") else {
            return Err(invalid("weight_map is missing".into()));
        };
        let mut files = BTreeSet::new();
        for (tensor, file) in weight_map {
            match file.as_str() {
                Some(file) => files.insert(file),
                None => {
                    return Err(invalid(format!(
                        "weight_map: {tensor} is in no file but in {file}"
                    )));
                }
            };
        }
        let files: Vec<&str> = files.into_iter().collect();
        let mut shards = Vec::new();
        for file in &files {
            shards.push(SafetensorsFile::open(&inside(folder, file)?)?);
        }
        let mut places = BTreeMap::new();
        for (tensor, file) in weight_map {
            let place = files.iter().position(|name| Some(*name) == file.as_str());
            match place {
                Some(place) if shards[place].shape(tensor).is_some() => {
                    places.insert(tensor.clone(), place)
                }
                _ => {
                    return Err(invalid(format!(
                        "tensor {tensor} is not in {file}, where the index puts it"
                    )));
                }
            };
        }
        Ok(Self { shards, places })
    }

    /// A tensor's shape, if there is such a tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.shards[*self.places.get(name)?].shape(name)
    }

    /// A tensor's values as they are stored, row-major.
    ///
    /// # Errors
    /// As [`SafetensorsFile::tensor`].
    pub fn stored(&self, name: &str) -> Result<(BlockType, &[u8]), EngineError> {
        match self.places.get(name) {
            Some(&place) => self.shards[place].stored(name),
            None => Err(EngineError::MissingTensor {
                name: name.to_owned(),
            }),
        }
    }

    /// The type in which a tensor is stored, if it is one that is read.
    pub fn float_type(&self, name: &str) -> Option<FloatType> {
        self.shards[*self.places.get(name)?].float_type(name)
    }

    /// Whether both tensors are there and differ in a value.
    ///
    /// # Errors
    /// As [`FolderWeights::stored`].
    pub fn differ(&self, one: &str, other: &str) -> Result<bool, EngineError> {
        if self.shape(one).is_none() || self.shape(other).is_none() {
            return Ok(false);
        }
        let ((one_type, a), (other_type, b)) = (self.stored(one)?, self.stored(other)?);
        Ok((one_type, a) != (other_type, b) && one_type.dequantise(a) != other_type.dequantise(b))
    }

    /// The files that hold the weights, in the order of their names.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(SafetensorsFile::path)
    }

    /// Gives the memory back that weights take up which were read.
    pub fn release_memory(&self) {
        self.shards.iter().for_each(SafetensorsFile::release_memory);
    }

    /// Names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }
}

/// The path of a file of a model folder, where it is one: a plain name, and no link that leads out.
///
/// The hub's own cache keeps a model as links from `snapshots/REVISION/` into `blobs/` beside it; such
/// links are followed.
pub(super) fn inside(folder: &Path, name: &str) -> Result<PathBuf, EngineError> {
    let path = folder.join(name);
    let invalid = |message: &str| EngineError::InvalidModel {
        path: folder.to_owned(),
        message: message.to_owned(),
    };
    let mut parts = Path::new(name).components();
    if !matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name)
    {
        return Err(invalid(&format!("{name:?} is no plain file name")));
    }
    let real = |path: &Path| {
        path.canonicalize()
            .map_err(|error| EngineError::io("read", path, error))
    };
    let (folder, target) = (real(folder)?, real(&path)?);
    let cache = folder
        .parent()
        .filter(|parent| parent.ends_with("snapshots"))
        .and_then(Path::parent);
    let blobs = cache.map(|cache| cache.join("blobs"));
    if target.starts_with(&folder) || blobs.is_some_and(|blobs| target.starts_with(blobs)) {
        Ok(path)
    } else {
        Err(invalid(&format!(
            "{name:?} is a link that leads out of the folder"
        )))
    }
}

/// Reads a JSON file.
///
/// # Errors
/// [`EngineError::Io`] or [`EngineError::InvalidModel`] naming the file.
pub(super) fn read_json(path: &Path) -> Result<Value, EngineError> {
    let text =
        std::fs::read_to_string(path).map_err(|error| EngineError::io("read", path, error))?;
    json::parse(&text).map_err(|error| EngineError::InvalidModel {
        path: path.to_owned(),
        message: error.to_string(),
    })
}
