//! How results become one: which of them count how much, and the arithmetic of one piece.

use crate::merge::{IsStopped, Participant};
use crate::pieces::Piece;
use crate::rows::{add_scaled, divide, squared_distance, trimmed_mean};
use crate::sweep::sweep;
use crate::{AggregationError, GlobalAdapter, Rule, krum};

/// Values of a piece where one result is read after the other.
const PIECE_VALUES: usize = 1 << 14;
/// Values of all results together, where a piece of all is held at once.
const ROWS_VALUES: usize = 1 << 19;
/// A piece is not made smaller than this, however many results there are.
const FEWEST_VALUES: usize = 256;

/// A rule applied to those who take part.
pub(crate) struct Combination<'a> {
    kept: &'a [Participant<'a>],
    kind: Kind,
}

enum Kind {
    /// The mean by these weights, which are not all 0.
    Mean { weights: Vec<f64> },
    /// The mean of each value without so many on either side.
    TrimmedMean { each_side: usize },
    /// One result.
    Choice(usize),
}

impl<'a> Combination<'a> {
    /// Applies a rule; Krum reads all results for that.
    pub fn new(
        rule: Rule,
        kept: &'a [Participant<'a>],
        global: &GlobalAdapter,
        is_stopped: IsStopped<'_>,
    ) -> Result<Self, AggregationError> {
        let count = kept.len();
        let equal = || Kind::Mean {
            weights: vec![1.0; count],
        };
        let kind = match rule {
            Rule::Nesterov | Rule::Mean => equal(),
            Rule::WeightedMean if kept.iter().any(|one| one.update.weight > 0) => Kind::Mean {
                weights: kept.iter().map(|one| one.update.weight as f64).collect(),
            },
            Rule::WeightedMean => equal(),
            Rule::TrimmedMean if count >= 3 => Kind::TrimmedMean {
                each_side: (count / 10).max(1),
            },
            Rule::TrimmedMean => equal(),
            Rule::Median => Kind::TrimmedMean {
                each_side: count.saturating_sub(1) / 2,
            },
            Rule::Krum if count >= 3 => {
                Kind::Choice(nearest_to_neighbours(kept, global, is_stopped)?)
            }
            Rule::Krum => equal(),
        };
        Ok(Self { kept, kind })
    }

    /// How many values a piece should have.
    pub fn piece_values(&self) -> usize {
        match self.kind {
            Kind::Mean { .. } | Kind::Choice(_) => PIECE_VALUES,
            Kind::TrimmedMean { .. } => piece_of_rows(self.kept.len()),
        }
    }

    /// About how many bytes a piece is combined in.
    pub fn workspace_bytes(&self) -> usize {
        let rows = match self.kind {
            Kind::Mean { .. } | Kind::Choice(_) => 0,
            Kind::TrimmedMean { .. } => self.kept.len(),
        };
        // Values before and after, velocity, sums in f64 and halves, and all rows where they are needed at once.
        self.piece_values() * (22 + 4 * rows)
    }

    /// Whose result is taken as it is.
    pub fn chosen(&self) -> Option<&Participant<'a>> {
        match self.kind {
            Kind::Choice(place) => Some(&self.kept[place]),
            _ => None,
        }
    }

    /// Combines a piece into `into`, rounded to the adapter's type. `sums` and `halves` are `[values]`, `rows` is as long
    /// as it is needed.
    pub fn combine(
        &self,
        piece: &Piece,
        into: &mut [f32],
        sums: &mut [f64],
        rows: &mut Vec<f32>,
        halves: &mut [u16],
    ) -> Result<(), AggregationError> {
        match &self.kind {
            Kind::Mean { weights } => {
                sums.fill(0.0);
                for (one, weight) in self.kept.iter().zip(weights) {
                    one.read(piece, into, halves)?;
                    add_scaled(sums, *weight, into);
                }
                divide(into, sums, weights.iter().sum(), piece.float_type);
            }
            Kind::TrimmedMean { each_side } => {
                read_rows(self.kept, piece, rows, halves)?;
                trimmed_mean(into, sums, rows, *each_side, piece.float_type);
            }
            Kind::Choice(place) => self.kept[*place].read(piece, into, halves)?,
        }
        Ok(())
    }
}

fn piece_of_rows(count: usize) -> usize {
    (ROWS_VALUES / count.max(1)).clamp(FEWEST_VALUES, PIECE_VALUES)
}

/// Reads a piece of all results, one row each.
fn read_rows(
    kept: &[Participant<'_>],
    piece: &Piece,
    rows: &mut Vec<f32>,
    halves: &mut [u16],
) -> Result<(), AggregationError> {
    rows.resize(kept.len() * piece.values, 0.0);
    for (one, row) in kept.iter().zip(rows.chunks_mut(piece.values)) {
        one.read(piece, row, halves)?;
    }
    Ok(())
}

#[derive(Default)]
struct Distances {
    rows: Vec<f32>,
    halves: Vec<u16>,
    squared: Vec<f64>,
}

fn nearest_to_neighbours(
    kept: &[Participant<'_>],
    global: &GlobalAdapter,
    is_stopped: IsStopped<'_>,
) -> Result<usize, AggregationError> {
    let count = kept.len();
    let mut squared = vec![0.0; krum::pairs(count)];
    let values = piece_of_rows(count);
    sweep(
        &Piece::all(global.layout(), values),
        4 * count * values + 8 * krum::pairs(count),
        |found: &mut Distances, piece| {
            if is_stopped() {
                return Err(AggregationError::Stopped);
            }
            found.halves.resize(piece.values, 0);
            read_rows(kept, piece, &mut found.rows, &mut found.halves)?;
            found.squared.clear();
            let row = |place: usize| &found.rows[place * piece.values..][..piece.values];
            for high in 1..count {
                let distances = (0..high).map(|low| squared_distance(row(low), row(high)));
                found.squared.extend(distances);
            }
            Ok(())
        },
        |found| {
            for (sum, distance) in squared.iter_mut().zip(&found.squared) {
                *sum += distance;
            }
            Ok::<(), AggregationError>(())
        },
    )?;
    Ok(krum::choose(count, &squared))
}
