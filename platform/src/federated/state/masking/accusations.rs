//! Who says of whom that its shares cannot be used: one of the two lies, and nobody else can see which.

use std::collections::BTreeSet;

use trainyard_shared::ids::WorkerId;

/// All that was said in a session, over its attempts and rounds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Accusations(BTreeSet<(WorkerId, WorkerId)>);

impl Accusations {
    /// Notes that `accuser` cannot use the shares of `accused`. Gives which of the two is to blame, where others have a say:
    /// whoever is accused by at least two and by most of the `others` of its attempt, or accuses so many.
    pub(super) fn add(
        &mut self,
        accuser: WorkerId,
        accused: WorkerId,
        others: usize,
    ) -> Option<WorkerId> {
        self.0.insert((accuser, accused));
        let are_most = |count: usize| count >= 2 && 2 * count > others;
        let by = self.0.iter().filter(|(_, of)| *of == accused).count();
        let of = self.0.iter().filter(|(by, _)| *by == accuser).count();
        match (are_most(by), are_most(of)) {
            (true, _) => Some(accused),
            (false, true) => Some(accuser),
            (false, false) => None,
        }
    }

    /// A worker has left: what it said and what was said of it counts no more.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.0
            .retain(|(accuser, accused)| *accuser != worker && *accused != worker);
    }

    /// Each accuser with the accused.
    pub(super) fn iter(&self) -> impl Iterator<Item = (WorkerId, WorkerId)> + '_ {
        self.0.iter().copied()
    }
}
