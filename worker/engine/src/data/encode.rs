//! A row as tokens, and which of them the loss falls on.
//!
//! | row | rendered as | `train_on: auto` | `assistant` | `completion` |
//! | --- | --- | --- | --- | --- |
//! | chat | the chat template | every answer | every answer | the last answer |
//! | instruction | a chat of instruction, blank line, input; and the output | the output | the output | the output |
//! | prompt and completion, messages | a chat of both | answers of the completion | every answer | answers of the completion |
//! | prompt and completion, text | both texts, EOS | completion and EOS | completion and EOS | completion and EOS |
//! | text | the text, EOS | everything | nothing | nothing |
//!
//! With `all` the loss falls on every token of every row. An answer's tokens are its text as the
//! template renders it and the token that ends the turn.

use trainyard_shared::dataset::{Prompt, Role, Row, Turn};
use trainyard_shared::training::TrainOn;

use super::Example;
use crate::EngineError;
use crate::chat_template::Chat;

/// So many bytes of a text for each token that a row may have are looked at; what is behind them would be
/// cut away in any case, and a line of many megabytes would take minutes to tokenise.
const BYTES_A_TOKEN: usize = 64;

/// Turns rows into tokens for one model and one config.
#[derive(Debug)]
pub struct RowEncoder<'a> {
    /// The model's tokenizer and chat template.
    pub chat: &'a Chat,
    /// Which tokens are to be learned.
    pub train_on: TrainOn,
    /// Longest row in tokens; longer ones are cut.
    pub max_length: usize,
    /// Tokens that the model knows.
    pub vocab_size: usize,
}

impl RowEncoder<'_> {
    /// The tokens of a row.
    ///
    /// # Errors
    /// [`EngineError::ChatTemplate`] where the template refuses the chat, [`EngineError::Tokenizer`]
    /// where a token is none that the model knows.
    pub fn encode(&self, row: &Row) -> Result<Example, EngineError> {
        let mut example = match row {
            Row::Messages(turns) | Row::Conversations(turns) => {
                let from = match self.train_on {
                    TrainOn::Completion => last_answer(turns),
                    // No answer needs to be found, as all is learned.
                    TrainOn::All => turns.len(),
                    TrainOn::Auto | TrainOn::Assistant => 0,
                };
                self.turns(turns, from)?
            }
            Row::Instruction {
                system,
                instruction,
                input,
                output,
            } => self.turns(
                &instruction_turns(system.as_deref(), instruction, input.as_deref(), output),
                0,
            )?,
            Row::PromptCompletion {
                prompt: Prompt::Turns(prompt),
                completion: Prompt::Turns(completion),
            } => {
                let from = match self.train_on {
                    TrainOn::Assistant => 0,
                    _ => prompt.len(),
                };
                self.turns(&[prompt.as_slice(), completion].concat(), from)?
            }
            Row::PromptCompletion { prompt, completion } => {
                self.texts(text(prompt), text(completion))?
            }
            Row::Text(text) => self.texts(text, "")?,
        };
        match (self.train_on, row) {
            (TrainOn::All, _) | (TrainOn::Auto, Row::Text(_)) => example.trained.fill(true),
            (TrainOn::Assistant | TrainOn::Completion, Row::Text(_)) => example.trained.fill(false),
            _ => {}
        }
        example.truncated |= example.ids.len() > self.max_length;
        example.ids.truncate(self.max_length);
        example.trained.truncate(self.max_length);
        self.checked(example)
    }

    /// A document of a plain text, as many examples as it needs: nothing of it is cut away. Each goes on with the token
    /// with which the one before it ends, so that every token but the first is learned once.
    ///
    /// # Errors
    /// As [`RowEncoder::encode`].
    pub fn encode_document(&self, text: &str) -> Result<Vec<Example>, EngineError> {
        let tokenizer = self.chat.tokenizer();
        let tokens = tokenizer.encode_text(text)?;
        let is_learned = !matches!(self.train_on, TrainOn::Assistant | TrainOn::Completion);
        let mut ids: Vec<u32> = tokens.into_iter().map(|token| token.id).collect();
        ids.extend(tokenizer.eos());
        let (mut examples, mut start) = (Vec::new(), 0);
        while start == 0 || start + 1 < ids.len() {
            let end = ids.len().min(start + self.max_length);
            examples.push(self.checked(Example {
                ids: ids[start..end].to_vec(),
                trained: vec![is_learned; end - start],
                truncated: false,
            })?);
            start = start + self.max_length.max(2) - 1;
        }
        Ok(examples)
    }

    fn checked(&self, example: Example) -> Result<Example, EngineError> {
        match example
            .ids
            .iter()
            .find(|id| **id as usize >= self.vocab_size)
        {
            None => Ok(example),
            Some(id) => Err(EngineError::Tokenizer(format!(
                "token {id} is outside the model's vocabulary of {}",
                self.vocab_size
            ))),
        }
    }

    /// A chat; answers at index `from` and later are to be learned.
    fn turns(&self, turns: &[Turn], from: usize) -> Result<Example, EngineError> {
        let within_reach = self.turns_within_reach(turns);
        let encoded = self.chat.encode(&within_reach, |index| index >= from)?;
        Ok(Example {
            ids: encoded.ids,
            trained: encoded.trained,
            truncated: within_reach != turns,
        })
    }

    /// The beginning of a chat that can matter to a row of `max_length` tokens: a turn has at least one token. Two
    /// rounds more are kept, for templates that render the last ones otherwise.
    fn turns_within_reach(&self, turns: &[Turn]) -> Vec<Turn> {
        const LAST_TURNS: usize = 4;
        let (mut kept, mut bytes) = (Vec::new(), 0);
        for turn in turns
            .iter()
            .take(self.max_length.saturating_add(LAST_TURNS))
        {
            let content = self.within_reach(&turn.content).to_owned();
            bytes += content.len();
            kept.push(Turn {
                role: turn.role,
                content,
            });
            if bytes >= self.bytes_within_reach() {
                break;
            }
        }
        kept
    }

    /// Two texts, tokenised as one, and the token that ends a text; all behind `prompt` is to be learned.
    fn texts(&self, prompt: &str, completion: &str) -> Result<Example, EngineError> {
        let tokenizer = self.chat.tokenizer();
        let whole = format!("{prompt}{completion}");
        let tokens = tokenizer.encode_completion(self.within_reach(&whole), prompt.len())?;
        let mut example = Example {
            truncated: self.within_reach(&whole) != whole,
            ..Example::default()
        };
        for token in tokens {
            example.ids.push(token.id);
            example.trained.push(token.end > prompt.len());
        }
        example.ids.extend(tokenizer.eos());
        example.trained.resize(example.ids.len(), true);
        Ok(example)
    }

    /// The beginning of a text that can matter to a row of `max_length` tokens.
    fn within_reach<'t>(&self, text: &'t str) -> &'t str {
        &text[..text.floor_char_boundary(self.bytes_within_reach())]
    }

    fn bytes_within_reach(&self) -> usize {
        self.max_length.saturating_mul(BYTES_A_TOKEN)
    }
}

