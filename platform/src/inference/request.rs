//! What is asked of a model, checked: the chat, and how the answer is to be sampled.

use trainyard_shared::message::ChatMessage;

use crate::error::FieldProblem;
use crate::models::target::Target;

const MAX_MESSAGES: usize = 4_096;
const MAX_TOKENS: u64 = 1 << 20;
const MAX_TOP_K: u64 = 1 << 20;
const MAX_TEMPERATURE: f64 = 100.0;
const MAX_PENALTY: f64 = 100.0;
/// Beyond that JSON numbers are not exact everywhere.
const MAX_SEED: u64 = (1 << 53) - 1;
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1_024;
const ROLES: [&str; 3] = ["system", "user", "assistant"];

/// A request for an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Of which model.
    pub target: Target,
    /// To which chat.
    pub chat: Chat,
    /// How it is chosen.
    pub sampling: Sampling,
    /// Whether its tokens are wanted as they come.
    pub stream: bool,
}

/// The chat that is to be continued.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chat {
    /// What was said so far.
    pub messages: Vec<ChatMessage>,
    /// Put before it as its system message.
    pub system_prompt: Option<String>,
}

/// How tokens are chosen. What is absent is the worker's default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: Option<f64>,
    /// Most tokens; 0 gives an empty answer.
    pub max_tokens: Option<u64>,
    /// Sample from the smallest set of tokens with this probability together.
    pub top_p: Option<f64>,
    /// Sample from this many most likely tokens; 0: from all.
    pub top_k: Option<u64>,
    /// Tokens that stand already are made less likely by this factor.
    pub repetition_penalty: Option<f64>,
    /// Seed of the sampling.
    pub seed: Option<u64>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
}

impl Request {
    /// Bytes that it keeps in memory, about.
    pub fn weight_bytes(&self) -> usize {
        let messages = self.chat.messages.iter();
        let chat: usize = messages
            .map(|message| message.role.len() + message.content.len() + size_of::<ChatMessage>())
            .sum();
        size_of::<Self>() + chat + self.chat.system_prompt.as_ref().map_or(0, String::len)
    }
}

impl Chat {
    /// What is wrong with it.
    pub fn problems(&self) -> Vec<FieldProblem> {
        let mut problems = Vec::new();
        if !(1..=MAX_MESSAGES).contains(&self.messages.len()) {
            let message = format!("must have 1 to {MAX_MESSAGES} messages");
            problems.push(FieldProblem::new("messages", message));
        }
        for (index, message) in self.messages.iter().enumerate() {
            if !ROLES.contains(&message.role.as_str()) {
                let field = format!("messages[{index}].role");
                let message = format!("must be one of {}", ROLES.join(", "));
                problems.push(FieldProblem::new(field, message));
            }
        }
        let has_system = self.messages.iter().any(|message| message.role == "system");
        if has_system && self.system_prompt.is_some() {
            let message = "the chat has a system message already";
            problems.push(FieldProblem::new("system_prompt", message));
        }
        if !self.messages.is_empty() && self.messages.iter().all(|message| message.role == "system")
        {
            let message = "there is nothing to answer: only a system message";
            problems.push(FieldProblem::new("messages", message));
        }
        problems
    }
}

impl Sampling {
    /// What is wrong with it.
    pub fn problems(&self) -> Vec<FieldProblem> {
        let mut problems = Vec::new();
        let mut check = |field: &str, holds: bool, message: String| {
            if !holds {
                problems.push(FieldProblem::new(field, message));
            }
        };
        check(
            "temperature",
            self.temperature
                .is_none_or(|value| (0.0..=MAX_TEMPERATURE).contains(&value)),
            format!("must lie between 0 (greedy) and {MAX_TEMPERATURE}"),
        );
        check(
            "max_tokens",
            self.max_tokens.is_none_or(|value| value <= MAX_TOKENS),
            format!("must not be above {MAX_TOKENS}"),
        );
        check(
            "top_p",
            self.top_p.is_none_or(|value| value > 0.0 && value <= 1.0),
            "must be above 0 and not above 1".to_owned(),
        );
        check(
            "top_k",
            self.top_k.is_none_or(|value| value <= MAX_TOP_K),
            format!("must not be above {MAX_TOP_K}; 0 means all tokens"),
        );
        check(
            "repetition_penalty",
            self.repetition_penalty
                .is_none_or(|value| value > 0.0 && value <= MAX_PENALTY),
            format!("must be above 0 and not above {MAX_PENALTY}; 1 changes nothing"),
        );
        check(
            "seed",
            self.seed.is_none_or(|value| value <= MAX_SEED),
            format!("must not be above {MAX_SEED}"),
        );
        check(
            "stop",
            self.stop.len() <= MAX_STOPS,
            format!("must not have more than {MAX_STOPS} texts"),
        );
        check(
            "stop",
            self.stop
                .iter()
                .all(|text| (1..=MAX_STOP_BYTES).contains(&text.len())),
            format!("each text must have 1 to {MAX_STOP_BYTES} bytes"),
        );
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(problems: Vec<FieldProblem>) -> Vec<String> {
        problems.into_iter().map(|problem| problem.field).collect()
    }

    fn message(role: &str) -> ChatMessage {
        ChatMessage {
            role: role.to_owned(),
            content: "hi".to_owned(),
        }
    }

    #[test]
    fn every_sampling_parameter_that_is_out_of_range_is_named() {
        let wrong = Sampling {
            temperature: Some(-0.1),
            max_tokens: Some(u64::MAX),
            top_p: Some(0.0),
            top_k: Some(u64::MAX),
            repetition_penalty: Some(0.0),
            seed: Some(u64::MAX),
            stop: vec![String::new()],
        };
        assert_eq!(
            fields(wrong.problems()),
            [
                "temperature",
                "max_tokens",
                "top_p",
                "top_k",
                "repetition_penalty",
                "seed",
                "stop"
            ]
        );
    }

    #[test]
    fn g091_g094_greedy_and_empty_answers_may_be_asked_for() {
        let edge = Sampling {
            temperature: Some(0.0),
            max_tokens: Some(0),
            top_p: Some(1.0),
            top_k: Some(0),
            repetition_penalty: Some(1.0),
            seed: Some(0),
            stop: Vec::new(),
        };
        assert_eq!(edge.problems(), []);
        assert_eq!(Sampling::default().problems(), []);
    }

    #[test]
    fn g087_a_chat_has_one_system_message_at_most_and_something_to_answer() {
        let chat = |messages: Vec<ChatMessage>, system: Option<&str>| Chat {
            messages,
            system_prompt: system.map(str::to_owned),
        };
        assert_eq!(fields(chat(vec![], None).problems()), ["messages"]);
        assert_eq!(
            fields(chat(vec![message("system")], None).problems()),
            ["messages"]
        );
        let both = chat(vec![message("system"), message("user")], Some("S"));
        assert_eq!(fields(both.problems()), ["system_prompt"]);
        let other = chat(vec![message("developer")], None);
        assert_eq!(fields(other.problems()), ["messages[0].role"]);
        assert_eq!(chat(vec![message("user")], Some("S")).problems(), []);
    }
}
