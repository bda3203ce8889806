//! Where in a rendered chat its answers stand.
//!
//! Templates trim what is said, drop parts of it or write a frame around it, so it cannot simply be searched for. The
//! chat is rendered again with something else in the place of answers, and what stays the same is no answer's:
//!
//! 1. With a mark in the place of each answer: what stands between two marks is the frame between two answers. Where a
//!    template does no more than trimming, the answers are what stands between these frames.
//! 2. Else with a mark behind each answer, which tells where each one ends. It begins where the text differs from the
//!    frame of 1: behind the frame for thoughts, say, that a template writes itself.
//! 3. Else answer by answer, which costs a rendering of the whole chat for each: only in short chats.

use std::ops::Range;

use trainyard_shared::dataset::{Role, Turn};

use super::ChatTemplate;
use crate::EngineError;

/// Frames what stands for an answer while its place is looked for; no text holds this code point.
const EDGE: char = '\u{fdd1}';
/// Stands for an answer while its place is looked for.
pub(super) const PLACEHOLDER: &str = "\u{fdd1}answer\u{fdd1}";
/// So many turns may be rendered to look for answers one by one: a second or two.
const MOST_TURNS_RENDERED: usize = 1 << 16;

/// Answers' indices, and where the rendered chat holds their contents, in bytes.
pub(super) type Places = Vec<(usize, Range<usize>)>;

/// Where in `rendered`, which is `turns` by `template`, the content of each answer stands that the template renders, by
/// the answer's index. Those that are not `is_wanted` may be left out.
///
/// # Errors
/// [`EngineError::ChatTemplate`] where the template fails, or where the places of that many answers could only be
/// found one by one.
pub(super) fn places(
    template: &ChatTemplate,
    turns: &[Turn],
    rendered: &str,
    is_wanted: impl Fn(usize) -> bool,
) -> Result<Places, EngineError> {
    if !answers(turns).any(&is_wanted) {
        return Ok(Places::new());
    }
    let framed = Marked::new(template, turns, |_, mark| mark)?;
    if let Some(framed) = framed {
        if let Some(places) = between_frames(&framed, turns, rendered) {
            return Ok(places);
        }
        let ended = Marked::new(template, turns, |content, mark| format!("{content}{mark}"))?;
        let places = ended.and_then(|ended| up_to_ends(&framed, &ended, turns, rendered));
        if let Some(places) = places {
            return Ok(places);
        }
    }
    one_by_one(template, turns, rendered, is_wanted)
}

/// A chat rendered with a mark at each of its answers.
struct Marked {
    rendered: String,
}

impl Marked {
    /// Renders `turns` with what `marked` makes of each answer's content and mark. None where the marks do not come out
    /// once each, one after the other.
    fn new(
        template: &ChatTemplate,
        turns: &[Turn],
        marked: impl Fn(&str, String) -> String,
    ) -> Result<Option<Self>, EngineError> {
        let mut probe = turns.to_vec();
        for index in answers(turns) {
            probe[index].content = marked(&turns[index].content, format!("{EDGE}{index}{EDGE}"));
        }
        let rendered = template.render(&probe, false)?;
        let found = rendered.split(EDGE).skip(1).step_by(2);
        let is_each = found.eq(answers(turns).map(|index| index.to_string()));
        Ok(is_each.then_some(Self { rendered }))
    }

    /// What stands before the first mark, between each two and behind the last.
    fn pieces(&self) -> impl Iterator<Item = &str> {
        self.rendered.split(EDGE).step_by(2)
    }
}

/// The places of answers that stand between the frames as they are, or trimmed. None where one does not.
fn between_frames(framed: &Marked, turns: &[Turn], rendered: &str) -> Option<Places> {
    let mut frames = framed.pieces();
    let mut rest = rendered.strip_prefix(frames.next()?)?;
    let mut places = Vec::new();
    for (index, next) in answers(turns).zip(frames) {
        let content = turns[index].content.as_str();
        let forms = [
            content,
            content.trim_end(),
            content.trim_start(),
            content.trim(),
        ];
        let start = rendered.len() - rest.len();
        let (end, behind) = forms.into_iter().find_map(|form| {
            let behind = rest.strip_prefix(form)?.strip_prefix(next)?;
            Some((start + form.len(), behind))
        })?;
        places.push((index, start..end));
        rest = behind;
    }
    rest.is_empty().then_some(places)
}

