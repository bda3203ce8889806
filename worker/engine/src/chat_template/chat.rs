//! A chat as tokens: a prompt to go on from, or an example with the assistant's tokens marked.

use std::ops::Range;

use chrono::{DateTime, FixedOffset};
use sha2::{Digest, Sha256};
use trainyard_shared::dataset::{Role, Turn};

use super::ChatTemplate;
use super::frames::frames;
use crate::EngineError;
use crate::tokenizer::{PlacedToken, Tokenizer};

/// Frames what stands for an answer while its place is looked for; no text holds this code point.
const EDGE: char = '\u{fdd1}';
/// Stands for an answer while its place is looked for.
const PLACEHOLDER: &str = "\u{fdd1}answer\u{fdd1}";

/// Answers' indices, and where the rendered chat holds their contents, in bytes.
type Places = Vec<(usize, Range<usize>)>;

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
        for (index, place) in self.places(&turns, &rendered)? {
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

    /// Where in `rendered` the content of each answer stands that the template renders, by the answer's index.
    fn places(&self, turns: &[Turn], rendered: &str) -> Result<Places, EngineError> {
        if let Some(places) = self.places_at_once(turns, rendered)? {
            return Ok(places);
        }
        let mut places = Vec::new();
        for index in answers(turns) {
            let place = self.place_of(index, turns, rendered)?;
            places.extend(place.map(|place| (index, place)));
        }
        Ok(places)
    }

    /// The places of all answers by rendering the chat once more with something else in the place of each. None where
    /// the template does more with answers than trimming them.
    fn places_at_once(
        &self,
        turns: &[Turn],
        rendered: &str,
    ) -> Result<Option<Places>, EngineError> {
        let mut probe = turns.to_vec();
        for index in answers(turns) {
            probe[index].content = format!("{EDGE}{index}{EDGE}");
        }
        let probed = self.template.render(&probe, false)?;
        let mut pieces = probed.split(EDGE);
        let mut rest = rendered;
        let Some(mut frame) = pieces.next() else {
            return Ok(None);
        };
        let mut places = Vec::new();
        for index in answers(turns) {
            let (Some(number), Some(next)) = (pieces.next(), pieces.next()) else {
                return Ok(None);
            };
            let Some(from_answer) = rest.strip_prefix(frame) else {
                return Ok(None);
            };
            let content = turns[index].content.as_str();
            let forms = [
                content,
                content.trim_end(),
                content.trim_start(),
                content.trim(),
            ];
            let behind = forms.into_iter().find_map(|form| {
                let behind = from_answer.strip_prefix(form)?;
                behind.starts_with(next).then_some(behind)
            });
            let Some(behind) = behind.filter(|_| number.parse() == Ok(index)) else {
                return Ok(None);
            };
            let start = rendered.len() - from_answer.len();
            places.push((index, start..rendered.len() - behind.len()));
            (rest, frame) = (behind, next);
        }
        let is_whole = rest == frame && pieces.next().is_none();
        Ok(is_whole.then_some(places))
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

/// The indices of the turns that are answers.
fn answers(turns: &[Turn]) -> impl Iterator<Item = usize> + '_ {
    let is_answer = |(index, turn): (usize, &Turn)| (turn.role == Role::Assistant).then_some(index);
    turns.iter().enumerate().filter_map(is_answer)
}

/// The index of the first token that ends behind byte `at`; tokens end in order.
fn first_behind(tokens: &[PlacedToken], at: usize) -> usize {
    tokens.partition_point(|token| token.end <= at)
}

/// Bytes that both texts begin with, whole characters only.
fn common_prefix(a: &str, b: &str) -> usize {
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    same.map(|(character, _)| character.len_utf8()).sum()
}

#[cfg(test)]
mod tests {
    use chrono::Local;

    use super::*;
    use crate::tokenizer::testing::bytes;

    #[test]
    fn answers_are_found_alike_at_once_and_one_by_one() {
        let turn = |role, content: &str| Turn {
            role,
            content: content.to_owned(),
        };
        let turns: Vec<Turn> = (0..40)
            .flat_map(|round| {
                [
                    turn(Role::User, "yes"),
                    turn(Role::Assistant, &format!(" yes{}\n", round % 3)),
                ]
            })
            .collect();
        let trimming = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}";
        for template in [None, Some(trimming)] {
            let chat = Chat::new(bytes(), template, Local::now()).unwrap();
            let rendered = chat.template.render(&turns, false).unwrap();
            let at_once = chat.places_at_once(&turns, &rendered).unwrap().unwrap();
            assert_eq!(at_once.len(), 40);
            for (index, place) in at_once {
                let alone = chat.place_of(index, &turns, &rendered).unwrap();
                assert_eq!(alone, Some(place));
            }
        }
    }
}
