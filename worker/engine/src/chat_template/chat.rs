//! A chat as tokens: a prompt to go on from, or an example with the assistant's tokens marked.

use std::ops::Range;

use chrono::{DateTime, FixedOffset};
use sha2::{Digest, Sha256};
use trainyard_shared::dataset::{Role, Turn};

use super::ChatTemplate;
use super::frames::frames;
use super::places::{PLACEHOLDER, places};
use crate::EngineError;
use crate::tokenizer::{PlacedToken, Tokenizer};

/// A model's tokenizer and chat template together.
#[derive(Debug)]
pub struct Chat {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    has_own_template: bool,
    end_of_turn: Option<u32>,
}

/// An example as tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncodedChat {
    /// The tokens.
    pub ids: Vec<u32>,
    /// For each token whether it is to be learned (as a target; it is read in any case).
    pub trained: Vec<bool>,
}

impl Chat {
    /// Joins a tokenizer with the model's template, or with ChatML where there is none. `now` is what
    /// a template that asks is told to be the time.
    ///
    /// # Errors
    /// [`EngineError::ChatTemplate`] where the template cannot be compiled.
    pub fn new(
        mut tokenizer: Tokenizer,
        template: Option<&str>,
        now: impl Into<DateTime<FixedOffset>>,
    ) -> Result<Self, EngineError> {
        let now = now.into();
        let special = tokenizer.special().clone();
        let has_own_template = template.is_some();
        let template = match template {
            Some(source) => ChatTemplate::new(source, special, now)?,
            None => ChatTemplate::chatml(&tokenizer, now)?,
        };
        let frames = frames(&tokenizer, &template);
        tokenizer.protect(&frames)?;
        let mut chat = Self {
            tokenizer,
            template,
            has_own_template,
            end_of_turn: None,
        };
        chat.end_of_turn = chat.find_end_of_turn();
        Ok(chat)
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Digest of everything that the tokens of a chat or text depend on, in hexadecimal. The time is part of it only
    /// as far as the template tells it.
    ///
    /// # Errors
    /// [`EngineError::Tokenizer`] where the tokenizer cannot be written out.
    pub fn digest(&self) -> Result<String, EngineError> {
        let mut hasher = Sha256::new();
        for part in [
            self.tokenizer.to_text()?,
            format!("{:?}", self.tokenizer.special()),
            self.template.source().to_owned(),
            self.template.time_it_tells(),
        ] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Ok(hex::encode(hasher.finalize()))
    }

    /// Whether the model brought its own template.
    pub fn has_own_template(&self) -> bool {
        self.has_own_template
    }

    /// The control token with which the template ends an assistant's turn, if it does.
    pub fn end_of_turn(&self) -> Option<u32> {
        self.end_of_turn
    }

    /// The tokens after which the assistant is to speak.
    ///
    /// # Errors
    /// [`EngineError::ChatTemplate`] where there is no turn or the template refuses the chat.
    pub fn encode_prompt(&self, turns: &[Turn]) -> Result<Vec<u32>, EngineError> {
        if turns.is_empty() {
            return Err(EngineError::ChatTemplate(
                "a chat needs at least one message".into(),
            ));
        }
        let rendered = self.template.render(&self.protected(turns), true)?;
        let ids = self
            .tokenizer
            .encode_rendered(&rendered)?
            .into_iter()
            .map(|token| token.id)
            .collect();
        Ok(self
            .with_bos(EncodedChat {
                ids,
                trained: Vec::new(),
            })
            .ids)
    }

    /// The tokens of a whole chat; those of the assistant's turns that `is_trained` picks by index are
    /// marked, each with the token that ends the turn.
    ///
    /// # Errors
    /// [`EngineError::ChatTemplate`] where the template refuses the chat.
    pub fn encode(
        &self,
        turns: &[Turn],
        is_trained: impl Fn(usize) -> bool,
    ) -> Result<EncodedChat, EngineError> {
        let turns = self.protected(turns);
        let rendered = self.template.render(&turns, false)?;
        let tokens = self.tokenizer.encode_rendered(&rendered)?;
        let mut trained = vec![false; tokens.len()];
        for (index, place) in places(&self.template, &turns, &rendered, &is_trained)? {
            if is_trained(index) {
                self.mark(&mut trained, &tokens, &rendered, place);
            }
        }
        let ids = tokens.iter().map(|token| token.id).collect();
        Ok(self.with_bos(EncodedChat { ids, trained }))
    }

    /// The turns with their content as text that holds no control token, and no added token but in answers.
    fn protected(&self, turns: &[Turn]) -> Vec<Turn> {
        let protect = |turn: &Turn| Turn {
            role: turn.role,
            content: match turn.role {
                Role::Assistant => self.tokenizer.as_answer(&turn.content),
                _ => self.tokenizer.as_content(&turn.content),
            },
        };
        turns.iter().map(protect).collect()
    }

    /// Marks the tokens of the content at `place` and on to the token that ends the turn.
    fn mark(
        &self,
        trained: &mut [bool],
        tokens: &[PlacedToken],
        rendered: &str,
        place: Range<usize>,
    ) {
        let end_of_turn = self.control_token_after(tokens, rendered, place.end);
        let end = end_of_turn.map_or(place.end, |index| tokens[index].end);
        let first = first_behind(tokens, place.start);
        for (trained, token) in trained[first..].iter_mut().zip(&tokens[first..]) {
            if token.start >= end {
                break;
            }
            *trained = true;
        }
    }

    /// The first control token behind byte `at`, if there is only white space between.
    fn control_token_after(
        &self,
        tokens: &[PlacedToken],
        rendered: &str,
        at: usize,
    ) -> Option<usize> {
        let first = first_behind(tokens, at);
        for (index, token) in tokens.iter().enumerate().skip(first) {
            if self.tokenizer.is_control(token.id) {
                return Some(index);
            }
            // None where a token ends inside a character, which then is no white space.
            let between = rendered.get(token.start.max(at)..token.end)?;
            if !between.trim().is_empty() {
                return None;
            }
        }
        None
    }

    /// Puts the BOS token in front where the tokenizer adds one to texts and the template did not.
    fn with_bos(&self, mut chat: EncodedChat) -> EncodedChat {
        let prefix = self.tokenizer.prefix();
        if !chat.ids.starts_with(prefix) {
            chat.ids.splice(0..0, prefix.iter().copied());
            chat.trained.splice(0..0, prefix.iter().map(|_| false));
        }
        chat
    }

    fn find_end_of_turn(&self) -> Option<u32> {
        let turn = |role, content: &str| Turn {
            role,
            content: content.to_owned(),
        };
        let turns = [
            turn(Role::User, "Hello"),
            turn(Role::Assistant, PLACEHOLDER),
        ];
        let rendered = self.template.render(&turns, false).ok()?;
        let answer_end = rendered.rfind(PLACEHOLDER)? + PLACEHOLDER.len();
        let tokens = self.tokenizer.encode_rendered(&rendered).ok()?;
        let found = self.control_token_after(&tokens, &rendered, answer_end)?;
        Some(tokens[found].id)
    }
}

/// The index of the first token that ends behind byte `at`; tokens end in order.
fn first_behind(tokens: &[PlacedToken], at: usize) -> usize {
    tokens.partition_point(|token| token.end <= at)
}