/// The places of answers by the text before the mark behind each of them. None where that is not in `rendered` too.
fn up_to_ends(framed: &Marked, ended: &Marked, turns: &[Turn], rendered: &str) -> Option<Places> {
    let mut pieces = ended.pieces().peekable();
    let mut rest = rendered;
    let mut places = Vec::new();
    for (index, frame) in answers(turns).zip(framed.pieces()) {
        let piece = pieces.next()?;
        let next = pieces.peek()?.trim_end();
        // A template that trims leaves white space where the mark stands behind it.
        let content = turns[index].content.as_str();
        let space = &content[content.trim_end().len()..];
        let lines = &content[content.trim_end_matches('\n').len()..];
        let mut forms = ["", lines, space]
            .map(|end| piece.strip_suffix(end))
            .into_iter()
            .flatten();
        let (form, behind) = forms.find_map(|form| {
            let behind = rest.strip_prefix(form)?;
            behind.starts_with(next).then_some((form, behind))
        })?;
        let start = rendered.len() - rest.len();
        let end = start + form.len();
        places.push((index, start + common_prefix(form, frame)..end));
        rest = behind;
    }
    (rest == pieces.next()?).then_some(places)
}

/// The places of the answers that are wanted, each by a rendering of its own. One that the template leaves out has none.
fn one_by_one(
    template: &ChatTemplate,
    turns: &[Turn],
    rendered: &str,
    is_wanted: impl Fn(usize) -> bool,
) -> Result<Places, EngineError> {
    let wanted = || answers(turns).filter(|index| is_wanted(*index));
    let count = wanted().count();
    if count.saturating_mul(turns.len()) > MOST_TURNS_RENDERED {
        return Err(EngineError::ChatTemplate(format!(
            "what the template makes of {count} answers in {} turns cannot be told apart from the rest in a reasonable \
             time; cut the chat into shorter ones, lower max_length, or train on all of it",
            turns.len()
        )));
    }
    let mut places = Vec::new();
    for index in wanted() {
        let place = place_of(index, template, turns, rendered)?;
        places.extend(place.map(|place| (index, place)));
    }
    Ok(places)
}

