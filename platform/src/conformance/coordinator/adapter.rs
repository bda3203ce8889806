//! Adapters as files: reading what the coordinator serves, and writing results, good ones and hostile ones.

use std::collections::BTreeMap;
use std::ops::Range;

use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde_json::{Value, json};

/// How far a result lies from the global adapter, as a part of a tensor's root mean square.
const STEP: f64 = 0.01;
/// The root mean square that a tensor of zeros is taken to have.
const LEAST_MAGNITUDE: f64 = 0.01;
/// How much results of different volunteers differ from each other, as a part of the step.
const SPREAD: f64 = 0.1;

/// An adapter that can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adapter {
    bytes: Vec<u8>,
    /// In the order of the data.
    tensors: Vec<Tensor>,
}

/// Where a tensor lies.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    place: Range<usize>,
}

/// A result that no coordinator may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hostile {
    /// A key is missing.
    MissingKey,
    /// There is a key more.
    ExtraKey,
    /// A tensor has another shape, of as many elements.
    Shape,
    /// A tensor has another data type.
    Dtype,
    /// An element is no number.
    Nan,
    /// An element is infinite.
    Infinity,
    /// The data ends early.
    Truncated,
    /// There is more data than the header says.
    Trailing,
    /// The header is said to be larger than any file.
    HeaderLength,
    /// A tensor is said to be larger than any file.
    TensorSize,
    /// There is nothing.
    Empty,
    /// It is a pickle.
    Pickle,
}

impl Adapter {
    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(bytes: Vec<u8>) -> Result<Self, String> {
        let in_words = |error: safetensors::SafeTensorError| error.to_string();
        SafeTensors::deserialize(&bytes).map_err(in_words)?;
        let (header, metadata) = SafeTensors::read_metadata(&bytes).map_err(in_words)?;
        let begin = header + 8;
        let mut tensors: Vec<Tensor> = metadata
            .tensors()
            .into_iter()
            .map(|(name, info)| Tensor {
                name,
                dtype: info.dtype,
                shape: info.shape.clone(),
                place: begin + info.data_offsets.0..begin + info.data_offsets.1,
            })
            .collect();
        tensors.sort_by(|a, b| (a.place.start, &a.name).cmp(&(b.place.start, &b.name)));
        if tensors.is_empty() {
            return Err("there are no tensors".to_owned());
        }
        if let Some(tensor) = tensors.iter().find(|tensor| !is_float(tensor.dtype)) {
            return Err(format!("{} is {:?}, no float", tensor.name, tensor.dtype));
        }
        Ok(Self { bytes, tensors })
    }

    /// Size of the file.
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Data type and shape by key.
    pub fn layout(&self) -> BTreeMap<&str, (Dtype, &[usize])> {
        self.tensors
            .iter()
            .map(|tensor| (tensor.name.as_str(), (tensor.dtype, &tensor.shape[..])))
            .collect()
    }

    /// The first key with an element that is not finite.
    pub fn not_finite(&self) -> Option<&str> {
        let mut found = None;
        self.each(|tensor, _, value| {
            if !value.is_finite() && found.is_none() {
                found = Some(tensor.name.as_str());
            }
        });
        found
    }

    /// A good result: the adapter with every element moved a little, always in the same direction, how far by
    /// `volunteer`.
    pub fn moved(&self, volunteer: u64) -> Vec<u8> {
        self.moved_by(STEP, volunteer)
    }

    /// A result that lies `times` as far away as a good one.
    pub fn far_away(&self, times: f64, volunteer: u64) -> Vec<u8> {
        self.moved_by(STEP * times, volunteer)
    }

