//! An answer's text as its tokens come: whole characters, and nothing that may turn out to be a stop string.

use crate::{
    EngineError,
    tokenizer::{TextStream, Tokenizer},
};

/// Turns an answer's tokens into text, and finds where a stop string ends it.
///
/// What it gives, joined, is the text before the first stop string.
#[derive(Debug)]
pub struct AnswerText {
    stream: TextStream,
    stops: Vec<String>,
    /// Text that may be the beginning of a stop string.
    held: String,
    over: bool,
}

/// What a token brought.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Piece {
    /// Text that is certain now.
    pub text: String,
    /// Whether a stop string ends the answer here.
    pub stopped: bool,
}

impl AnswerText {
    /// An answer that any of `stops` ends; empty ones are left out.
    pub fn new(stops: &[String]) -> Self {
        Self {
            stream: TextStream::new(),
            stops: stops.iter().filter(|s| !s.is_empty()).cloned().collect(),
            held: String::new(),
            over: false,
        }
    }

    /// Takes a token. Behind a stop string there is no more text.
    ///
    /// # Errors
    /// [`EngineError::Tokenizer`] where the tokenizer fails.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<Piece, EngineError> {
        let text = self.stream.push(tokenizer, id)?;
        let mut piece = self.take(&text);
        if !self.over {
            let held = self.held_from();
            piece.text.push_str(&self.held[..held]);
            self.held.drain(..held);
        }
        Ok(piece)
    }

    /// Whether a token's text is not all given yet.
    pub fn is_incomplete(&self) -> bool {
        !self.over && (!self.held.is_empty() || self.stream.is_incomplete())
    }

    /// What is left at the end, incomplete characters included.
    ///
    /// # Errors
    /// [`EngineError::Tokenizer`] where the tokenizer fails.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<Piece, EngineError> {
        let text = std::mem::take(&mut self.stream).finish(tokenizer)?;
        let mut piece = self.take(&text);
        piece.text.push_str(&std::mem::take(&mut self.held));
        self.over = true;
        Ok(piece)
    }

    /// Adds text to what is held, and gives it up to a stop string, if there is one.
    fn take(&mut self, text: &str) -> Piece {
        if self.over {
            return Piece::default();
        }
        self.held.push_str(text);
        let Some(at) = self.stops.iter().filter_map(|s| self.held.find(s)).min() else {
            return Piece::default();
        };
        self.over = true;
        self.held.truncate(at);
        Piece {
            text: std::mem::take(&mut self.held),
            stopped: true,
        }
    }

    /// Where the longest end of the held text begins that a stop string may begin with.
    fn held_from(&self) -> usize {
        let begins_a_stop = |at: &usize| {
            let end = &self.held[*at..];
            self.stops.iter().any(|stop| stop.starts_with(end))
        };
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let len = self.held.len();
        (len.saturating_sub(longest)..len)
            .filter(|at| self.held.is_char_boundary(*at))
            .find(begins_a_stop)
            .unwrap_or(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::testing::{byte_token, bytes};

    /// Runs the bytes of `text` one token each; gives every piece, the rest, and where a stop came.
    fn run(text: &[u8], stops: &[&str]) -> (Vec<String>, Option<usize>) {
        let tokenizer = bytes();
        let stops: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
        let mut answer = AnswerText::new(&stops);
        let mut pieces = Vec::new();
        let mut stopped = None;
        for (index, byte) in text.iter().enumerate() {
            let piece = answer.push(&tokenizer, byte_token(*byte)).unwrap();
            pieces.push(piece.text);
            if piece.stopped {
                stopped = Some(index);
                break;
            }
        }
        let rest = answer.finish(&tokenizer).unwrap();
        pieces.push(rest.text);
        (pieces, stopped.or(rest.stopped.then_some(text.len())))
    }

    #[test]
    fn g089_joined_pieces_are_the_whole_text_and_no_character_is_cut() {
        for text in ["a \u{1f60a} b", "da\u{11f}", "\u{4f60}\u{597d}", "plain"] {
            let (pieces, stopped) = run(text.as_bytes(), &[]);
            assert_eq!(pieces.concat(), text);
            assert_eq!(stopped, None);
            assert!(pieces.iter().all(|piece| !piece.contains('\u{fffd}')));
        }
    }

    #[test]
    fn a_stop_string_over_several_tokens_ends_the_text_before_it() {
        let (pieces, stopped) = run(b"one two\n\nthree", &["\n\n"]);
        assert_eq!(pieces.concat(), "one two");
        assert_eq!(stopped, Some(8));
        let (pieces, stopped) = run(b"say STOP now", &["END", "STOP"]);
        assert_eq!((pieces.concat(), stopped), ("say ".to_owned(), Some(7)));
    }

    #[test]
    fn what_only_looked_like_a_stop_string_comes_out_in_the_end() {
        let (pieces, stopped) = run(b"a\nb \n", &["\n\n"]);
        assert_eq!((pieces.concat(), stopped), ("a\nb \n".to_owned(), None));
        let (pieces, _) = run(b"aaaaab", &["aab"]);
        assert_eq!(
            pieces.concat(),
            "aaa",
            "the stop string may begin anew at every letter"
        );
        let (pieces, _) = run(b"aaaaaa", &["aab"]);
        assert_eq!(pieces.concat(), "aaaaaa");
        assert_eq!(
            pieces[2], "a",
            "no more is held back than a stop string is long"
        );
    }

    #[test]
    fn stop_strings_of_wide_characters_are_found_and_empty_ones_stop_nothing() {
        let (pieces, stopped) = run("ja \u{11f}\u{1f60a}x".as_bytes(), &["", "\u{11f}\u{1f60a}"]);
        assert_eq!(
            (pieces.concat(), stopped.is_some()),
            ("ja ".to_owned(), true)
        );
        let (pieces, stopped) = run("ja \u{11f}x".as_bytes(), &["\u{11f}\u{1f60a}"]);
        assert_eq!((pieces.concat(), stopped), ("ja \u{11f}x".to_owned(), None));
    }

    #[test]
    fn a_character_that_never_ends_comes_out_as_a_replacement() {
        let (pieces, _) = run(b"a\xf0\x9f", &["zz"]);
        assert!(pieces.concat().starts_with("a\u{fffd}"), "{pieces:?}");
        let many = [0xf0_u8; 50];
        let (pieces, _) = run(&many, &[]);
        let early: String = pieces[..20].concat();
        assert!(!early.is_empty(), "garbage is not held back for ever");
    }
}
