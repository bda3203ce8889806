//! The texts of an answer's tokens on their way out: one for each token, and joined the whole text.
//!
//! A token whose text is not certain yet (a character that is not whole, what may begin a stop string)
//! waits for the next one, so that what is left at the end always has a token to stand with.

use std::time::{Duration, Instant};

/// So many tokens are sent at once.
const BATCH_TOKENS: usize = 5;
/// No token waits longer for others.
const BATCH_TIME: Duration = Duration::from_millis(50);

/// Texts that are not sent yet.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    ready: Vec<String>,
    /// When the first of `ready` came.
    since: Option<Instant>,
    /// The newest token's text so far, where more of it is to come.
    held: Option<String>,
}

impl Pieces {
    /// Takes the text that became certain with a new token, and whether some of it is still to come.
    pub(super) fn push(&mut self, text: String, is_incomplete: bool, now: Instant) {
        match (self.held.take(), is_incomplete) {
            // The text is of the earlier tokens as far as anyone can say.
            (Some(mut earlier), true) => {
                earlier.push_str(&text);
                self.ready(earlier, now);
                self.held = Some(String::new());
            }
            (Some(earlier), false) => {
                self.ready(earlier, now);
                self.ready(text, now);
            }
            (None, true) => self.held = Some(text),
            (None, false) => self.ready(text, now),
        }
    }

    /// Takes the last text; nothing is held any more.
    pub(super) fn finish(&mut self, rest: &str, now: Instant) {
        match (self.held.take(), self.ready.last_mut()) {
            (Some(mut held), _) => {
                held.push_str(rest);
                self.ready(held, now);
            }
            (None, Some(last)) => last.push_str(rest),
            (None, None) if rest.is_empty() => {}
            (None, None) => self.ready(rest.to_owned(), now),
        }
    }

    /// Whether there are enough for a batch.
    pub(super) fn is_full(&self) -> bool {
        self.ready.len() >= BATCH_TOKENS
    }

    /// When they are to be sent at the latest; none where nothing waits.
    pub(super) fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + BATCH_TIME)
    }

    /// What is to be sent.
    pub(super) fn take(&mut self) -> Vec<String> {
        self.since = None;
        std::mem::take(&mut self.ready)
    }

    fn ready(&mut self, text: String, now: Instant) {
        self.since.get_or_insert(now);
        self.ready.push(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(tokens: &[(&str, bool)], rest: &str) -> Vec<String> {
        let now = Instant::now();
        let mut pieces = Pieces::default();
        for (text, is_incomplete) in tokens {
            pieces.push((*text).to_owned(), *is_incomplete, now);
        }
        pieces.finish(rest, now);
        pieces.take()
    }

    #[test]
    fn there_is_one_text_for_each_token_and_joined_they_are_all() {
        assert_eq!(run(&[("a", false), (" b", false)], ""), ["a", " b"]);
        assert_eq!(
            run(&[("", true), ("\u{1f60a}", false)], ""),
            ["", "\u{1f60a}"]
        );
        assert_eq!(run(&[("x", true), ("", true)], "<|"), ["x", "<|"]);
        assert_eq!(
            run(&[("", true), ("a", true), ("a", true), ("b", false)], ""),
            ["a", "a", "", "b"]
        );
        assert_eq!(run(&[("", true)], "\u{fffd}"), ["\u{fffd}"]);
        assert!(run(&[], "").is_empty());
    }

    #[test]
    fn five_tokens_or_fifty_milliseconds_make_a_batch() {
        let now = Instant::now();
        let mut pieces = Pieces::default();
        assert_eq!(pieces.due(), None);
        pieces.push("a".to_owned(), false, now);
        pieces.push("b".to_owned(), false, now + Duration::from_millis(20));
        assert_eq!(pieces.due(), Some(now + Duration::from_millis(50)));
        assert!(!pieces.is_full());
        for _ in 0..3 {
            pieces.push("c".to_owned(), false, now);
        }
        assert!(pieces.is_full());
        assert_eq!(pieces.take().len(), 5);
        assert_eq!(pieces.due(), None);
        pieces.push("held".to_owned(), true, now);
        assert_eq!(pieces.due(), None, "what is held is not due");
    }
}