fn instruction_turns(
    system: Option<&str>,
    instruction: &str,
    input: Option<&str>,
    output: &str,
) -> Vec<Turn> {
    let question = match input {
        Some(input) => format!("{instruction}\n\n{input}"),
        None => instruction.to_owned(),
    };
    let system = system.map(|content| (Role::System, content.to_owned()));
    let turns = system
        .into_iter()
        .chain([(Role::User, question), (Role::Assistant, output.to_owned())]);
    turns
        .map(|(role, content)| Turn { role, content })
        .collect()
}

fn last_answer(turns: &[Turn]) -> usize {
    turns
        .iter()
        .rposition(|turn| turn.role == Role::Assistant)
        .unwrap_or(0)
}

/// A side of a pair of texts; both sides are of one kind.
fn text(side: &Prompt) -> &str {
    match side {
        Prompt::Text(text) => text,
        Prompt::Turns(_) => "",
    }
}

#[cfg(test)]
mod tests {
    use chrono::Local;
    use trainyard_shared::dataset::parse_row;

    use super::*;
    use crate::tokenizer::testing::{CONTROL, bytes};

    fn chat() -> Chat {
        Chat::new(bytes(), None, Local::now()).unwrap()
    }

    fn encode(row: &str, train_on: TrainOn, max_length: usize) -> Example {
        let chat = chat();
        let encoder = RowEncoder {
            chat: &chat,
            train_on,
            max_length,
            vocab_size: 265,
        };
        encoder.encode(&parse_row(row.as_bytes()).unwrap()).unwrap()
    }

    /// The whole row as text with what is trained in brackets.
    fn marked(row: &str, train_on: TrainOn) -> String {
        let example = encode(row, train_on, 1000);
        let (chat, mut out, mut inside) = (chat(), String::new(), false);
        for (&id, &trained) in example.ids.iter().zip(&example.trained) {
            if trained != inside {
                out.push(if trained { '[' } else { ']' });
                inside = trained;
            }
            match (id as usize).checked_sub(256) {
                Some(control) => out += CONTROL[control],
                None => out += &chat.tokenizer().decode(&[id]).unwrap(),
            }
        }
        if inside { out + "]" } else { out }
    }

