//! Waiting: after what may pass, while the owner's limits say so, and always so that it can be stopped.

use std::time::Duration;

use reqwest::StatusCode;

use super::client::Trouble;
use super::error::VolunteerError;
use super::event::{VolunteerEvent, WaitReason};
use super::rounds::Volunteer;

/// How often is looked whether the owner's limits let it go on.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A coordinator is waited for as long as it asks, up to this.
const LONGEST_ASKED: Duration = Duration::from_secs(3600);

impl Volunteer<'_> {
    /// Waits after what may pass; ends with what does not.
    pub(super) async fn after(&mut self, trouble: Trouble) -> Result<(), VolunteerError> {
        match trouble {
            Trouble::Passing {
                reason,
                retry_after,
            } => self.rest_after_fault(reason, retry_after).await,
            Trouble::OtherContent(reason) => self.rest_after_fault(reason, None).await,
            Trouble::Refused { status, answer } => match status {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    let hint = match self.config.key {
                        Some(_) => "the coordinator does not take the key",
                        None => "the coordinator asks for a key: give it with --anahtar",
                    };
                    Err(VolunteerError::Arguments(format!("{hint} ({answer})")))
                }
                StatusCode::BAD_REQUEST => Err(VolunteerError::Arguments(format!(
                    "the coordinator does not take this request ({answer})"
                ))),
                // It was there before: it is being started again, or something in front of it is.
                _ if self.has_had_a_task => self.rest_after_fault(answer, None).await,
                _ => Err(VolunteerError::Arguments(format!(
                    "there is no session at {} ({answer})",
                    self.config.coordinator
                ))),
            },
            Trouble::Redirected(reason) => Err(VolunteerError::Arguments(reason)),
            Trouble::Disk(error) => Err(VolunteerError::Disk(error)),
        }
    }

    /// Waits, longer after every fault in a row; at least as long as the coordinator asks.
    pub(super) async fn rest_after_fault(
        &mut self,
        reason: String,
        retry_after: Option<Duration>,
    ) -> Result<(), VolunteerError> {
        let longest = self.config.longest_delay;
        let asked = retry_after
            .unwrap_or_default()
            .min(longest.max(LONGEST_ASKED));
        let delay = self.faults.next_delay(rand::random()).max(asked);
        self.rest(WaitReason::Fault(reason), delay).await
    }

    pub(super) async fn rest(
        &self,
        reason: WaitReason,
        delay: Duration,
    ) -> Result<(), VolunteerError> {
        let delay_told = Some(delay);
        self.tell(VolunteerEvent::Waiting {
            reason,
            delay: delay_told,
        });
        self.until_stopped(tokio::time::sleep(delay)).await
    }

    /// Waits while the owner's limits say so; the base model's memory is given back meanwhile.
    pub(super) async fn wait_until_allowed(&mut self) -> Result<(), VolunteerError> {
        let mut told: Option<WaitReason> = None;
        while let Some(reason) = self.gate.closed() {
            if let Some(trainee) = &mut self.trainee {
                trainee.local = None;
            }
            if told.as_ref() != Some(&reason) {
                told = Some(reason.clone());
                self.tell(VolunteerEvent::Waiting {
                    reason,
                    delay: None,
                });
            }
            self.until_stopped(tokio::time::sleep(LOOK_EVERY)).await?;
        }
        if told.is_some() {
            self.tell(VolunteerEvent::GoesOn);
        }
        Ok(())
    }

    pub(super) async fn until_stopped<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> Result<T, VolunteerError> {
        tokio::select! {
            done = work => Ok(done),
            _ = self.stop.stopped() => Err(self.stopped()),
        }
    }

    pub(super) fn stopped(&self) -> VolunteerError {
        VolunteerError::Stopped {
            kept: self.session.kept().is_some(),
        }
    }
}

/// Runs work that takes its time apart from the runtime's own thread.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, VolunteerError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| VolunteerError::NotPossible(format!("the work broke off: {error}")))
}
