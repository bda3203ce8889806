//! Whether an upload is what it has to be, and how far it went.

use std::path::Path;

use crate::pieces::Piece;
use crate::rows::squared_distance;
use crate::{AggregationError, GlobalAdapter, Refusal};

/// Values that are looked at at once.
const PIECE_VALUES: usize = 1 << 14;

/// What is known of an upload that may be merged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Checked {
    /// The L2 norm of what it differs from the global adapter by, over all tensors.
    pub delta_norm: f64,
}

/// Why an upload was not taken.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// Something is wrong with it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It could not be checked.
    #[error(transparent)]
    Failed(#[from] AggregationError),
}

/// Checks an upload against the global adapter: a sound file that claims no more bytes than it has, the same keys, shapes
/// and types, finite values, and a change no larger than `max_delta_norm` where that is set.
///
/// # Errors
/// [`CheckError::Refused`] with what is wrong, by key; [`CheckError::Failed`] where a file cannot be read.
pub fn check(
    update: &Path,
    global: &GlobalAdapter,
    max_delta_norm: Option<f64>,
) -> Result<Checked, CheckError> {
    let update = global.open_update(update)??;
    let mut squared = 0.0;
    let mut x = vec![0.0; PIECE_VALUES];
    let mut y = vec![0.0; PIECE_VALUES];
    let mut halves = vec![0; PIECE_VALUES];
    for piece in Piece::all(global.layout(), PIECE_VALUES) {
        let (x, y) = (&mut x[..piece.values], &mut y[..piece.values]);
        let halves = &mut halves[..piece.values];
        update.read(&piece, x, halves)?;
        global.stored().read(&piece, y, halves)?;
        let distance = squared_distance(x, y);
        if !distance.is_finite() {
            return Err(not_finite(&piece, x, global));
        }
        squared += distance;
    }
    let delta_norm = f64::sqrt(squared);
    match max_delta_norm {
        Some(max_delta_norm) if delta_norm > max_delta_norm => Err(Refusal::TooFar {
            delta_norm,
            max_delta_norm,
        }
        .into()),
        _ => Ok(Checked { delta_norm }),
    }
}

/// Where a piece holds a value that is not finite.
fn not_finite(piece: &Piece, values: &[f32], global: &GlobalAdapter) -> CheckError {
    let place = values.iter().position(|x| !x.is_finite());
    match place.and_then(|place| piece.origin(place)) {
        Some((tensor, place)) => {
            let key = global.layout().tensors()[tensor].name.clone();
            Refusal::NotFinite { key, place }.into()
        }
        None => {
            AggregationError::unusable(global.path(), "it holds values that are not finite").into()
        }
    }
}
