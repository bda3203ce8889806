//! Reads the same piece of an adapter from many files, whatever the order in which each holds its tensors.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytemuck::{cast_slice, cast_slice_mut};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use trainyard_engine::export::FloatType;

use crate::{AggregationError, Layout};

/// Neighbouring values of one type, which may belong to several tensors.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Type of all its values.
    pub float_type: FloatType,
    /// Number of its values.
    pub values: usize,
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
    /// Not there where so many files are needed that they are opened for each reading.
    file: Option<File>,
}

impl Stored {
    /// A file that stays open.
    pub fn opened(path: &Path, file: File, starts: Vec<u64>) -> Self {
        Self {
            path: path.to_owned(),
            starts,
            file: Some(file),
        }
    }

    /// The same, opened for each reading.
    pub fn closed(self) -> Self {
        Self { file: None, ..self }
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
        let mut read = |file: &File| self.read_from(file, piece, bytes);
        let done = match &self.file {
            Some(file) => read(file),
            None => File::open(&self.path).and_then(|file| read(&file)),
        };
        done.map_err(|error| AggregationError::io("read", &self.path, error))
    }

    /// Parts that lie one behind the other are read at once.
    fn read_from(&self, file: &File, piece: &Piece, mut bytes: &mut [u8]) -> io::Result<()> {
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
            file.read_exact_at(now, offset)?;
            bytes = rest;
        }
        Ok(())
    }
}
