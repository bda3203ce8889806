//! Text from tokens as they come, whole characters only.

use super::Tokenizer;
use crate::EngineError;

/// What stands for bytes that are no character, or none yet.
const REPLACEMENT: char = '\u{fffd}';

/// A character has no more tokens than this: what is incomplete after so many will never be complete.
const LONGEST_CHARACTER: usize = 8;

/// Turns tokens into text one by one; what it gives, joined, is the text of all of them.
///
/// A character that is spread over several tokens comes out with the last of them. Some tokens before
/// the new ones are decoded again each time, since the text of a token depends on its neighbours.
#[derive(Debug, Default)]
pub struct TextStream {
    ids: Vec<u32>,
    /// The text of `ids[..given]` is out.
    given: usize,
}

impl TextStream {
    /// A stream that has seen no token.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a token and gives the text that is complete with it, which may be none yet.
    ///
    /// # Errors
    /// [`EngineError::Tokenizer`] where the tokenizer fails.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String, EngineError> {
        self.ids.push(id);
        let text = self.pending(tokenizer)?;
        let may_go_on = self.ids.len() - self.given < LONGEST_CHARACTER;
        if text.is_empty() || (text.ends_with(REPLACEMENT) && may_go_on) {
            return Ok(String::new());
        }
        self.ids.drain(..self.given);
        self.given = self.ids.len();
        Ok(text)
    }

    /// Whether a token's text is not given yet.
    pub fn is_incomplete(&self) -> bool {
        self.ids.len() > self.given
    }

    /// What is left at the end, incomplete characters included.
    ///
    /// # Errors
    /// [`EngineError::Tokenizer`] where the tokenizer fails.
    pub fn finish(self, tokenizer: &Tokenizer) -> Result<String, EngineError> {
        self.pending(tokenizer)
    }

    fn pending(&self, tokenizer: &Tokenizer) -> Result<String, EngineError> {
        let given = tokenizer.decode(&self.ids[..self.given])?;
        let all = tokenizer.decode(&self.ids)?;
        Ok(all.get(given.len()..).unwrap_or_default().to_owned())
    }
}