/// Where in `rendered` a turn's content stands: with another content in its place, what comes before it and after it
/// stays the same.
fn place_of(
    index: usize,
    template: &ChatTemplate,
    turns: &[Turn],
    rendered: &str,
) -> Result<Option<Range<usize>>, EngineError> {
    let mut probe = turns.to_vec();
    PLACEHOLDER.clone_into(&mut probe[index].content);
    let probed = template.render(&probe, false)?;
    let (Some(first), Some(last)) = (probed.find(PLACEHOLDER), probed.rfind(PLACEHOLDER)) else {
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

/// The indices of the turns that are answers.
fn answers(turns: &[Turn]) -> impl Iterator<Item = usize> + '_ {
    let is_answer = |(index, turn): (usize, &Turn)| (turn.role == Role::Assistant).then_some(index);
    turns.iter().enumerate().filter_map(is_answer)
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
    use crate::tokenizer::SpecialTokens;

    const TRIMMING: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}";
    /// As Qwen3's: leaves thoughts before the last question out, and frames those behind it.
    const QWEN3: &str = "{%- set ns = namespace(last=0) %}\
        {%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}\
        {%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}{%- set content = m.content %}{%- set thoughts = '' %}\
        {%- if m.role == 'assistant' and '</think>' in content %}\
        {%- set thoughts = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}\
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}\
        {%- if m.role == 'assistant' and loop.index0 > ns.last and (loop.last or thoughts) %}\
        {{- '<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}{%- else %}{{- content }}{%- endif %}\
        {{- '<|im_end|>\n' }}{%- endfor %}";
    /// Frames the thoughts of every answer.
    const KEEPING: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% set parts = m.content.split('</think>') %}\
        {% if m.role == 'assistant' %}<think>{{ parts[0].split('<think>')[-1] if parts | length > 1 else '' }}</think>{% endif %}\
        {{ parts[-1] }}<|im_end|>\n{% endfor %}";
    /// Makes other characters of what is said.
    const CHANGING: &str = "{% for m in messages %}<|im_start|>{{ m.content | replace('yes', 'no') | upper }}<|im_end|>\n{% endfor %}";
    /// Changes what is said by what is said elsewhere.
    const ENTANGLED: &str = "{% for m in messages %}<|im_start|>{{ m.content }}{{ messages[-1].content }}<|im_end|>\n{% endfor %}";

    fn template(source: &str) -> ChatTemplate {
        ChatTemplate::new(source, SpecialTokens::default(), Local::now().into()).unwrap()
    }

    /// Answers with thoughts and without, with white space at their ends, and such as stand elsewhere too.
    fn chat(rounds: usize) -> Vec<Turn> {
        let turn = |role, content: String| Turn { role, content };
        let answer = |round: usize| {
            let thoughts = ["", "<think>\nhm\n</think>\n\n", "<think>yes</think>"][round % 3];
            let end = ["", "\n", " \n\n", "  "][round % 4];
            format!("{thoughts} yes{}{end}", round % 5)
        };
        (0..rounds)
            .flat_map(|round| {
                [
                    turn(Role::User, "yes".to_owned()),
                    turn(Role::Assistant, answer(round)),
                ]
            })
            .collect()
    }

    #[test]
    fn answers_are_found_alike_at_once_and_one_by_one() {
        for source in [TRIMMING, QWEN3, KEEPING] {
            // So that each kind of answer is the last one once.
            for rounds in 13..25 {
                let (template, turns) = (template(source), chat(rounds));
                let rendered = template.render(&turns, false).unwrap();
                let framed = Marked::new(&template, &turns, |_, mark| mark)
                    .unwrap()
                    .unwrap();
                let ended = Marked::new(&template, &turns, |content, mark| {
                    format!("{content}{mark}")
                });
                let at_once = between_frames(&framed, &turns, &rendered)
                    .or_else(|| up_to_ends(&framed, &ended.unwrap().unwrap(), &turns, &rendered));
                let alone = one_by_one(&template, &turns, &rendered, |_| true).unwrap();
                assert_eq!(at_once.as_ref(), Some(&alone), "{source}: {rendered}");
                assert_eq!(alone.len(), rounds);
            }
        }
    }

    #[test]
    fn a_template_that_changes_answers_costs_no_more_renderings_where_they_end_alike() {
        let (template, turns) = (template(CHANGING), chat(4));
        let rendered = template.render(&turns, false).unwrap();
        let framed = Marked::new(&template, &turns, |_, mark| mark)
            .unwrap()
            .unwrap();
        let ended = Marked::new(&template, &turns, |content, mark| {
            format!("{content}{mark}")
        });
        let places = up_to_ends(&framed, &ended.unwrap().unwrap(), &turns, &rendered).unwrap();
        let texts: Vec<&str> = places
            .into_iter()
            .map(|(_, place)| &rendered[place])
            .collect();
        assert_eq!(texts[0], " NO0");
        assert_eq!(texts[1], "<THINK>\nHM\n</THINK>\n\n NO1\n");
    }

    #[test]
    fn long_chats_whose_answers_cannot_be_found_at_once_are_refused_and_short_ones_are_not() {
        let template = template(ENTANGLED);
        let find = |rounds| {
            let turns = chat(rounds);
            let rendered = template.render(&turns, false).unwrap();
            places(&template, &turns, &rendered, |_| true)
        };
        assert!(find(10).is_ok());
        let error = find(1000).unwrap_err().to_string();
        assert!(error.contains("1000 answers in 2000 turns"), "{error}");
    }

    #[test]
    fn an_answer_that_a_template_leaves_out_has_no_place() {
        let leaving = "{% for m in messages %}{% if m.content %}<|im_start|>{{ m.content }}<|im_end|>{% endif %}{% endfor %}";
        let template = template(leaving);
        let mut turns = chat(3);
        turns[3].content.clear();
        let rendered = template.render(&turns, false).unwrap();
        let found = places(&template, &turns, &rendered, |_| true).unwrap();
        let indices: Vec<usize> = found.into_iter().map(|(index, _)| index).collect();
        assert_eq!(indices, [1, 5]);
    }
}
