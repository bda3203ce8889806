//! A chat as tokens: a prompt to go on from, or an example with the assistant's tokens marked.

use std::ops::Range;

use chrono::{DateTime, Local};
use sha2::{Digest, Sha256};
use trainyard_shared::dataset::{Role, Turn};

use super::ChatTemplate;
use crate::EngineError;
use crate::tokenizer::{PlacedToken, Tokenizer};

/// Stands for an answer while its place is looked for; no text holds this code point.
const PLACEHOLDER: &str = "\u{fdd1}answer\u{fdd1}";

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
        now: DateTime<Local>,
    ) -> Result<Self, EngineError> {
        let special = tokenizer.special().clone();
        let has_own_template = template.is_some();
        let template = match template {
            Some(source) => ChatTemplate::new(source, special, now)?,
            None => ChatTemplate::chatml(&tokenizer, now)?,
        };
        tokenizer.protect_template_tokens(template.source())?;
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
    /// where the template asks for it.
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
        for (index, turn) in turns.iter().enumerate() {
            if turn.role == Role::Assistant
                && is_trained(index)
                && let Some(place) = self.place_of(index, &turns, &rendered)?
            {
                self.mark(&mut trained, &tokens, &rendered, place);
            }
        }
        let ids = tokens.iter().map(|token| token.id).collect();
        Ok(self.with_bos(EncodedChat { ids, trained }))
    }

    /// The turns with their content as text that holds no control token.
    fn protected(&self, turns: &[Turn]) -> Vec<Turn> {
        let protect = |turn: &Turn| Turn {
            role: turn.role,
            content: self.tokenizer.as_content(&turn.content),
        };
        turns.iter().map(protect).collect()
    }

    /// Where in `rendered` a turn's content stands.
    ///
    /// Templates trim content, drop parts of it or wrap it, so it cannot simply be searched for. The
    /// chat is rendered again with another content in its place: what comes before it and after it
    /// stays the same.
    fn place_of(
        &self,
        index: usize,
        turns: &[Turn],
        rendered: &str,
    ) -> Result<Option<Range<usize>>, EngineError> {
        let mut probe = turns.to_vec();
        PLACEHOLDER.clone_into(&mut probe[index].content);
        let probed = self.template.render(&probe, false)?;
        let (Some(first), Some(last)) = (probed.find(PLACEHOLDER), probed.rfind(PLACEHOLDER))
        else {
            return Ok(None);
        };
        let after = &probed[last + PLACEHOLDER.len()..];
        let Some(before_end) = rendered.strip_suffix(after) else {
            return Ok(None);
        };
        let start = common_prefix(rendered, &probed[..first]);
        // A start behind the end: the template leaves this turn out as it is (it may be empty).
        Ok((start <= before_end.len()).then_some(start..before_end.len()))
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
        for (trained, token) in trained.iter_mut().zip(tokens) {
            *trained |= token.end > place.start && token.start < end;
        }
    }

    /// The first control token behind byte `at`, if there is only white space between.
    fn control_token_after(
        &self,
        tokens: &[PlacedToken],
        rendered: &str,
        at: usize,
    ) -> Option<usize> {
        let found = tokens
            .iter()
            .position(|token| token.end > at && self.tokenizer.is_control(token.id))?;
        let between = at..tokens[found].start.max(at);
        rendered[between].trim().is_empty().then_some(found)
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

/// Bytes that both texts begin with, whole characters only.
fn common_prefix(a: &str, b: &str) -> usize {
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    same.map(|(character, _)| character.len_utf8()).sum()
}
