//! Writes the adapter that lies by given changes from the global one: the mean of results that were summed elsewhere,
//! since nobody may see a single one of them.

use std::io::Write;
use std::path::Path;

use trainyard_engine::export::FloatType;
use trainyard_engine::files::{Access, AsideFile, HashingWriter};

use crate::pieces::Piece;
use crate::rows::{are_finite, divide, round, squared_distance};
use crate::sweep::sweep;
use crate::{AggregationError, GlobalAdapter};

/// Values that are computed at once.
const PIECE_VALUES: usize = 1 << 14;

/// The mean of a round's results, as a file.
#[derive(Debug, Clone, PartialEq)]
pub struct WrittenMean {
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
    /// Its length.
    pub size_bytes: u64,
    /// L2 norm of what it differs from the global adapter by.
    pub delta_norm: f64,
}

/// Writes `global` plus the changes into `out`, each value rounded once to its tensor's type. [`crate::merge()`] takes it
/// as a round's only result, and so makes the outer step from it.
///
/// `changes` gives the changes from value number `first` on, in the order of the global adapter's values; it is asked for
/// pieces in any order, on several threads, perhaps for the same one twice.
///
/// # Errors
/// Those of `changes`; [`AggregationError::NotFinite`]; [`AggregationError::Io`]. `out` is not touched then.
pub fn write_mean<E: From<AggregationError> + Send>(
    global: &GlobalAdapter,
    changes: impl Fn(u64, &mut [f64]) -> Result<(), E> + Sync,
    out: &Path,
) -> Result<WrittenMean, E> {
    let failed = |error| AggregationError::io("write", out, error);
    let aside = AsideFile::create(out, Access::Default).map_err(failed)?;
    let mut file = HashingWriter::new(aside);
    file.write_all(global.header()).map_err(failed)?;
    let pieces = Piece::all(global.layout(), PIECE_VALUES);
    let mut squared = 0.0;
    sweep(
        &pieces,
        PIECE_VALUES * 18,
        |space: &mut Workspace, piece| space.compute(global, piece, &changes),
        |space| {
            squared += space.squared_change;
            let written = file.write_all(space.bytes());
            Ok::<(), E>(written.map_err(failed)?)
        },
    )?;
    let size_bytes = file.size_bytes();
    let (file, sha256) = file.finish();
    file.put_in_place().map_err(failed)?;
    Ok(WrittenMean {
        sha256: hex::encode(sha256),
        size_bytes,
        delta_norm: squared.sqrt(),
    })
}

/// What one piece is computed in; all are `[values]`.
#[derive(Default)]
struct Workspace {
    before: Vec<f32>,
    after: Vec<f32>,
    sums: Vec<f64>,
    halves: Vec<u16>,
    float_type: Option<FloatType>,
    squared_change: f64,
}

impl Workspace {
    fn compute<E: From<AggregationError>>(
        &mut self,
        global: &GlobalAdapter,
        piece: &Piece,
        changes: impl Fn(u64, &mut [f64]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.before.resize(piece.values, 0.0);
        self.after.resize(piece.values, 0.0);
        self.sums.resize(piece.values, 0.0);
        self.halves.resize(piece.values, 0);
        changes(piece.first, &mut self.sums)?;
        let stored = global.stored();
        stored.read(piece, &mut self.before, &mut self.halves)?;
        for (sum, before) in self.sums.iter_mut().zip(&self.before) {
            *sum += f64::from(*before);
        }
        divide(&mut self.after, &self.sums, 1.0, piece.float_type);
        round(&mut self.after, &mut self.halves, piece.float_type);
        if !are_finite(&self.after) {
            return Err(AggregationError::NotFinite.into());
        }
        self.squared_change = squared_distance(&self.after, &self.before);
        self.float_type = Some(piece.float_type);
        Ok(())
    }

    /// The new values as they stand in the file.
    fn bytes(&self) -> &[u8] {
        match self.float_type {
            Some(FloatType::F16 | FloatType::Bf16) => bytemuck::cast_slice(&self.halves),
            _ => bytemuck::cast_slice(&self.after),
        }
    }
}
