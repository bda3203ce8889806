//! Which reported steps are shown and which are kept (PROTOCOL 4): shown progress never goes back within
//! an attempt, and the history of a job holds each step once, as the newest attempt reported it.

use std::collections::BTreeMap;

use trainyard_shared::message::TrainingProgressData;

/// No training has more optimizer steps; a number beyond it is a fault of the worker's.
const MAX_STEP: u64 = 1_000_000_000;

/// The newest step of the present attempt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    newest: Option<TrainingProgressData>,
}

/// What a reported step is to what was reported before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Beyond everything so far: it is shown and kept.
    Newest,
    /// Before the newest: it is kept if it is not there yet, and not shown.
    Late,
    /// The newest once more: it is dropped.
    Repeat,
}

impl Progress {
    /// Progress that is known from before, as after a restart of the platform.
    pub fn known(newest: Option<TrainingProgressData>) -> Self {
        Self { newest }
    }

    /// What is shown; nothing before the attempt's first step.
    pub fn shown(&self) -> Option<&TrainingProgressData> {
        self.newest.as_ref()
    }

    /// The step that is shown; 0 before the first.
    pub fn step(&self) -> u64 {
        self.newest.as_ref().map_or(0, |newest| newest.step)
    }

    /// Whether a job that has `total_steps`, where that is known, can be at the reported step. One that it
    /// cannot be at would be shown to its end, since shown steps never go back.
    pub fn is_possible(&self, reported: &TrainingProgressData, total_steps: Option<u64>) -> bool {
        let named = reported
            .total_steps
            .or(self.newest.as_ref().and_then(|newest| newest.total_steps));
        let last = [total_steps, named].into_iter().flatten();
        let last = last.filter(|total| *total > 0).fold(MAX_STEP, u64::min);
        reported.step <= last
    }

    /// Takes a reported step in. What the newest evaluation has found stays to be seen until the next one.
    pub fn take(&mut self, reported: &TrainingProgressData) -> Arrival {
        match self
            .newest
            .as_ref()
            .map(|newest| reported.step.cmp(&newest.step))
        {
            None | Some(std::cmp::Ordering::Greater) => {
                let before = self.newest.take();
                let (eval_loss, eval_perplexity) = before
                    .map(|before| (before.eval_loss, before.eval_perplexity))
                    .unwrap_or_default();
                let mut newest = reported.clone();
                if newest.eval_loss.is_none() {
                    (newest.eval_loss, newest.eval_perplexity) = (eval_loss, eval_perplexity);
                }
                self.newest = Some(newest);
                Arrival::Newest
            }
            Some(std::cmp::Ordering::Less) => Arrival::Late,
            Some(std::cmp::Ordering::Equal) => Arrival::Repeat,
        }
    }
}

/// Which of the `reported` points are to be written over a history that holds `kept` (step to attempt):
/// a step that is not there, or that only an earlier attempt has reported. Of a step that is reported
/// twice the first counts. Points are (attempt, step, content).
pub fn new_points<P>(
    kept: &BTreeMap<u64, u32>,
    reported: Vec<(u32, u64, P)>,
) -> Vec<(u32, u64, P)> {
    let mut taken: BTreeMap<u64, (u32, P)> = BTreeMap::new();
    for (attempt, step, point) in reported {
        let there = taken
            .get(&step)
            .map(|(attempt, _)| *attempt)
            .or_else(|| kept.get(&step).copied());
        if there.is_none_or(|there| there < attempt) {
            taken.insert(step, (attempt, point));
        }
    }
    taken
        .into_iter()
        .map(|(step, (attempt, point))| (attempt, step, point))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(step: u64, loss: f64) -> TrainingProgressData {
        TrainingProgressData {
            step,
            loss: Some(loss),
            ..Default::default()
        }
    }

    #[test]
    fn g015_the_shown_step_never_goes_back_and_each_step_is_kept_once() {
        let mut progress = Progress::default();
        let mut shown = Vec::new();
        let mut points = Vec::new();
        for (step, loss) in [(10, 1.0), (30, 0.8), (20, 0.9), (20, 0.9), (31, 0.79)] {
            if progress.take(&reported(step, loss)) != Arrival::Repeat {
                points.push((1, step, loss));
            }
            shown.push(progress.step());
        }
        assert_eq!(shown, [10, 30, 30, 30, 31]);
        let kept = new_points(&BTreeMap::new(), points);
        assert_eq!(
            kept,
            [(1, 10, 1.0), (1, 20, 0.9), (1, 30, 0.8), (1, 31, 0.79)]
        );
    }

    #[test]
    fn what_an_evaluation_found_is_shown_until_the_next_one() {
        let mut progress = Progress::default();
        let evaluated = |step, eval_loss| TrainingProgressData {
            eval_loss,
            ..reported(step, 1.0)
        };
        let mut shown = Vec::new();
        for (step, eval_loss) in [(1, None), (2, Some(0.7)), (3, None), (4, Some(0.6))] {
            progress.take(&evaluated(step, eval_loss));
            shown.push(progress.shown().and_then(|newest| newest.eval_loss));
        }
        assert_eq!(shown, [None, Some(0.7), Some(0.7), Some(0.6)]);
    }

    #[test]
    fn a_step_beyond_the_last_is_not_possible() {
        let of = |step, total_steps| TrainingProgressData {
            total_steps,
            ..reported(step, 1.0)
        };
        let mut progress = Progress::default();
        for (step, named, known, possible) in [
            (10, None, Some(10), true),
            (11, None, Some(10), false),
            (11, Some(20), Some(10), false),
            (21, Some(20), None, false),
            (20, Some(20), None, true),
            (5, Some(0), None, true),
            (MAX_STEP, None, None, true),
            (MAX_STEP + 1, None, None, false),
            (u64::MAX, Some(u64::MAX), None, false),
        ] {
            assert_eq!(
                progress.is_possible(&of(step, named), known),
                possible,
                "{step} {named:?} {known:?}"
            );
        }
        progress.take(&of(1, Some(20)));
        assert!(!progress.is_possible(&of(21, None), None));
    }

    #[test]
    fn g015_a_late_step_that_is_kept_already_is_not_written_again() {
        let kept = BTreeMap::from([(10, 1), (20, 1)]);
        assert_eq!(
            new_points(&kept, vec![(1, 20, "again"), (1, 30, "new")]),
            [(1, 30, "new")]
        );
    }

    #[test]
    fn g016_a_later_attempt_writes_its_steps_over_those_of_an_earlier_one() {
        let kept = BTreeMap::from([(1400, 1), (1401, 1), (1402, 1)]);
        let written = new_points(&kept, vec![(2, 1401, "b"), (2, 1402, "b"), (1, 1403, "a")]);
        assert_eq!(written, [(2, 1401, "b"), (2, 1402, "b"), (1, 1403, "a")]);
        assert_eq!(
            new_points(&BTreeMap::from([(5, 2)]), vec![(1, 5, "old")]),
            []
        );
    }
}
