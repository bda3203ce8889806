//! Limits of a WebSocket frame and the close codes that both sides use (PROTOCOL 1).

/// Largest text frame that is taken, in bytes (`MAX_FRAME_BYTES`). Larger ones: close [`close::TOO_BIG`].
pub const MAX_FRAME_BYTES: usize = 1024 * 1024;

/// So many `error` answers within a minute close the connection with [`close::PROTOCOL_VIOLATION`].
pub const MAX_ERRORS_PER_MINUTE: usize = 20;

/// Why a WebSocket was closed.
pub mod close {
    use std::time::Duration;

    const TURN: &str = "; come back in ";

    /// The reason of a close, with the worker's turn to come back, in whole seconds (an addition of ours: a
    /// worker that does not read it keeps its own rule).
    pub fn with_turn(reason: &str, turn: Duration) -> String {
        format!("{reason}{TURN}{} s", turn.as_secs_f64().ceil())
    }

    /// The turn that the reason of a close names, if it names one of an hour or less.
    pub fn turn(reason: &str) -> Option<Duration> {
        let (_, rest) = reason.rsplit_once(TURN)?;
        let seconds: u64 = rest.strip_suffix(" s")?.parse().ok()?;
        (seconds <= 3600).then(|| Duration::from_secs(seconds))
    }

    /// The server goes away (shutdown).
    pub const GOING_AWAY: u16 = 1001;
    /// A binary frame came where only text is spoken.
    pub const UNSUPPORTED: u16 = 1003;
    /// A text frame was not valid UTF-8.
    pub const INVALID_UTF8: u16 = 1007;
    /// A frame was over [`super::MAX_FRAME_BYTES`].
    pub const TOO_BIG: u16 = 1009;
    /// Too many messages that had to be answered with `error`.
    pub const PROTOCOL_VIOLATION: u16 = 4400;
    /// Authentication failed, or the key was revoked or replaced.
    pub const AUTHENTICATION_FAILED: u16 = 4401;
    /// Not allowed (any more): the worker or user was deleted.
    pub const NOT_ALLOWED: u16 = 4403;
    /// The deadline for authenticating or registering passed, or a dashboard took nothing for too long.
    pub const DEADLINE_PASSED: u16 = 4408;
    /// A newer connection of the same worker took over.
    pub const REPLACED: u16 = 4409;
    /// Too many requests.
    pub const RATE_LIMITED: u16 = 4429;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::close;

    #[test]
    fn a_turn_is_read_from_the_reason_that_names_it_and_from_no_other() {
        let reason = close::with_turn("the platform stops", Duration::from_millis(11_200));
        assert_eq!(reason, "the platform stops; come back in 12 s");
        assert_eq!(close::turn(&reason), Some(Duration::from_secs(12)));
        for other in [
            "",
            "the platform stops",
            "x; come back in  s",
            "x; come back in -1 s",
            "x; come back in 9999999 s",
        ] {
            assert_eq!(close::turn(other), None, "{other}");
        }
    }
}