    /// How far `later` lies from here, as a multiple of a good result's distance, and whether that is in the
    /// direction of good results.
    pub fn way_to(&self, later: &Self) -> Way {
        let magnitudes = self.magnitudes();
        let mut before: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        self.each(|tensor, _, value| before.entry(&tensor.name).or_default().push(value));
        let (mut along, mut own, mut whole) = (0.0, 0.0, 0.0);
        later.each(|tensor, index, value| {
            let name = tensor.name.as_str();
            let was = before.get(name).and_then(|values| values.get(index));
            let (Some(was), Some(magnitude)) = (was, magnitudes.get(name)) else {
                return;
            };
            let step = STEP * magnitude * direction(name, index);
            let moved = value - was;
            along += step * moved;
            own += step * step;
            whole += moved * moved;
        });
        Way {
            steps: (whole / own).sqrt(),
            is_forward: along > 0.0,
        }
    }

    /// A result that has to be refused, made from a good one.
    pub fn hostile(&self, what: Hostile, volunteer: u64) -> Vec<u8> {
        let good = self.moved(volunteer);
        let last = self.last();
        match what {
            Hostile::MissingKey => {
                let others = self.tensors.iter().filter(|tensor| tensor.name != last.name);
                write(&good, &others.collect::<Vec<_>>())
            },
            Hostile::ExtraKey => {
                let more = Tensor {
                    name: format!("{}.conformance", last.name),
                    ..last.clone()
                };
                let all: Vec<&Tensor> = self.tensors.iter().chain([&more]).collect();
                write(&good, &all)
            }
            Hostile::Shape => self.with_last(&good, |tensor| tensor.shape = reshaped(&tensor.shape)),
            Hostile::Dtype => self.with_other_dtype(&good),
            Hostile::Nan => self.with_element(good, f64::NAN),
            Hostile::Infinity => self.with_element(good, f64::INFINITY),
            Hostile::Truncated => good[..good.len() - last.place.len().div_ceil(2)].to_vec(),
            Hostile::Trailing => [&good[..], &[0; 8]].concat(),
            Hostile::HeaderLength => [&(u64::MAX >> 1).to_le_bytes()[..], &good[8..]].concat(),
            Hostile::TensorSize => claiming(&good, &last.name),
            Hostile::Empty => Vec::new(),
            Hostile::Pickle => b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x04true\x94\x85\x94R\x94.".to_vec(),
        }
    }

    /// The key of the element that [`Hostile::Nan`] spoils.
    pub fn last_key(&self) -> &str {
        &self.last().name
    }

    fn last(&self) -> &Tensor {
        self.tensors
            .iter()
            .rfind(|tensor| !tensor.place.is_empty())
            .unwrap_or(&self.tensors[0])
    }

    fn moved_by(&self, step: f64, volunteer: u64) -> Vec<u8> {
        let magnitudes = self.magnitudes();
        let mut bytes = self.bytes.clone();
        for tensor in &self.tensors {
            let step = step * magnitudes[tensor.name.as_str()];
            let width = tensor.dtype.bitsize() / 8;
            let elements = bytes[tensor.place.clone()].chunks_exact_mut(width);
            for (index, element) in elements.enumerate() {
                let own = SPREAD * (hash(volunteer, index as u64) as f64 / u64::MAX as f64);
                let by = step * (1.0 + own) * direction(&tensor.name, index);
                put(tensor.dtype, element, get(tensor.dtype, element) + by);
            }
        }
        bytes
    }

    /// The root mean square of each tensor.
    fn magnitudes(&self) -> BTreeMap<&str, f64> {
        let mut sums: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        self.each(|tensor, _, value| {
            let sum = sums.entry(&tensor.name).or_default();
            *sum = (sum.0 + value * value, sum.1 + 1.0);
        });
        let of = |tensor: &Tensor| {
            let (sum, count) = sums.get(tensor.name.as_str()).copied().unwrap_or_default();
            (sum / f64::max(count, 1.0)).sqrt().max(LEAST_MAGNITUDE)
        };
        self.tensors
            .iter()
            .map(|tensor| (tensor.name.as_str(), of(tensor)))
            .collect()
    }

