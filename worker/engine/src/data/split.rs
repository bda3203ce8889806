//! Which rows are trained on and which are kept for evaluation.

use crate::EngineError;
use crate::random::Random;

/// Row numbers in two parts, each in the data set's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// Trained on.
    pub training: Vec<u32>,
    /// Measured with, and never trained on.
    pub evaluation: Vec<u32>,
}

impl Split {
    /// Draws the part `share` of `rows` rows for evaluation, a function of the seed alone: at least one row where
    /// `share` is above 0, and never all.
    ///
    /// # Errors
    /// [`EngineError::InvalidData`] where there are too few rows for two parts.
    pub fn new(rows: usize, share: f64, seed: u64) -> Result<Self, EngineError> {
        let mut training: Vec<u32> = (0..rows as u32).collect();
        if share <= 0.0 {
            return Ok(Self {
                training,
                evaluation: Vec::new(),
            });
        }
        if rows < 2 {
            let message = format!("eval_split needs two rows, and there is {rows}");
            return Err(EngineError::InvalidData(message));
        }
        Random::new(seed, "evaluation rows").shuffle(&mut training);
        let kept = (rows as f64 * share).round() as usize;
        let mut evaluation = training.split_off(rows - kept.clamp(1, rows - 1));
        training.sort_unstable();
        evaluation.sort_unstable();
        Ok(Self {
            training,
            evaluation,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_in_one_part_and_the_seed_alone_decides_in_which() {
        let split = Split::new(50, 0.1, 7).unwrap();
        assert_eq!((split.training.len(), split.evaluation.len()), (45, 5));
        let mut all = [split.training.clone(), split.evaluation.clone()].concat();
        all.sort_unstable();
        assert_eq!(all, (0..50).collect::<Vec<_>>());
        assert_eq!(split, Split::new(50, 0.1, 7).unwrap());
        assert_ne!(split, Split::new(50, 0.1, 8).unwrap());
    }

    #[test]
    fn neither_part_is_ever_empty_once_there_are_two() {
        let sizes = |rows, share| {
            let split = Split::new(rows, share, 1).unwrap();
            (split.training.len(), split.evaluation.len())
        };
        assert_eq!(sizes(2, 0.001), (1, 1));
        assert_eq!(sizes(3, 0.999), (1, 2));
        assert_eq!(sizes(3, 0.0), (3, 0));
        assert!(Split::new(1, 0.5, 1).is_err());
    }
}
