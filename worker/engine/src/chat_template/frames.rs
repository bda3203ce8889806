//! Which added tokens frame the turns of a chat, told by a chat that a template renders.

use trainyard_shared::dataset::{Role, Turn};

use super::ChatTemplate;
use crate::tokenizer::Tokenizer;

/// Stands for what people and the assistant say.
const CONTENT: &str = "\u{fdd1}";

/// The added tokens that `template` frames turns with, also those that the tokenizer's file does not call special.
///
/// Of tokens that come in pairs, as `<think>` and `</think>` or `<tool_call>` and `</tool_call>`, only those are frames
/// that follow right behind what somebody says: the others belong to what the assistant says, also where a template
/// writes them for it. Where the template renders no chat, its source is looked at.
pub(super) fn frames(tokenizer: &Tokenizer, template: &ChatTemplate) -> Vec<String> {
    let added = tokenizer.added_tokens();
    let is_pair = |token: &str| partner(token).is_some_and(|other| added.contains(&other));
    let Some(rendered) = probe(template) else {
        let is_frame = |token: &&String| template.source().contains(*token) && !is_pair(token);
        return added.iter().filter(is_frame).cloned().collect();
    };
    let behind_content: Vec<&String> = rendered
        .split(CONTENT)
        .skip(1)
        .filter_map(|text| first_of(&added, text))
        .collect();
    let is_frame = |token: &&String| {
        let ends_turn = |token: &String| behind_content.contains(&token);
        match is_pair(token) {
            true => ends_turn(token) || partner(token).is_some_and(|other| ends_turn(&other)),
            false => rendered.contains(*token),
        }
    };
    added.iter().filter(is_frame).cloned().collect()
}

/// A chat of two rounds as the template renders it, with a system's word where the template takes one.
fn probe(template: &ChatTemplate) -> Option<String> {
    let roles = [
        Role::System,
        Role::User,
        Role::Assistant,
        Role::User,
        Role::Assistant,
    ];
    let turns = roles.map(|role| Turn {
        role,
        content: CONTENT.to_owned(),
    });
    let render = |turns: &[Turn]| template.render(turns, true).ok();
    render(&turns).or_else(|| render(&turns[1..]))
}

/// The token with which `text` begins, but for white space.
fn first_of<'t>(tokens: &'t [String], text: &str) -> Option<&'t String> {
    let text = text.trim_start();
    tokens.iter().find(|token| text.starts_with(token.as_str()))
}

/// The other one of a pair of tokens in the manner of XML.
fn partner(token: &str) -> Option<String> {
    let name = token.strip_prefix('<')?.strip_suffix('>')?;
    Some(match name.strip_prefix('/') {
        Some(name) => format!("<{name}>"),
        None => format!("</{name}>"),
    })
}
