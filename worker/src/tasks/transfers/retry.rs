//! Which faults of a transfer are worth another try, and when it comes.

use std::time::Duration;

use chrono::{DateTime, Utc};
use reqwest::StatusCode;
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};

use super::TransferError;
use crate::connection::backoff::jittered;

/// A difference of clocks below this is not worth a word.
const TOLERATED_SKEW_MINUTES: i64 = 5;

/// How often and how fast a transfer is tried again.
#[derive(Debug, Clone)]
pub struct RetryPolicy {
    /// Tries without progress before it is given up.
    pub tries: u32,
    /// Delay after the first of them; doubles.
    pub first_delay: Duration,
    /// Where that doubling ends.
    pub longest_delay: Duration,
}

impl Default for RetryPolicy {
    /// About two and a half minutes without progress: a restart of the platform passes unnoticed.
    fn default() -> Self {
        Self {
            tries: 10,
            first_delay: Duration::from_millis(500),
            longest_delay: Duration::from_secs(30),
        }
    }
}

/// One try that failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// May pass by itself; the server may say when to come back.
    Passing {
        reason: String,
        retry_after: Option<Duration>,
    },
    /// The address is not valid any more; a new one may be.
    Expired { answer: String, status: StatusCode },
    /// Stays.
    Final(TransferError),
}

impl Fault {
    pub(super) fn passing(reason: impl Into<String>) -> Self {
        Self::Passing {
            reason: reason.into(),
            retry_after: None,
        }
    }

    /// From an error of the HTTP client.
    pub(super) fn from_client(name: &str, error: reqwest::Error) -> Self {
        if error.is_builder() || error.is_redirect() {
            return Self::Final(TransferError::Refused {
                name: name.to_owned(),
                status: error.status().unwrap_or_default(),
                answer: super::describe(error),
            });
        }
        Self::passing(super::describe(error))
    }

    /// From an answer that is no success.
    pub(super) async fn from_answer(name: &str, response: reqwest::Response) -> Self {
        let status = response.status();
        let retry_after = retry_after(response.headers());
        let skew = clock_skew(response.headers(), Utc::now());
        let mut answer = super::describe_answer(response).await;
        if let (StatusCode::FORBIDDEN, Some(skew)) = (status, skew) {
            answer.push_str(&format!(" ({skew})"));
        }
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::GONE => {
                Self::Expired { answer, status }
            }
            _ if passes(status) => Self::Passing {
                reason: answer,
                retry_after,
            },
            _ => Self::Final(TransferError::Refused {
                name: name.to_owned(),
                status,
                answer,
            }),
        }
    }
}

/// Whether an answer with this status may be another one later.
pub(crate) fn passes(status: StatusCode) -> bool {
    match status {
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => true,
        StatusCode::NOT_IMPLEMENTED | StatusCode::HTTP_VERSION_NOT_SUPPORTED => false,
        _ => status.is_server_error(),
    }
}

/// Signed addresses hold for a time: a clock that is wrong makes them void, and nothing but this would say so.
fn clock_skew(headers: &HeaderMap, now: DateTime<Utc>) -> Option<String> {
    let date = headers.get(DATE)?.to_str().ok()?;
    let server = DateTime::parse_from_rfc2822(date).ok()?;
    let minutes = now.signed_duration_since(server).num_minutes();
    (minutes.abs() >= TOLERATED_SKEW_MINUTES).then(|| {
        let direction = if minutes > 0 { "ahead of" } else { "behind" };
        format!(
            "this machine's clock differs: it is {} min {direction} the server's",
            minutes.abs()
        )
    })
}

/// `Retry-After` in seconds. Its other form, a date, is not used by anything that we talk to.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers
        .get(RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()?;
    Some(Duration::from_secs(seconds))
}

/// The tries of one transfer since it last made progress.
#[derive(Debug)]
pub(super) struct Tries<'a> {
    policy: &'a RetryPolicy,
    failed: u32,
}

impl<'a> Tries<'a> {
    pub(super) fn new(policy: &'a RetryPolicy) -> Self {
        Self { policy, failed: 0 }
    }

    /// To be called when bytes have come through: it is worth going on.
    pub(super) fn progressed(&mut self) {
        self.failed = 0;
    }

    /// Waits before the next try, or says that there is none.
    pub(super) async fn wait(
        &mut self,
        name: &str,
        reason: String,
        retry_after: Option<Duration>,
    ) -> Result<(), TransferError> {
        self.failed += 1;
        if self.failed >= self.policy.tries {
            return Err(TransferError::GivenUp {
                name: name.to_owned(),
                tries: self.failed,
                last: reason,
            });
        }
        let delay = self.delay(rand::random(), retry_after);
        tracing::info!(transfer.file = name, transfer.try_number = self.failed, delay_ms = delay.as_millis() as u64, %reason, "transfer is tried again");
        tokio::time::sleep(delay).await;
        Ok(())
    }

    fn delay(&self, uniform: f64, retry_after: Option<Duration>) -> Duration {
        let factor = 1_u32.checked_shl(self.failed - 1).unwrap_or(u32::MAX);
        let doubled = self.policy.first_delay.saturating_mul(factor);
        let longest = self.policy.longest_delay;
        let asked = retry_after.unwrap_or_default().min(longest);
        jittered(doubled.min(longest), uniform).max(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g049_only_faults_that_pass_are_tried_again() {
        for status in [408, 429, 500, 502, 503, 504, 507] {
            assert!(passes(StatusCode::from_u16(status).unwrap()), "{status}");
        }
        for status in [400, 401, 403, 404, 405, 409, 410, 413, 416, 501, 505] {
            assert!(!passes(StatusCode::from_u16(status).unwrap()), "{status}");
        }
    }

    #[test]
    fn g045_a_clock_that_differs_is_named() {
        let now = "2026-03-01T12:20:00Z".parse().unwrap();
        let headers = |date: &str| HeaderMap::from_iter([(DATE, date.parse().unwrap())]);
        let told = |date| clock_skew(&headers(date), now);
        assert_eq!(
            told("Sun, 01 Mar 2026 12:00:00 GMT").unwrap(),
            "this machine's clock differs: it is 20 min ahead of the server's"
        );
        assert!(
            told("Sun, 01 Mar 2026 13:00:00 GMT")
                .unwrap()
                .contains("40 min behind")
        );
        assert_eq!(told("Sun, 01 Mar 2026 12:18:00 GMT"), None);
        assert_eq!(told("yesterday"), None);
    }

    #[test]
    fn delays_double_up_to_the_longest_and_heed_the_server() {
        let policy = RetryPolicy::default();
        let mut tries = Tries::new(&policy);
        let delays: Vec<f64> = (1..=8)
            .map(|failed| {
                tries.failed = failed;
                tries.delay(0.5, None).as_secs_f64()
            })
            .collect();
        assert_eq!(delays, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]);
        tries.failed = 1;
        assert_eq!(tries.delay(0.0, Some(Duration::from_secs(7))).as_secs(), 7);
        assert_eq!(
            tries.delay(0.5, Some(Duration::from_secs(3600))).as_secs(),
            30
        );
    }
}
