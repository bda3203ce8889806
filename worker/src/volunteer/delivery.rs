//! A result's way to the coordinator, and what it means when it does not come in time.

use trainyard_privacy::epsilon;

use super::client::Submitted;
use super::error::VolunteerError;
use super::event::{VolunteerEvent, WaitReason};
use super::rounds::{FAILURES_IN_A_ROW, Volunteer};
use super::state::{Blurred, KeptResult};

/// The delta that epsilon is told for.
const DELTA: f64 = 1e-5;
/// After so many late rounds in a row the owner is told, and after as many more again.
const LATE_IN_A_ROW: u32 = 3;

impl Volunteer<'_> {
    /// Says that results are blurred, and what those of all runs together tell of the data.
    pub(super) fn tell_privacy(&self) {
        let Some(mechanism) = &self.config.mechanism else {
            return;
        };
        let blurred = self.session.blurred().unwrap_or(Blurred {
            results: 0,
            noise_multiplier: mechanism.noise_multiplier(),
        });
        let Blurred {
            results,
            noise_multiplier,
        } = blurred;
        self.tell(VolunteerEvent::Private {
            noise_multiplier,
            results,
            epsilon: (results > 0).then(|| epsilon(noise_multiplier, results, DELTA)),
            delta: DELTA,
        });
    }

    /// Counts a result before it can be sent.
    pub(super) fn count_private_result(&self) -> Result<(), VolunteerError> {
        let Some(mechanism) = &self.config.mechanism else {
            return Ok(());
        };
        let noise = mechanism.noise_multiplier();
        let before = self.session.blurred();
        self.session.keep_blurred(&Blurred {
            results: before.as_ref().map_or(0, |before| before.results) + 1,
            noise_multiplier: before.map_or(noise, |before| before.noise_multiplier.min(noise)),
        })?;
        self.tell_privacy();
        Ok(())
    }

    /// Sends a result once; what may pass brings it back at the next answer with the same task.
    pub(super) async fn deliver(&mut self, kept: &KeptResult) -> Result<(), VolunteerError> {
        let (round, path) = (kept.round, self.session.result());
        let submitted = self.until_stopped(self.client.submit(kept, &path)).await?;
        let (reason, is_late) = match submitted {
            Ok(Submitted::Taken) => {
                (self.failures, self.late) = (0, 0);
                self.faults.reset();
                self.session.drop_result()?;
                self.tell(VolunteerEvent::Delivered { round });
                return Ok(());
            }
            Ok(Submitted::TooLate(reason)) => (reason, true),
            Ok(Submitted::Invalid(reason)) => {
                self.failures += 1;
                if self.failures >= FAILURES_IN_A_ROW {
                    return Err(VolunteerError::Refused {
                        times: self.failures,
                        last: reason,
                    });
                }
                (reason, false)
            }
            Err(trouble) => return self.after(trouble).await,
        };
        self.session.drop_result()?;
        self.spent = Some((round, kept.weights_sha256.clone()));
        self.tell(VolunteerEvent::NotTaken { round, reason });
        if is_late {
            self.was_late();
        }
        let delay = self.polls.next_delay(rand::random());
        self.rest(WaitReason::RoundOver { round }, delay).await
    }

    /// Counts a round that was over before this volunteer was done.
    pub(super) fn was_late(&mut self) {
        self.late += 1;
        if self.late.is_multiple_of(LATE_IN_A_ROW) {
            self.tell(VolunteerEvent::TooSlow { rounds: self.late });
        }
    }
}
