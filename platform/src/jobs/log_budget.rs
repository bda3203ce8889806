//! How many lines of log a job may have written: a worker that writes without end must not fill the database nor
//! drown the dashboards. Pure.

use std::time::Duration;

use trainyard_shared::message::WorkerLogData;

use crate::clock::Moment;

/// Longest line that is kept.
const MAX_LINE_BYTES: usize = 4 * 1024;
/// What stands where a line was cut.
const CUT: &str = " [cut]";
/// So many lines may come at once.
const BURST: u32 = 200;
/// After those, one line in this time.
const REFILL: Duration = Duration::from_millis(50);

/// The lines that a job may still have written.
#[derive(Debug, Clone)]
pub struct LogBudget {
    left: u32,
    refilled_at: Moment,
    dropped: u64,
}

impl LogBudget {
    /// A full one.
    pub fn new(now: Moment) -> Self {
        Self {
            left: BURST,
            refilled_at: now,
            dropped: 0,
        }
    }

    /// Takes a line in. The line as it is to be kept; nothing where it is one too many. The first line after
    /// some that were dropped says how many.
    pub fn take(&mut self, line: &WorkerLogData, now: Moment) -> Option<WorkerLogData> {
        self.refill(now);
        let Some(left) = self.left.checked_sub(1) else {
            self.dropped += 1;
            return None;
        };
        self.left = left;
        let mut text = line.line.clone();
        if self.dropped > 0 {
            text.insert_str(0, &format!("[{} lines were dropped] ", self.dropped));
            self.dropped = 0;
        }
        cut(&mut text);
        Some(WorkerLogData {
            line: text,
            ..*line
        })
    }

    fn refill(&mut self, now: Moment) {
        let due = now.since(self.refilled_at).as_millis() / REFILL.as_millis();
        let due = u32::try_from(due).unwrap_or(BURST).min(BURST);
        if due > 0 {
            self.left = (self.left + due).min(BURST);
            self.refilled_at = if self.left == BURST {
                now
            } else {
                self.refilled_at + REFILL * due
            };
        }
    }
}

/// Cuts a line that is too long, between two characters, and marks it.
fn cut(line: &mut String) {
    if line.len() > MAX_LINE_BYTES {
        line.truncate(line.floor_char_boundary(MAX_LINE_BYTES - CUT.len()));
        line.push_str(CUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainyard_shared::message::LogLevel;

    fn line(text: &str) -> WorkerLogData {
        WorkerLogData {
            level: LogLevel::Warn,
            line: text.to_owned(),
        }
    }

    fn at(millis: u64) -> Moment {
        Moment::from_millis(1_000 + millis)
    }

    #[test]
    fn a_long_line_is_cut_between_characters_and_says_so() {
        let mut budget = LogBudget::new(at(0));
        let long = format!("x{}", "\u{e4}".repeat(5_000));
        let kept = budget.take(&line(&long), at(0)).unwrap();
        assert!(kept.line.len() <= MAX_LINE_BYTES && kept.line.len() > MAX_LINE_BYTES - 10);
        assert!(kept.line.ends_with("\u{e4} [cut]"));
        assert_eq!(kept.level, LogLevel::Warn);
        let short = "y".repeat(MAX_LINE_BYTES);
        assert_eq!(budget.take(&line(&short), at(0)).unwrap().line, short);
    }

    #[test]
    fn lines_beyond_the_rate_are_dropped_and_counted() {
        let mut budget = LogBudget::new(at(0));
        let kept = (0..10_000)
            .filter(|_| budget.take(&line("x"), at(1)).is_some())
            .count();
        assert_eq!(kept, BURST as usize);
        assert_eq!(
            budget.take(&line("x"), at(50)).unwrap().line,
            "[9800 lines were dropped] x"
        );
        assert_eq!(budget.take(&line("x"), at(99)), None);
        assert!(budget.take(&line("x"), at(100)).is_some());
        let later = at(1_000_000_000);
        let kept = (0..10_000)
            .filter(|_| budget.take(&line("x"), later).is_some())
            .count();
        assert_eq!(kept, BURST as usize);
    }
}
