//! Reads the same piece of an adapter from many files, whatever the order in which each holds its tensors.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytemuck::{cast_slice, cast_slice_mut};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use trainyard_engine::device::MappedFile;
use trainyard_engine::export::FloatType;

use crate::{AggregationError, Layout};

/// Neighbouring values of one type, which may belong to several tensors.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Type of all its values.
    pub float_type: FloatType,
    /// Number of its values.
    pub values: usize,
    /// Number of the first of them among all values of the adapter.
    pub first: u64,
    parts: Vec<Part>,
}

/// What a piece has of one tensor.
#[derive(Debug)]
struct Part {
    tensor: usize,
    from: usize,
    values: usize,
}

impl Piece {
    /// Cuts an adapter into pieces of at most so many values, in the order of the layout.
    pub fn all(layout: &Layout, most_values: usize) -> Vec<Self> {
        let mut pieces: Vec<Self> = Vec::new();
        let mut first = 0;
        for (index, tensor) in layout.tensors().iter().enumerate() {
            let mut from = 0;
            while from < tensor.values() {
                let room = pieces.last().map_or(0, |last| {
                    let fits = last.float_type == tensor.float_type;
                    if fits { most_values - last.values } else { 0 }
                });
                if room == 0 {
                    pieces.push(Self {
                        float_type: tensor.float_type,
                        values: 0,
                        first,
                        parts: Vec::new(),
                    });
                    continue;
                }
                let values = room.min(tensor.values() - from);
                let last = pieces.last_mut().expect("a piece with room is there");
                last.values += values;
                last.parts.push(Part {
                    tensor: index,
                    from,
                    values,
                });
                from += values;
                first += values as u64;
            }
        }
        pieces
    }

    /// The tensor that a value of this piece belongs to, by its index in the layout, and its place there.
    pub fn origin(&self, mut place: usize) -> Option<(usize, usize)> {
        for part in &self.parts {
            if place < part.values {
                return Some((part.tensor, part.from + place));
            }
            place -= part.values;
        }
        None
    }
}

/// A file that holds the tensors of a layout.
#[derive(Debug)]
pub(crate) struct Stored {
    path: PathBuf,
    /// Where each tensor begins, in the order of the layout.
    starts: Vec<u64>,
    source: Source,
}

/// How a file's bytes are come by.
#[derive(Debug)]
enum Source {
    /// It stays open.
    Open(File),
    /// It is opened for each reading: there are too many to keep all open.
    Closed,
    /// It is mapped: it is read again and again.
    Mapped(MappedFile),
}

impl Stored {
    /// A file that stays open.
    pub fn opened(path: &Path, file: File, starts: Vec<u64>) -> Self {
        Self {
            path: path.to_owned(),
            starts,
            source: Source::Open(file),
        }
    }

    /// A file that is mapped.
    pub fn mapped(path: &Path, file: MappedFile, starts: Vec<u64>) -> Self {
        Self {
            path: path.to_owned(),
            starts,
            source: Source::Mapped(file),
        }
    }

    /// The same, opened for each reading.
    pub fn closed(self) -> Self {
        Self {
            source: Source::Closed,
            ..self
        }
    }

    /// Reads a piece as f32. `halves` holds what is read where a value takes two bytes.
    pub fn read(
        &self,
        piece: &Piece,
        values: &mut [f32],
        halves: &mut [u16],
    ) -> Result<(), AggregationError> {
        match piece.float_type {
            FloatType::F32 => self.read_f32(piece, values)?,
            FloatType::F16 => {
                self.read_bytes(piece, cast_slice_mut(halves))?;
                let read: &[f16] = cast_slice(halves);
                read.convert_to_f32_slice(values);
            }
            FloatType::Bf16 => {
                self.read_bytes(piece, cast_slice_mut(halves))?;
                let read: &[bf16] = cast_slice(halves);
                read.convert_to_f32_slice(values);
            }
        }
        Ok(())
    }

    /// Reads a piece from a file that holds all values as F32, whatever the type in the adapter.
    pub fn read_f32(&self, piece: &Piece, values: &mut [f32]) -> Result<(), AggregationError> {
        self.read_bytes(piece, cast_slice_mut(values))
    }

    fn read_bytes(&self, piece: &Piece, bytes: &mut [u8]) -> Result<(), AggregationError> {
        let done = match &self.source {
            Source::Open(file) => {
                self.read_runs(piece, bytes, |into, at| file.read_exact_at(into, at))
            }
            Source::Closed => File::open(&self.path).and_then(|file| {
                self.read_runs(piece, bytes, |into, at| file.read_exact_at(into, at))
            }),
            Source::Mapped(file) => self.read_runs(piece, bytes, |into, at| {
                let from = usize::try_from(at).map_err(io::Error::other)?;
                let found = file.get(from..).and_then(|rest| rest.get(..into.len()));
                into.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }),
        };
        done.map_err(|error| AggregationError::io("read", &self.path, error))
    }

    /// Parts that lie one behind the other are read at once.
    fn read_runs(
        &self,
        piece: &Piece,
        mut bytes: &mut [u8],
        read: impl Fn(&mut [u8], u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let width = bytes.len() / piece.values;
        let start = |part: &Part| self.starts[part.tensor] + (part.from * width) as u64;
        let mut parts = piece.parts.iter().peekable();
        while let Some(part) = parts.next() {
            let offset = start(part);
            let mut length = part.values * width;
            while let Some(next) = parts.next_if(|next| start(next) == offset + length as u64) {
                length += next.values * width;
            }
            let (now, rest) = bytes.split_at_mut(length);
            read(now, offset)?;
            bytes = rest;
        }
        Ok(())
    }
}