    fn each<'a>(&'a self, mut look: impl FnMut(&'a Tensor, usize, f64)) {
        for tensor in &self.tensors {
            let width = tensor.dtype.bitsize() / 8;
            let elements = self.bytes[tensor.place.clone()].chunks_exact(width);
            for (index, element) in elements.enumerate() {
                look(tensor, index, get(tensor.dtype, element));
            }
        }
    }

    fn with_last(&self, data: &[u8], alter: impl Fn(&mut Tensor)) -> Vec<u8> {
        let mut tensors = self.tensors.clone();
        let last = self.last();
        tensors
            .iter_mut()
            .filter(|tensor| tensor.name == last.name)
            .for_each(alter);
        write(data, &tensors.iter().collect::<Vec<_>>())
    }

    fn with_other_dtype(&self, data: &[u8]) -> Vec<u8> {
        let last = self.last();
        let other = match last.dtype {
            Dtype::F32 => Dtype::F16,
            _ => Dtype::F32,
        };
        let (from, to) = (last.dtype.bitsize() / 8, other.bitsize() / 8);
        let mut converted = data.to_vec();
        let begin = converted.len();
        for element in data[last.place.clone()].chunks_exact(from) {
            let mut written = vec![0; to];
            put(other, &mut written, get(last.dtype, element));
            converted.extend(written);
        }
        let place = begin..converted.len();
        let tensors: Vec<Tensor> = self
            .tensors
            .iter()
            .map(|tensor| match tensor.name == last.name {
                true => Tensor {
                    dtype: other,
                    place: place.clone(),
                    ..tensor.clone()
                },
                false => tensor.clone(),
            })
            .collect();
        write(&converted, &tensors.iter().collect::<Vec<_>>())
    }

    fn with_element(&self, mut data: Vec<u8>, value: f64) -> Vec<u8> {
        let last = self.last();
        let width = last.dtype.bitsize() / 8;
        let end = last.place.end;
        put(last.dtype, &mut data[end - width..end], value);
        data
    }
}

/// From one global adapter to the next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Way {
    /// As a multiple of a good result's distance.
    pub steps: f64,
    /// Whether it leads towards the results.
    pub is_forward: bool,
}

fn write(data: &[u8], tensors: &[&Tensor]) -> Vec<u8> {
    let views = tensors.iter().map(|tensor| {
        let data = &data[tensor.place.clone()];
        let view = TensorView::new(tensor.dtype, tensor.shape.clone(), data);
        (
            tensor.name.clone(),
            view.expect("as many bytes as the shape says"),
        )
    });
    serialize(views, None).expect("tensors that exist can be written")
}

/// Another shape of as many elements.
fn reshaped(shape: &[usize]) -> Vec<usize> {
    match shape {
        [one, other] if one != other => vec![*other, *one],
        [_, _, ..] => vec![shape.iter().product()],
        _ => [&[1], shape].concat(),
    }
}

/// The same file whose header says that a tensor is as large as no file.
fn claiming(file: &[u8], name: &str) -> Vec<u8> {
    const ELEMENTS: u64 = 1 << 50;
    let length = u64::from_le_bytes(file[..8].try_into().expect("eight bytes"));
    let end = 8 + usize::try_from(length).expect("the file was written by the judge");
    let mut header: Value = serde_json::from_slice(&file[8..end]).expect("a header is JSON");
    let begin = header[name]["data_offsets"][0].as_u64().unwrap_or(0);
    header[name]["shape"] = json!([ELEMENTS]);
    header[name]["data_offsets"] = json!([begin, begin + 8 * ELEMENTS]);
    header[name]["dtype"] = json!("F64");
    let header = header.to_string();
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &file[end..]].concat()
}

fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16)
}

/// The element's value; the types are those of [`is_float`].
fn get(dtype: Dtype, element: &[u8]) -> f64 {
    match (dtype, element) {
        (Dtype::F64, &[a, b, c, d, e, f, g, h]) => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
        (Dtype::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).into(),
        (Dtype::F16, &[a, b]) => f16::from_le_bytes([a, b]).into(),
        (Dtype::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).into(),
        _ => f64::NAN,
    }
}

