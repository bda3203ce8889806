//! The workers that a session looks for, and which of the free ones it takes.

use std::collections::{BTreeMap, BTreeSet};

use trainyard_shared::ids::WorkerId;

use super::{Session, Stage};
use crate::workers::placement::Abilities;

/// The workers that a session looks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seeking {
    /// So many at most.
    pub wanted: usize,
    /// So many at least, or none.
    pub needed: usize,
    /// Only these, where some are named.
    pub allowed: Option<BTreeSet<WorkerId>>,
    /// None of these.
    pub barred: BTreeSet<WorkerId>,
    /// These before all others: they have a part of the data already.
    pub known: BTreeSet<WorkerId>,
}

impl Seeking {
    /// Those of the free workers that could take part.
    pub fn suitable<'a>(
        &'a self,
        free: &'a BTreeMap<WorkerId, Abilities>,
    ) -> impl Iterator<Item = (&'a WorkerId, &'a Abilities)> {
        let may_join = |worker: &WorkerId| {
            let is_allowed = self
                .allowed
                .as_ref()
                .is_none_or(|allowed| allowed.contains(worker));
            is_allowed && !self.barred.contains(worker)
        };
        free.iter().filter(move |(worker, abilities)| {
            may_join(worker) && abilities.worker_type.takes_training()
        })
    }

    /// The best of the free workers: those that are known, then by their benchmark's score.
    pub fn choose(&self, free: &BTreeMap<WorkerId, Abilities>) -> Vec<WorkerId> {
        let mut chosen: Vec<_> = self
            .suitable(free)
            .map(|(worker, abilities)| {
                let score = abilities.score.filter(|score| score.is_finite());
                (
                    !self.known.contains(worker),
                    score.unwrap_or(f64::NEG_INFINITY),
                    *worker,
                )
            })
            .collect();
        if chosen.len() < self.needed {
            return Vec::new();
        }
        chosen.sort_by(|(a_new, a_score, a), (b_new, b_score, b)| {
            let by_score = b_score.total_cmp(a_score);
            a_new.cmp(b_new).then(by_score).then(a.cmp(b))
        });
        chosen.truncate(self.wanted);
        chosen.into_iter().map(|(.., worker)| worker).collect()
    }
}

impl Session {
    /// How many more workers are wanted.
    pub fn wanted(&self) -> usize {
        match self.stage {
            Stage::Ended => 0,
            _ => self.settings.max_workers.saturating_sub(self.members.len()),
        }
    }

    /// Whether a worker may take part that does not yet.
    pub fn may_join(&self, worker: WorkerId) -> bool {
        let allowed = self.settings.allowed.as_ref();
        let is_allowed = allowed.is_none_or(|allowed| allowed.contains(&worker));
        is_allowed && !self.failures.is_barred(worker)
    }

    /// What the session looks for, if it does.
    pub fn seeking(&self) -> Option<Seeking> {
        let wanted = self.wanted();
        (wanted > 0).then(|| Seeking {
            wanted,
            // A session that has workers keeps them; one without any begins only with enough, so that two sessions
            // never wait for each other's.
            needed: match self.members.is_empty() {
                true => self.settings.min_workers,
                false => 1,
            },
            allowed: self.settings.allowed.clone(),
            barred: self.failures.barred().map(|(worker, _)| worker).collect(),
            known: self.shards.keys().copied().collect(),
        })
    }
}
