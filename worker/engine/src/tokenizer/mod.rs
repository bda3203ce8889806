//! Text to tokens and back, by a model's own tokenizer, with content kept apart from control tokens.
//!
//! A control token (`<|im_end|>`, `<s>`, …) comes out of text only where a chat template wrote it. In
//! what people wrote, the same characters are text like any other: [`Tokenizer::as_content`] puts an
//! invisible mark into them, which keeps the tokenizer from seeing the control token and which its
//! normaliser drops before the text is cut into ordinary tokens.

mod files;
mod stream;

use regex::{Captures, Regex};
use tokenizers::normalizers::{NormalizerWrapper, Replace, Sequence};
use tokenizers::{AddedToken, Encoding};

use crate::EngineError;

pub use files::SpecialTokens;
pub use stream::TextStream;

/// The mark inside control tokens that are content: a code point that is reserved to be no character.
const MARK: char = '\u{fdd0}';

/// A model's tokenizer.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    special: SpecialTokens,
    /// Finds the text of any control token; none where there are no control tokens.
    control: Option<Regex>,
    /// What the tokenizer itself puts in front of a text: a BOS token or nothing.
    prefix: Vec<u32>,
}

/// A token with the bytes of the text that it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedToken {
    /// The token.
    pub id: u32,
    /// First byte of the text that it covers.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Tokenizer {
    /// Reads the content of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`EngineError::Tokenizer`] where it cannot be read.
    pub fn from_json(json: &[u8], special: SpecialTokens) -> Result<Self, EngineError> {
        let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(broken)?;
        inner.with_truncation(None).map_err(broken)?;
        inner.with_padding(None);
        let drop_marks = Replace::new(MARK.to_string(), "").map_err(broken)?;
        let mut normalizers = vec![NormalizerWrapper::from(drop_marks)];
        normalizers.extend(inner.get_normalizer().cloned());
        inner
            .with_normalizer(Some(Sequence::new(normalizers)))
            .map_err(broken)?;
        let mut tokenizer = Self {
            inner,
            special,
            control: None,
            prefix: Vec::new(),
        };
        let named: Vec<String> = tokenizer.special.all().map(str::to_owned).collect();
        tokenizer.make_control(|token| token.special || named.contains(&token.content))?;
        let empty = tokenizer.inner.encode("", true).map_err(broken)?;
        tokenizer.prefix = match (empty.get_ids(), tokenizer.bos()) {
            ([first, ..], Some(bos)) if *first == bos => vec![bos],
            _ => Vec::new(),
        };
        Ok(tokenizer)
    }

    /// Makes control tokens of the added tokens that `template` writes by name, whatever the
    /// tokenizer's file calls them.
    ///
    /// # Errors
    /// [`EngineError::Tokenizer`] where they cannot be told apart.
    pub fn protect_template_tokens(&mut self, template: &str) -> Result<(), EngineError> {
        self.make_control(|token| token.special || template.contains(&token.content))
    }

    /// The tokenizer with the first known of `ids` as its EOS token, where its own files name none.
    pub fn with_eos_from(mut self, ids: &[u32]) -> Self {
        if self.special.eos.is_none() {
            self.special.eos = ids.iter().find_map(|&id| self.inner.id_to_token(id));
        }
        self
    }

    /// All that tokens depend on, written out.
    ///
    /// # Errors
    /// [`EngineError::Tokenizer`] where it cannot be.
    pub fn to_text(&self) -> Result<String, EngineError> {
        let control = self.control.as_ref().map_or("", Regex::as_str);
        let inner = self.inner.to_string(false).map_err(broken)?;
        Ok(format!("{:?} {control} {inner}", self.prefix))
    }

    /// The id of a token by its text.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The tokens with a role: BOS, EOS, unknown, padding.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// The token that begins a text, if the tokenizer has one.
    pub fn bos(&self) -> Option<u32> {
        self.id_of(self.special.bos.as_deref()?)
    }

    /// The token that ends a text, if the tokenizer has one.
    pub fn eos(&self) -> Option<u32> {
        self.id_of(self.special.eos.as_deref()?)
    }

    /// Whether `id` is a control token.
    pub fn is_control(&self, id: u32) -> bool {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        added.get(&id).is_some_and(|token| token.special)
    }

    /// The tokens that the tokenizer puts in front of every text: one BOS or nothing.
    pub fn prefix(&self) -> &[u32] {
        &self.prefix
    }

    /// `text` such that nothing in it can become a control token once it stands in a rendered chat.
    pub fn as_content(&self, text: &str) -> String {
        let mut content = text.to_owned();
        let Some(control) = &self.control else {
            return content;
        };
        // Every round breaks what it finds; another one is needed where two finds overlap.
        while control.is_match(&content) {
            content = control
                .replace_all(&content, |found: &Captures<'_>| {
                    let mut token = found[0].chars();
                    let first = token.next().map(String::from).unwrap_or_default();
                    format!("{first}{MARK}{}", token.as_str())
                })
                .into_owned();
        }
        content
    }

    /// The tokens of a text that people wrote, BOS first where the tokenizer adds one, with their
    /// places in `text`. An added BOS covers no byte.
    ///
    /// # Errors
    /// [`EngineError::Tokenizer`] where the tokenizer fails.
    pub fn encode_text(&self, text: &str) -> Result<Vec<PlacedToken>, EngineError> {
        let content = self.as_content(text);
        let mut tokens: Vec<PlacedToken> = self
            .prefix
            .iter()
            .map(|&id| PlacedToken {
                id,
                start: 0,
                end: 0,
            })
            .collect();
        tokens.extend(placed(&self.encode(&content)?));
        if content.len() != text.len() {
            for token in &mut tokens {
                token.start -= marks_before(&content, token.start);
                token.end -= marks_before(&content, token.end);
            }
        }
        Ok(tokens)
    }

    /// The tokens of a rendered chat with their places in it; nothing is put in front.
    ///
    /// # Errors
    /// [`EngineError::Tokenizer`] where the tokenizer fails.
    pub fn encode_rendered(&self, rendered: &str) -> Result<Vec<PlacedToken>, EngineError> {
        Ok(placed(&self.encode(rendered)?).collect())
    }

    /// The text of some tokens, control tokens left out.
    ///
    /// # Errors
    /// [`EngineError::Tokenizer`] where the tokenizer fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String, EngineError> {
        self.inner.decode(ids, true).map_err(broken)
    }

    fn encode(&self, text: &str) -> Result<Encoding, EngineError> {
        self.inner.encode(text, false).map_err(broken)
    }

    /// Makes the added tokens that `is_control` picks control tokens: special, found in the text as it
    /// stands, and broken where they are content.
    fn make_control(
        &mut self,
        is_control: impl Fn(&AddedToken) -> bool,
    ) -> Result<(), EngineError> {
        let mut tokens: Vec<AddedToken> = self
            .inner
            .get_added_tokens_decoder()
            .into_values()
            .filter(|token| token.content.chars().nth(1).is_some() && is_control(token))
            .collect();
        tokens.sort_by(|a, b| (b.content.len(), &a.content).cmp(&(a.content.len(), &b.content)));
        self.control = if tokens.is_empty() {
            None
        } else {
            let texts: Vec<String> = tokens
                .iter()
                .map(|token| regex::escape(&token.content))
                .collect();
            Some(
                Regex::new(&texts.join("|"))
                    .map_err(|error| EngineError::Tokenizer(error.to_string()))?,
            )
        };
        let tokens = tokens
            .into_iter()
            .map(|token| token.normalized(false).special(true));
        self.inner.add_special_tokens(tokens).map_err(broken)?;
        Ok(())
    }
}

fn placed(encoding: &Encoding) -> impl Iterator<Item = PlacedToken> + '_ {
    let places = encoding.get_ids().iter().zip(encoding.get_offsets());
    places.map(|(&id, &(start, end))| PlacedToken { id, start, end })
}

/// Bytes that marks take in the first `end` bytes of `content`.
fn marks_before(content: &str, end: usize) -> usize {
    content[..end].matches(MARK).count() * MARK.len_utf8()
}

fn broken(error: tokenizers::Error) -> EngineError {
    EngineError::Tokenizer(error.to_string())
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
