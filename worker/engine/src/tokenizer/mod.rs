//! Text to tokens and back, by a model's own tokenizer, with content kept apart from control tokens.
//!
//! A control token (`<|im_end|>`, `<s>`, …) comes out of text only where a chat template wrote it. In
//! what people wrote, the same characters are text like any other: [`Tokenizer::as_content`] puts an
//! invisible mark into them, which keeps the tokenizer from seeing the control token and which its
//! normaliser drops before the text is cut into ordinary tokens.
//!
//! Added tokens that are no control tokens (`<think>`, `<tool_call>`, `<|fim_prefix|>`, …) belong to what
//! the assistant says: they are tokens in its answers ([`Tokenizer::as_answer`]) and in generated text.
//! From anybody else they are text too.

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
    /// Finds the text of any added token that has a meaning of its own, control or not.
    added: Option<Regex>,
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
            added: None,
            prefix: Vec::new(),
        };
        let named: Vec<String> = tokenizer.special.all().map(str::to_owned).collect();
        tokenizer.make_control(&|token| named.contains(&token.content))?;
        tokenizer.prefix = tokenizer.find_prefix()?;
        Ok(tokenizer)
    }

    /// Makes control tokens of these added tokens, whatever the tokenizer's file calls them.
    ///
    /// # Errors
    /// [`EngineError::Tokenizer`] where they cannot be told apart.
    pub fn protect(&mut self, tokens: &[String]) -> Result<(), EngineError> {
        self.make_control(&|token| tokens.contains(&token.content))
    }

    /// The added tokens, longest first; of those that are no control tokens only the ones with a meaning.
    pub fn added_tokens(&self) -> Vec<String> {
        let tokens = self.tokens_by_length(|token| token.special || has_meaning(&token.content));
        tokens.into_iter().map(|token| token.content).collect()
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
        let source = |regex: &Option<Regex>| regex.as_ref().map_or("", Regex::as_str).to_owned();
        let (control, added) = (source(&self.control), source(&self.added));
        let inner = self.inner.to_string(false).map_err(broken)?;
        Ok(format!("{:?} {control} {added} {inner}", self.prefix))
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

    /// The tokens that the tokenizer puts in front of every text: a BOS token or nothing.
    pub fn prefix(&self) -> &[u32] {
        &self.prefix
    }

    /// `text` such that nothing in it can become an added token once it stands in a rendered chat.
    pub fn as_content(&self, text: &str) -> String {
        broken_up(self.added.as_ref(), text)
    }

    /// `text`, which the assistant says, such that nothing in it can become a control token once it stands in a
    /// rendered chat. Other added tokens, as `<think>`, stay tokens.
    pub fn as_answer(&self, text: &str) -> String {
        broken_up(self.control.as_ref(), text)
    }

    /// The tokens of a text that people wrote, BOS first where the tokenizer adds one, with their
    /// places in `text`. An added BOS covers no byte.
    ///
    /// # Errors
    /// [`EngineError::Tokenizer`] where the tokenizer fails.
    pub fn encode_text(&self, text: &str) -> Result<Vec<PlacedToken>, EngineError> {
        self.encode_marked(text, &self.as_content(text))
    }

    /// The same for a text whose first `prompt` bytes people wrote, and whose others the assistant says.
    ///
    /// # Errors
    /// [`EngineError::Tokenizer`] where the tokenizer fails.
    pub fn encode_completion(
        &self,
        text: &str,
        prompt: usize,
    ) -> Result<Vec<PlacedToken>, EngineError> {
        let (prompt, completion) = text.split_at(prompt.min(text.len()));
        let content = self.as_content(prompt) + completion;
        self.encode_marked(text, &self.as_answer(&content))
    }

    /// The tokens of `text`, of which `content` is the form with marks.
    fn encode_marked(&self, text: &str, content: &str) -> Result<Vec<PlacedToken>, EngineError> {
        let mut tokens: Vec<PlacedToken> = self
            .prefix
            .iter()
            .map(|&id| PlacedToken {
                id,
                start: 0,
                end: 0,
            })
            .collect();
        tokens.extend(placed(&self.encode(content)?));
        if content.len() != text.len() {
            for token in &mut tokens {
                token.start -= marks_before(content, token.start);
                token.end -= marks_before(content, token.end);
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

    /// Makes the added tokens that are special or that `is_control` picks control tokens. All of them are found in the
    /// text as it stands from then on.
    fn make_control(
        &mut self,
        is_control: &dyn Fn(&AddedToken) -> bool,
    ) -> Result<(), EngineError> {
        let chosen = |token: &AddedToken| token.special || is_control(token);
        let tokens = self.tokens_by_length(|token| chosen(token) || has_meaning(&token.content));
        let tokens: Vec<AddedToken> = tokens
            .into_iter()
            .map(|token| {
                let special = chosen(&token);
                token.normalized(false).special(special)
            })
            .collect();
        self.added = any_of(tokens.iter())?;
        self.control = any_of(tokens.iter().filter(|token| token.special))?;
        self.inner.add_tokens(tokens).map_err(broken)?;
        Ok(())
    }

    /// The added tokens of at least two characters that `is_wanted` picks, longest first.
    fn tokens_by_length(&self, is_wanted: impl Fn(&AddedToken) -> bool) -> Vec<AddedToken> {
        let mut tokens: Vec<AddedToken> = self
            .inner
            .get_added_tokens_decoder()
            .into_values()
            .filter(|token| token.content.chars().nth(1).is_some() && is_wanted(token))
            .collect();
        tokens.sort_by(|a, b| (b.content.len(), &a.content).cmp(&(a.content.len(), &b.content)));
        tokens
    }

    /// What the tokenizer puts in front of a text: added tokens only.
    fn find_prefix(&self) -> Result<Vec<u32>, EngineError> {
        const PROBE: &str = "a";
        let plain = self.encode(PROBE)?;
        let whole = self.inner.encode(PROBE, true).map_err(broken)?;
        let (plain, whole) = (plain.get_ids(), whole.get_ids());
        let prefix = (0..whole.len())
            .find(|&start| !plain.is_empty() && whole[start..].starts_with(plain))
            .map_or(&[][..], |start| &whole[..start]);
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        let all_added = prefix.iter().all(|id| added.contains_key(id));
        Ok(if all_added {
            prefix.to_vec()
        } else {
            Vec::new()
        })
    }
}

/// Whether an added token stands for something else than its own text: words in brackets of some kind, as
/// `<|fim_prefix|>` or `<think>`. Runs of white space, and words that a vocabulary was extended with, do not.
fn has_meaning(token: &str) -> bool {
    let is_bracket =
        |c: Option<char>| c.is_some_and(|c| !c.is_alphanumeric() && !c.is_whitespace());
    is_bracket(token.chars().next())
        && is_bracket(token.chars().next_back())
        && token.chars().any(char::is_alphanumeric)
}

/// Finds any of some tokens' texts.
fn any_of<'t>(tokens: impl Iterator<Item = &'t AddedToken>) -> Result<Option<Regex>, EngineError> {
    let texts: Vec<String> = tokens.map(|token| regex::escape(&token.content)).collect();
    if texts.is_empty() {
        return Ok(None);
    }
    let regex = Regex::new(&texts.join("|"));
    Ok(Some(regex.map_err(|error| {
        EngineError::Tokenizer(error.to_string())
    })?))
}

/// `text` with a mark in all that `tokens` finds.
fn broken_up(tokens: Option<&Regex>, text: &str) -> String {
    let mut content = text.to_owned();
    let Some(tokens) = tokens else {
        return content;
    };
    // Every round breaks what it finds; another one is needed where two finds overlap.
    while tokens.is_match(&content) {
        content = tokens
            .replace_all(&content, |found: &Captures<'_>| {
                let mut token = found[0].chars();
                let first = token.next().map(String::from).unwrap_or_default();
                format!("{first}{MARK}{}", token.as_str())
            })
            .into_owned();
    }
    content
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