    #[test]
    fn g066_each_kind_of_row_has_its_own_masking() {
        let auto = |row: &str| marked(row, TrainOn::Auto);
        assert_eq!(
            auto(
                r#"{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}"#
            ),
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[a<|im_end|>]\n"
        );
        assert_eq!(
            auto(r#"{"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}]}"#),
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[a<|im_end|>]\n"
        );
        assert_eq!(
            auto(r#"{"instruction":"do","input":"it","output":"done"}"#),
            "<|im_start|>user\ndo\n\nit<|im_end|>\n<|im_start|>assistant\n[done<|im_end|>]\n"
        );
        assert_eq!(
            auto(r#"{"prompt":"1 + 1 =","completion":" 2"}"#),
            "1 + 1 =[ 2</s>]"
        );
        assert_eq!(auto(r#"{"text":"all of it"}"#), "[all of it</s>]");
        assert_eq!(
            auto(
                r#"{"prompt":[{"role":"user","content":"q"},{"role":"assistant","content":"a"},{"role":"user","content":"r"}],
                "completion":[{"role":"assistant","content":"b"}]}"#
            ),
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nr<|im_end|>\n\
             <|im_start|>assistant\n[b<|im_end|>]\n"
        );
    }

    #[test]
    fn train_on_says_what_is_learned() {
        let chat = r#"{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"},
            {"role":"user","content":"r"},{"role":"assistant","content":"b"}]}"#;
        assert_eq!(marked(chat, TrainOn::Assistant).matches('[').count(), 2);
        assert!(marked(chat, TrainOn::Completion).ends_with("[b<|im_end|>]\n"));
        assert_eq!(marked(chat, TrainOn::Completion).matches('[').count(), 1);
        assert!(
            encode(chat, TrainOn::All, 1000)
                .trained
                .iter()
                .all(|trained| *trained)
        );
        for train_on in [TrainOn::Assistant, TrainOn::Completion] {
            assert_eq!(marked(r#"{"text":"t"}"#, train_on), "t</s>");
            assert_eq!(
                marked(r#"{"prompt":"p","completion":"c"}"#, train_on),
                "p[c</s>]"
            );
        }
    }

    #[test]
    fn long_rows_are_cut_and_say_so() {
        let example = encode(r#"{"text":"0123456789"}"#, TrainOn::Auto, 4);
        assert_eq!(
            (example.ids.len(), example.trained.len(), example.truncated),
            (4, 4, true)
        );
        assert!(!encode(r#"{"text":"012"}"#, TrainOn::Auto, 4).truncated);
    }

    #[test]
    fn a_document_becomes_as_many_examples_as_it_needs_and_nothing_is_lost() {
        let chat = chat();
        let encoder = RowEncoder {
            chat: &chat,
            train_on: TrainOn::Auto,
            max_length: 4,
            vocab_size: 265,
        };
        let ids = |text: &str| -> Vec<Vec<u32>> {
            let examples = encoder.encode_document(text).unwrap();
            examples.into_iter().map(|example| example.ids).collect()
        };
        // The tokenizer of the tests: tokens of bytes in the order of their marks, and EOS.
        let (a, eos) = (64, 258);
        assert_eq!(ids("ab"), [vec![a, a + 1, eos]]);
        assert_eq!(ids("abc"), [vec![a, a + 1, a + 2, eos]]);
        assert_eq!(
            ids("abcd"),
            [vec![a, a + 1, a + 2, a + 3], vec![a + 3, eos]]
        );
        assert_eq!(ids("abcdefgh").len(), 3);
    }

    #[test]
    fn g065_what_is_far_behind_max_length_is_not_even_tokenised() {
        let long = "0123456789".repeat(1_000_000);
        let text = serde_json::json!({ "text": long }).to_string();
        let chat = serde_json::json!({ "messages": [
            {"role": "user", "content": long}, {"role": "assistant", "content": "a"}
        ]});
        for row in [text, chat.to_string()] {
            let example = encode(&row, TrainOn::Auto, 4);
            assert_eq!((example.ids.len(), example.truncated), (4, true));
        }
        let encoder_reach = 4 * BYTES_A_TOKEN;
        let pair = serde_json::json!({
            "prompt": "p".repeat(encoder_reach), "completion": "c"
        });
        assert!(encode(&pair.to_string(), TrainOn::Auto, 4).truncated);
    }

    #[test]
    fn g065_a_chat_of_very_many_turns_is_cut_to_those_within_reach() {
        let round = [
            serde_json::json!({"role": "user", "content": "a"}),
            serde_json::json!({"role": "assistant", "content": "b"}),
        ];
        let messages = |rounds: usize| {
            let turns = round.iter().cycle().take(2 * rounds).collect::<Vec<_>>();
            serde_json::json!({ "messages": turns }).to_string()
        };
        let (short, long) = (messages(40), messages(20_000));
        let row = parse_row(long.as_bytes()).unwrap();
        let Row::Messages(turns) = &row else {
            panic!("a chat");
        };
        let chat = chat();
        let encoder = RowEncoder {
            chat: &chat,
            train_on: TrainOn::Auto,
            max_length: 64,
            vocab_size: 265,
        };
        assert!(encoder.turns_within_reach(turns).len() < 100);
        let example = encoder.encode(&row).unwrap();
        assert!(example.truncated);
        assert_eq!(example, encode(&short, TrainOn::Auto, 64));
    }

    #[test]
    fn tokens_beyond_the_models_vocabulary_are_an_error() {
        let chat = chat();
        let encoder = RowEncoder {
            chat: &chat,
            train_on: TrainOn::Auto,
            max_length: 100,
            vocab_size: 258,
        };
        let error = encoder.encode(&Row::Text("x".into())).unwrap_err();
        assert!(error.to_string().contains("258"), "{error}");
    }
}
