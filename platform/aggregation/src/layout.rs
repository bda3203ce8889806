//! What an adapter's file consists of, and the global adapter that uploads are compared with.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use trainyard_engine::EngineError;
use trainyard_engine::device::MappedFile;
use trainyard_engine::export::{FloatType, PlannedTensor, safetensors_header};
use trainyard_engine::weights::SafetensorsFile;

use crate::pieces::Stored;
use crate::{AggregationError, Refusal};

/// The tensors of an adapter, in the order in which the global adapter's file holds their values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    tensors: Vec<TensorLayout>,
}

/// One tensor of an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorLayout {
    /// Its name in the file.
    pub name: String,
    /// The type of its values.
    pub float_type: FloatType,
    /// Its shape, outermost dimension first.
    pub shape: Vec<usize>,
}

impl TensorLayout {
    /// Number of its values.
    pub fn values(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Layout {
    /// The layout of a global adapter's file.
    ///
    /// # Errors
    /// As [`GlobalAdapter::open`].
    pub fn of(global: &Path) -> Result<Self, AggregationError> {
        Ok(GlobalAdapter::open(global)?.layout)
    }

    /// The tensors.
    pub fn tensors(&self) -> &[TensorLayout] {
        &self.tensors
    }

    /// Number of all values.
    pub fn values(&self) -> usize {
        self.tensors.iter().map(TensorLayout::values).sum()
    }

    /// The same tensors with values of one type.
    pub(crate) fn with_type(&self, float_type: FloatType) -> Self {
        let with = |tensor: &TensorLayout| TensorLayout {
            float_type,
            ..tensor.clone()
        };
        Self {
            tensors: self.tensors.iter().map(with).collect(),
        }
    }

    /// How a file with these tensors begins, up to the first value.
    pub(crate) fn header(&self) -> Vec<u8> {
        let planned = |tensor: &TensorLayout| PlannedTensor {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            float_type: tensor.float_type,
        };
        let tensors: Vec<PlannedTensor> = self.tensors.iter().map(planned).collect();
        safetensors_header(&tensors)
    }

    /// Where `file` holds the tensors of this layout, if it holds these and nothing else.
    pub(crate) fn places_in(&self, file: &SafetensorsFile) -> Result<Vec<u64>, Refusal> {
        let place = |tensor: &TensorLayout| {
            let key = || tensor.name.clone();
            let expected = tensor.float_type.safetensors_name();
            let found = file.shape(&tensor.name);
            let found = found.ok_or_else(|| Refusal::Missing { key: key() })?;
            if found != tensor.shape {
                return Err(Refusal::Shape {
                    key: key(),
                    expected: tensor.shape.clone(),
                    found: found.to_vec(),
                });
            }
            if file.float_type(&tensor.name) != Some(tensor.float_type) {
                let found = file.type_name(&tensor.name).unwrap_or_default();
                return Err(Refusal::Type {
                    key: key(),
                    expected,
                    found,
                });
            }
            let place = file.place(&tensor.name);
            Ok(place.expect("a tensor with a shape has a place").start)
        };
        let places = self.tensors.iter().map(place).collect::<Result<_, _>>()?;
        let is_known = |name: &str| self.tensors.iter().any(|tensor| tensor.name == name);
        if file.names().count() > self.tensors.len()
            && let Some(key) = file.names().find(|name| !is_known(name))
        {
            return Err(Refusal::Unknown {
                key: key.to_owned(),
            });
        }
        Ok(places)
    }
}

/// The adapter that a round began with. Its file is never changed while this is held.
#[derive(Debug)]
pub struct GlobalAdapter {
    path: PathBuf,
    layout: Layout,
    stored: Stored,
    header: Vec<u8>,
    size_bytes: u64,
}

impl GlobalAdapter {
    /// Opens the file of an adapter whose values are finite, and reads its header.
    ///
    /// # Errors
    /// [`AggregationError::Io`], [`AggregationError::Unusable`] where it is no sound safetensors file of F32, F16 and
    /// BF16 values.
    pub fn open(path: &Path) -> Result<Self, AggregationError> {
        let file = SafetensorsFile::open(path)?;
        let unusable = |message: String| AggregationError::unusable(path, message);
        let mut tensors = Vec::new();
        for name in file.names() {
            let float_type = file.float_type(name).ok_or_else(|| {
                let found = file.type_name(name).unwrap_or_default();
                unusable(format!(
                    "tensor {name} is {found}; F32, F16 and BF16 can be merged"
                ))
            })?;
            let shape = file.shape(name).unwrap_or_default().to_vec();
            let start = file.place(name).map_or(0, |place| place.start);
            let tensor = TensorLayout {
                name: name.to_owned(),
                float_type,
                shape,
            };
            tensors.push((start, tensor));
        }
        tensors.sort_by_key(|(start, tensor)| (*start, tensor.values()));
        let (starts, tensors): (Vec<u64>, Vec<TensorLayout>) = tensors.into_iter().unzip();
        let layout = Layout { tensors };
        if layout.values() == 0 {
            return Err(unusable("it holds no values".to_owned()));
        }
        let read = |error| AggregationError::io("read", path, error);
        let mapped = MappedFile::open(path).map_err(read)?;
        let size_bytes = mapped.len() as u64;
        let data = usize::try_from(starts[0]).expect("a place in a mapped file");
        let header = mapped[..data].to_vec();
        Ok(Self {
            path: path.to_owned(),
            layout,
            stored: Stored::mapped(path, mapped, starts),
            header,
            size_bytes,
        })
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its tensors.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Length of its file.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(crate) fn stored(&self) -> &Stored {
        &self.stored
    }

    /// How its file begins, up to the first value.
    pub(crate) fn header(&self) -> &[u8] {
        &self.header
    }

    /// Opens an upload of this adapter's layout.
    pub(crate) fn open_update(&self, path: &Path) -> Result<Opened, AggregationError> {
        let read = |error| AggregationError::io("read", path, error);
        let handle = File::open(path).map_err(read)?;
        if let Some(refusal) = self.header_too_long(&handle).map_err(read)? {
            return Ok(Err(refusal));
        }
        let file = match SafetensorsFile::open(path) {
            Ok(file) => file,
            Err(EngineError::InvalidModel { message, .. }) => {
                return Ok(Err(Refusal::Damaged { message }));
            }
            Err(error) => return Err(error.into()),
        };
        let places = self.layout.places_in(&file);
        Ok(places.map(|starts| Stored::opened(path, handle, starts)))
    }

    /// A header takes many times its length in memory while it is read; one that is much longer than this adapter's is
    /// not read at all.
    fn header_too_long(&self, upload: &File) -> std::io::Result<Option<Refusal>> {
        let size_bytes = upload.metadata()?.len();
        if size_bytes < 8 {
            return Ok(None);
        }
        let mut length = [0; 8];
        upload.read_exact_at(&mut length, 0)?;
        let length = u64::from_le_bytes(length);
        let longest = 2 * self.header.len() as u64 + HEADER_SLACK_BYTES;
        let is_too_long = length > longest && length <= size_bytes - 8;
        Ok(is_too_long.then(|| Refusal::Damaged {
            message: format!(
                "its header takes up {length} bytes; an adapter like the global one needs no more than {longest}"
            ),
        }))
    }
}

/// What a header may be longer than twice that of the global adapter: remarks, blanks.
const HEADER_SLACK_BYTES: u64 = 64 * 1024;

/// An upload that can be read, or what is wrong with it.
pub(crate) type Opened = Result<Stored, Refusal>;
