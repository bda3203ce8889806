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
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

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
    /// Put before it as its system message, where it has none of its own.
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
    /// A chat of roles and texts. `developer` is the newer name of `system`; a system message of the chat itself
    /// wins over `system_prompt`, and an empty one is none.
    pub fn new(
        messages: impl IntoIterator<Item = (String, String)>,
        system_prompt: Option<String>,
    ) -> Self {
        let messages = messages.into_iter().map(|(role, content)| {
            let role = match role.as_str() {
                "developer" => "system".to_owned(),
                _ => role,
            };
            ChatMessage { role, content }
        });
        let messages: Vec<_> = messages.collect();
        let has_system = messages.iter().any(|message| message.role == "system");
        let system_prompt = system_prompt.filter(|prompt| !prompt.is_empty() && !has_system);
        Self {
            messages,
            system_prompt,
        }
    }

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

    #[test]
    fn g087_a_system_message_of_the_chat_wins_and_nothing_is_invented() {
        let chat = |roles: &[&str], system: Option<&str>| {
            let turns = roles.iter().map(|role| (role.to_string(), "hi".to_owned()));
            Chat::new(turns, system.map(str::to_owned))
        };
        assert_eq!(fields(chat(&[], None).problems()), ["messages"]);
        let unknown = chat(&["user", "captain"], None);
        assert_eq!(fields(unknown.problems()), ["messages[1].role"]);
        assert_eq!(chat(&["system", "user"], Some("S")).system_prompt, None);
        assert_eq!(chat(&["developer", "user"], Some("S")).system_prompt, None);
        assert_eq!(chat(&["user"], Some("")).system_prompt, None);
        let given = chat(&["user"], Some("S"));
        assert_eq!(given.system_prompt.as_deref(), Some("S"));
        assert_eq!(given.problems(), []);
        assert_eq!(chat(&["developer"], None).messages[0].role, "system");
    }
}
