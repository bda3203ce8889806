//! How a job's state goes on where the database is all that is known of it: after a restart of the platform, and
//! after a write of which nobody knows whether it was made. Pure.

use super::event::Event;
use super::phase::{JobTiming, Phase};
use super::state::JobState;
use crate::clock::Moment;

impl JobState {
    /// The platform has restarted: nobody is connected, and waiting times begin anew.
    pub fn after_restart(&mut self, now: Moment, timing: &JobTiming) {
        self.awaiting_worker = self.phase.worker().is_some();
        match &mut self.phase {
            Phase::Assigned { start_by, .. } => *start_by = now + timing.start_timeout,
            Phase::Running { missing_by, .. } => *missing_by = None,
            Phase::Stopping { stop_by, .. } => *stop_by = now + timing.stop_grace,
            _ => {}
        }
    }

    /// This is what the database turned out to hold after a write of which nobody knew whether it was made, and
    /// `before` what was known until then. What is not in the database is kept as far as it still holds. The
    /// answer is what must happen because an order may not have gone out; repeats of both are harmless.
    pub fn after_unclear_write(
        &mut self,
        before: &Self,
        now: Moment,
        timing: &JobTiming,
    ) -> Option<Event> {
        self.after_restart(now, timing);
        self.awaiting_worker &= before.awaiting_worker;
        if self.attempt == before.attempt {
            if before.progress.step() > self.progress.step() {
                self.progress = before.progress.clone();
            }
            if self.status() == before.status() {
                self.phase = before.phase;
            }
        }
        let (worker, holds) = match self.phase {
            Phase::Assigned { worker, .. } => (worker, false),
            Phase::Stopping { worker, .. } => (worker, true),
            _ => return None,
        };
        let first = true;
        Some(Event::WorkerHolds {
            worker,
            holds,
            first,
        })
    }
}
