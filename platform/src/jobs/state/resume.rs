//! What a job can go on from: which checkpoints count, which are kept, and why an attempt begins anew.

use super::JobState;

impl JobState {
    /// Step of the newest checkpoint, whether or not its files were checked.
    pub fn last_checkpoint_step(&self) -> Option<u64> {
        self.checkpoints
            .last_key_value()
            .map(|((_, step), _)| *step)
    }

    /// The newest checkpoint that a new attempt can go on from, as (attempt, step).
    pub fn resumable_checkpoint(&self) -> Option<(u32, u64)> {
        self.checkpoints
            .iter()
            .rev()
            .find(|(_, mark)| mark.verified)
            .map(|(key, _)| *key)
    }

    /// Why the present attempt does not go on from where an earlier one was, for a person; nothing where it does,
    /// and for the first attempt.
    pub fn begins_anew_because(&self) -> Option<String> {
        if self.attempt <= 1 || self.resume_from.is_some() {
            return None;
        }
        let earlier = self.checkpoints.range(..(self.attempt, 0)).next_back();
        Some(why_anew(earlier.map(|((_, step), _)| *step)))
    }

    /// The checkpoint with checked files that has the lowest evaluation loss, as (attempt, step).
    fn best_checkpoint(&self) -> Option<(u32, u64)> {
        let verified = self.checkpoints.iter().filter(|(_, mark)| mark.verified);
        verified
            .filter_map(|(key, mark)| Some((key, mark.eval_loss?)))
            .min_by(|(_, a), (_, b)| a.total_cmp(b))
            .map(|(key, _)| *key)
    }

    /// Of the checkpoints with checked files the newest ones stay, the one that this attempt goes on from, and the
    /// one with the lowest evaluation loss. The others cost nothing here.
    pub(super) fn forget_old_checkpoints(&mut self) {
        let best = self.best_checkpoint();
        let verified = self.checkpoints.iter().rev().filter(|(_, at)| at.verified);
        let old: Vec<_> = verified
            .skip(self.save_total_limit.max(1))
            .map(|(key, _)| *key)
            .filter(|key| Some(key.1) != self.resume_from && Some(*key) != best)
            .collect();
        for key in old {
            self.checkpoints.remove(&key);
        }
    }
}

/// Why nothing can be gone on from: the step of the newest checkpoint of earlier attempts, if there is one, is of
/// no use to another worker.
pub fn why_anew(newest_checkpoint: Option<u64>) -> String {
    match newest_checkpoint {
        Some(step) => format!(
            "the files of the checkpoint of step {step} are not in the platform's storage, its worker named none"
        ),
        None => "no checkpoint was saved".to_owned(),
    }
}

/// How the attempt that comes next begins, in the words of the job's history.
pub(super) fn resume_detail(next: &JobState) -> String {
    match next.resume_from {
        Some(step) => format!("attempt {} goes on from step {step}", next.attempt),
        None => {
            let why = next.begins_anew_because().unwrap_or_default();
            format!("attempt {} begins anew: {why}", next.attempt)
        }
    }
}
