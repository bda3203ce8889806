//! What a worker sends with secure aggregation: its change of the adapter under masks that go away in the sum.

use std::io::Write;
use std::path::Path;

use rayon::prelude::*;
use trainyard_privacy::secure::{Mask, fixed_point};

use super::{NotWritten, both, tensors_of};
use crate::engine::EngineError;
use crate::engine::weights::SafetensorsFile;
use crate::files::{WrittenFile, write_hashed};

/// Values that are masked at once on one thread.
const PIECE_VALUES: usize = 1 << 14;

/// What is to be masked.
#[derive(Debug, Clone, Copy)]
pub struct ToMask<'a> {
    /// The adapter that was trained.
    pub result: &'a Path,
    /// The one that it was trained from.
    pub weights: &'a Path,
    /// The masks.
    pub masks: &'a [Mask],
    /// The change, and the loss, are multiplied with this.
    pub factor: f64,
    /// Mean loss, where that may be known of all together.
    pub loss: Option<f64>,
}

/// Writes the masked change into `out`: 8 bytes for each value in the order of `weights`, then the loss likewise; all are
/// little-endian integers modulo 2^64. One tensor is in memory at a time.
///
/// # Errors
/// [`EngineError::InvalidCheckpoint`] where the two adapters do not belong together; [`EngineError::Io`];
/// [`EngineError::Stopped`] once `is_stopped`. There is no file then.
pub fn mask(
    to_mask: &ToMask<'_>,
    out: &Path,
    is_stopped: &dyn Fn() -> bool,
) -> Result<WrittenFile, EngineError> {
    let (after, before) = (
        SafetensorsFile::open(to_mask.result)?,
        SafetensorsFile::open(to_mask.weights)?,
    );
    let mut first = 0;
    let written = write_hashed(out, |out| {
        for tensor in tensors_of(&before)? {
            if is_stopped() {
                return Err(EngineError::Stopped.into());
            }
            let (x, y) = both(&tensor, &after, &before)?;
            let change = |(x, y): (&f32, &f32)| {
                fixed_point::encode(to_mask.factor * (f64::from(*x) - f64::from(*y)))
            };
            let mut values: Vec<u64> = x.iter().zip(&y).map(change).collect();
            apply(to_mask.masks, &mut values, first);
            first += values.len() as u64;
            write(out, &values)?;
        }
        let mut loss = [fixed_point::encode(
            to_mask.factor * to_mask.loss.unwrap_or(0.0),
        )];
        apply(to_mask.masks, &mut loss, first);
        write(out, &loss)
    });
    written.map_err(|error| error.into_engine_error(out))
}

/// Masks values of which the first is number `first` of all.
fn apply(masks: &[Mask], values: &mut [u64], first: u64) {
    let pieces = values.par_chunks_mut(PIECE_VALUES).enumerate();
    pieces.for_each(|(place, piece)| {
        let first = first + (place * PIECE_VALUES) as u64;
        masks.iter().for_each(|mask| mask.apply(piece, first));
    });
}

fn write(out: &mut impl Write, values: &[u64]) -> Result<(), NotWritten> {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    Ok(out.write_all(&bytes)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use trainyard_privacy::secure::{Announcing, Context, Masking, Roster, SealedShares};

    use super::super::tests::{VALUES, write as write_adapter};
    use super::*;

    /// Three workers that have shared their secrets.
    fn three() -> Vec<Masking> {
        let announcing: Vec<Announcing> = (0..3)
            .map(|_| {
                let (session, round) = ("1".to_owned(), 1);
                Announcing::new(Context { session, round }).unwrap()
            })
            .collect();
        let keys = announcing.iter().map(Announcing::public_keys).collect();
        let roster = Roster::new(2, keys).unwrap();
        let (sharing, sealed): (Vec<_>, Vec<_>) = announcing
            .into_iter()
            .map(|one| one.share(roster.clone()).unwrap())
            .unzip();
        let sealed: Vec<SealedShares> = sealed.into_iter().flatten().collect();
        let receive = |(number, one): (u8, trainyard_privacy::secure::Sharing)| {
            let own: Vec<_> = sealed
                .iter()
                .filter(|it| it.to == number)
                .copied()
                .collect();
            one.receive(&own).unwrap()
        };
        (1..).zip(sharing).map(receive).collect()
    }

    fn numbers(path: &Path) -> Vec<u64> {
        let bytes = fs::read(path).unwrap();
        let (numbers, rest) = bytes.as_chunks::<8>();
        assert!(rest.is_empty());
        numbers
            .iter()
            .map(|bytes| u64::from_le_bytes(*bytes))
            .collect()
    }

    #[test]
    fn a_masked_change_looks_random_and_the_sum_of_all_says_what_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let [weights, result, out] =
            ["weights", "result", "out"].map(|name| folder.path().join(name));
        write_adapter(&weights, 1.0);
        let mut sum = vec![0_u64; VALUES + 1];
        let masking = three();
        for (masking, value) in masking.iter().zip([1.5, 0.5, 4.0]) {
            write_adapter(&result, value);
            let to_mask = ToMask {
                result: &result,
                weights: &weights,
                masks: masking.masks(),
                factor: 0.5,
                loss: Some(f64::from(value)),
            };
            let written = mask(&to_mask, &out, &|| false).unwrap();
            assert_eq!(
                crate::files::digest(&out).unwrap(),
                (written.size_bytes, written.sha256)
            );
            let masked = numbers(&out);
            assert_eq!(masked.len(), VALUES + 1);
            let ones: u32 = masked.iter().map(|value| value.count_ones()).sum();
            let share = f64::from(ones) / (64 * masked.len()) as f64;
            assert!((share - 0.5).abs() < 0.01, "{share}");
            assert!(SafetensorsFile::open(&out).is_err());
            for (sum, value) in sum.iter_mut().zip(masked) {
                *sum = sum.wrapping_add(value);
            }
        }
        let to_mask = ToMask {
            result: &result,
            weights: &weights,
            masks: masking[0].masks(),
            factor: 0.5,
            loss: None,
        };
        let other = folder.path().join("other");
        let stopped = mask(&to_mask, &other, &|| true);
        assert!(matches!(stopped, Err(EngineError::Stopped)), "{stopped:?}");
        assert!(!other.exists());
        // Masks between two go away by themselves; each one's own, which comes first, is left.
        for one in &masking {
            let mut own = vec![0; sum.len()];
            one.masks()[0].apply(&mut own, 0);
            for (sum, value) in sum.iter_mut().zip(own) {
                *sum = sum.wrapping_sub(value);
            }
        }
        let sum: Vec<f64> = sum.into_iter().map(fixed_point::decode).collect();
        // Half of 0.5 - 0.5 + 3, and half of the losses.
        assert!(sum[..VALUES].iter().all(|change| *change == 1.5));
        assert_eq!(sum[VALUES], 3.0);
    }
}
