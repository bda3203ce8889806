//! Chats as a model reads them: its chat template, and which tokens of a chat are the assistant's.
//!
//! One way for training, evaluation and generation. Rules that people ask for:
//!
//! - A chat is rendered by the model's own template. Where a model has none, ChatML is used
//!   ([`ChatTemplate::chatml`]), its end of turn being `<|im_end|>` where the tokenizer knows it and
//!   the EOS token otherwise, so that generation ends with it.
//! - A system message is rendered where it stands. None is added or moved here; a template that puts
//!   in a default of its own (SmolLM2's does) keeps doing so.
//! - Content is text: the name of a control token, or of any other added token, stays characters in it. In what
//!   the assistant says, added tokens that frame no turn, as `<think>` and `<tool_call>`, are tokens.
//! - A chat begins with exactly one BOS token where the tokenizer adds one to texts, whether the
//!   template writes it or not.

mod chat;
mod frames;
mod json;
mod places;
mod template;

pub use chat::{Chat, EncodedChat};
pub use template::ChatTemplate;

#[cfg(test)]
mod tests;