fn put(dtype: Dtype, element: &mut [u8], value: f64) {
    match dtype {
        Dtype::F64 => element.copy_from_slice(&value.to_le_bytes()),
        Dtype::F32 => element.copy_from_slice(&(value as f32).to_le_bytes()),
        Dtype::F16 => element.copy_from_slice(&f16::from_f64(value).to_le_bytes()),
        Dtype::BF16 => element.copy_from_slice(&bf16::from_f64(value).to_le_bytes()),
        _ => {}
    }
}

/// 1 or -1, the same for that element in every run.
fn direction(name: &str, index: usize) -> f64 {
    let seed = name
        .bytes()
        .fold(7_u64, |seed, byte| hash(seed, byte.into()));
    match hash(seed, index as u64) & 1 {
        0 => 1.0,
        _ => -1.0,
    }
}

/// SplitMix64 of both.
fn hash(seed: u64, index: u64) -> u64 {
    let mut mixed = seed
        .wrapping_add(index)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(seed);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two tensors, the first of zeros.
    fn adapter(dtype: Dtype) -> Adapter {
        let width = dtype.bitsize() / 8;
        let mut ones = vec![0; 6 * width];
        for element in ones.chunks_exact_mut(width) {
            put(dtype, element, 1.0);
        }
        let zeros = vec![0; 4 * width];
        let views = [
            ("a.lora_B", TensorView::new(dtype, vec![2, 2], &zeros)),
            ("b.lora_A", TensorView::new(dtype, vec![2, 3], &ones)),
        ];
        let views = views.map(|(name, view)| (name, view.unwrap()));
        Adapter::read(serialize(views, None).unwrap()).unwrap()
    }

    const DTYPES: [Dtype; 4] = [Dtype::F64, Dtype::F32, Dtype::F16, Dtype::BF16];

    #[test]
    fn a_good_result_has_the_same_layout_and_lies_one_step_away() {
        for dtype in DTYPES {
            let global = adapter(dtype);
            let moved = Adapter::read(global.moved(3)).unwrap();
            assert_eq!(moved.layout(), global.layout());
            assert_eq!(moved.not_finite(), None);
            let way = global.way_to(&moved);
            assert!(way.is_forward, "{dtype:?}");
            assert!((0.9..1.3).contains(&way.steps), "{dtype:?} {way:?}");
            assert!(!global.way_to(&global).is_forward);
            assert_ne!(global.moved(3), global.moved(4));
            assert_eq!(global.moved(3), global.moved(3));
        }
    }

    #[test]
    fn hostile_results_are_wrong_in_just_one_way() {
        for dtype in DTYPES {
            let global = adapter(dtype);
            let read = |what| Adapter::read(global.hostile(what, 1));
            let keys = |adapter: &Adapter| adapter.layout().len();
            assert_eq!(keys(&read(Hostile::MissingKey).unwrap()), 1);
            assert_eq!(keys(&read(Hostile::ExtraKey).unwrap()), 3);
            let shape = read(Hostile::Shape).unwrap();
            assert_eq!(shape.layout()["b.lora_A"].1, [3, 2]);
            let other = read(Hostile::Dtype).unwrap();
            assert_ne!(other.layout()["b.lora_A"].0, dtype);
            assert_eq!(other.layout()["a.lora_B"].0, dtype);
            for what in [Hostile::Nan, Hostile::Infinity] {
                let spoilt = read(what).unwrap();
                assert_eq!(spoilt.layout(), global.layout());
                assert_eq!(spoilt.not_finite(), Some(global.last_key()));
            }
            for what in [
                Hostile::Truncated,
                Hostile::Trailing,
                Hostile::HeaderLength,
                Hostile::TensorSize,
                Hostile::Empty,
                Hostile::Pickle,
            ] {
                assert!(read(what).is_err(), "{what:?}");
            }
        }
    }
}
