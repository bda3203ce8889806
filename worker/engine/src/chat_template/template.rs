//! A model's chat template: Jinja as transformers runs it.

use std::fmt::Write as _;
use std::sync::LazyLock;

use chrono::{DateTime, FixedOffset};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use regex::{Captures, Regex};
use trainyard_shared::dataset::Turn;

use super::json;
use crate::EngineError;
use crate::tokenizer::{SpecialTokens, Tokenizer};

/// Steps that one rendering may take: a template comes from outside and must end.
const FUEL: u64 = 5_000_000;
/// The template's name inside its environment.
const NAME: &str = "chat";

/// ChatML, with `end_of_turn` set before it.
const CHATML: &str = r"{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + end_of_turn + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    now: DateTime<FixedOffset>,
    special: SpecialTokens,
}

impl ChatTemplate {
    /// Compiles `source`; `now` is what the template is told to be the time.
    ///
    /// # Errors
    /// [`EngineError::ChatTemplate`] where it is no template.
    pub fn new(
        source: &str,
        special: SpecialTokens,
        now: DateTime<FixedOffset>,
    ) -> Result<Self, EngineError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|error| template_error(&error))?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(FUEL));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", move |format: &str| strftime(now, format));
        environment.add_filter("tojson", to_json);
        environment
            .add_template_owned(
                NAME,
                without_generation_marks(&without_joined_lines(source)),
            )
            .map_err(|error| template_error(&error))?;
        Ok(Self {
            environment,
            source: source.to_owned(),
            now,
            special,
        })
    }

    /// The template of a model that has none: ChatML, turns ending with `<|im_end|>` where `tokenizer`
    /// knows that token and with its EOS token otherwise.
    ///
    /// # Errors
    /// [`EngineError::ChatTemplate`], which does not happen.
    pub fn chatml(tokenizer: &Tokenizer, now: DateTime<FixedOffset>) -> Result<Self, EngineError> {
        let end = match (tokenizer.id_of("<|im_end|>"), &tokenizer.special().eos) {
            (None, Some(_)) => "eos_token",
            _ => "'<|im_end|>'",
        };
        let source = format!("{{% set end_of_turn = {end} %}}{CHATML}");
        Self::new(&source, tokenizer.special().clone(), now)
    }

    /// What the template may write of the time; empty where it does not ask for it. Two times that it writes alike give
    /// the same.
    pub fn time_it_tells(&self) -> String {
        static FORMAT: LazyLock<Regex> = LazyLock::new(|| {
            Regex::new(r#"strftime_now\(\s*(?:'([^'\\]*)'|"([^"\\]*)")\s*\)"#)
                .expect("the pattern is valid")
        });
        let formats: Vec<&str> = FORMAT
            .captures_iter(&self.source)
            .filter_map(|call| Some(call.get(1).or(call.get(2))?.as_str()))
            .collect();
        let asks = self.source.matches("strftime_now").count();
        let tests = self.source.matches("strftime_now is defined").count();
        if formats.len() + tests < asks {
            // Formats that are not known before: the time as a whole.
            return self.now.to_rfc3339();
        }
        let told = formats.into_iter().map(|format| strftime(self.now, format));
        told.map(Result::unwrap_or_default)
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The chat as text; with `add_generation_prompt` followed by the head of the assistant's turn.
    ///
    /// # Errors
    /// [`EngineError::ChatTemplate`] where the template refuses the chat or fails.
    pub fn render(
        &self,
        turns: &[Turn],
        add_generation_prompt: bool,
    ) -> Result<String, EngineError> {
        let turn = |turn: &Turn| {
            Value::from_pairs([
                ("role", turn.role.as_str()),
                ("content", turn.content.as_str()),
            ])
        };
        let messages: Vec<Value> = turns.iter().map(turn).collect();
        let context = context! {
            messages => messages,
            add_generation_prompt => add_generation_prompt,
            bos_token => self.special.bos.as_deref().unwrap_or_default(),
            eos_token => self.special.eos.as_deref().unwrap_or_default(),
            unk_token => self.special.unk.as_deref().unwrap_or_default(),
            pad_token => self.special.pad.as_deref().unwrap_or_default(),
            tools => (),
            documents => (),
        };
        let template = self
            .environment
            .get_template(NAME)
            .map_err(|error| template_error(&error))?;
        template
            .render(context)
            .map_err(|error| template_error(&error))
    }
}

/// transformers marks the assistant's text by blocks that plain Jinja does not know; they print nothing.
fn without_generation_marks(source: &str) -> String {
    static OPEN: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"\{%([-+]?)\s*generation\s*([-+]?)%\}").expect("the pattern is valid")
    });
    static CLOSE: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"\{%([-+]?)\s*endgeneration\s*([-+]?)%\}").expect("the pattern is valid")
    });
    let opened = OPEN.replace_all(source, "{%$1 if true $2%}");
    CLOSE.replace_all(&opened, "{%$1 endif $2%}").into_owned()
}

/// A backslash at a line's end inside a text joins the lines in Python, and thus in Jinja.
fn without_joined_lines(source: &str) -> String {
    static CODE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?s)\{\{.*?\}\}|\{%.*?%\}").expect("the pattern is valid"));
    static TEXT: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"(?s)'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*""#).expect("the pattern is valid")
    });
    static ESCAPE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?s)\\.").expect("the pattern is valid"));
    let join = |text: &Captures<'_>| {
        let escape = |found: &Captures<'_>| match &found[0] {
            "\\\n" => String::new(),
            other => other.to_owned(),
        };
        ESCAPE.replace_all(&text[0], escape).into_owned()
    };
    let code = |code: &Captures<'_>| TEXT.replace_all(&code[0], join).into_owned();
    CODE.replace_all(source, code).into_owned()
}

fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_owned()))
}

fn strftime(now: DateTime<FixedOffset>, format: &str) -> Result<String, Error> {
    let mut text = String::new();
    write!(text, "{}", now.format(format)).map_err(|_| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now: {format:?} is no format"),
        )
    })?;
    Ok(text)
}

fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let text = json::dump(value, options.get("indent")?)?;
    Ok(Value::from_safe_string(text))
}

fn template_error(error: &Error) -> EngineError {
    let mut text = error
        .detail()
        .map_or_else(|| error.kind().to_string(), str::to_owned);
    if let Some(line) = error.line() {
        let _ = write!(text, " (line {line} of the template)");
    }
    EngineError::ChatTemplate(text)
}
