//! What `start_inference` asks for, checked before anything is fetched: every refusal names its field.

use trainyard_shared::FailureKind;
use trainyard_shared::dataset::{Role, Turn};
use trainyard_shared::message::{ChatMessage, StartInferenceData};

use crate::engine::EngineError;
use crate::engine::generate::SamplingOptions;
use crate::tasks::failure::Failure;

/// Most new tokens, where the request does not say.
const DEFAULT_MAX_TOKENS: usize = 512;
/// Where the request does not say.
const DEFAULT_TEMPERATURE: f64 = 0.7;
/// Stop strings of one request.
const MAX_STOPS: usize = 16;
/// Bytes of one stop string.
const MAX_STOP_BYTES: usize = 1024;

/// A checked request.
#[derive(Debug, PartialEq)]
pub(super) struct Request {
    /// The chat, its system message first where there is one.
    pub(super) turns: Vec<Turn>,
    /// Without stop tokens, which are the model's.
    pub(super) sampling: SamplingOptions,
    /// Texts that end the answer.
    pub(super) stops: Vec<String>,
}

impl Request {
    /// Checks a request. Without a seed, `random_seed` is used.
    ///
    /// # Errors
    ///
    /// The first field that does not fit.
    pub(super) fn parse(data: &StartInferenceData, random_seed: u64) -> Result<Self, Failure> {
        Ok(Self {
            turns: turns(data)?,
            sampling: sampling(data, random_seed)?,
            stops: stops(&data.stop)?,
        })
    }
}

/// A system message in the chat itself wins over `system_prompt`; an empty `system_prompt` is none.
fn turns(data: &StartInferenceData) -> Result<Vec<Turn>, Failure> {
    if data.messages.is_empty() {
        return Err(refused("messages: a chat needs at least one message"));
    }
    let mut turns = Vec::new();
    for (index, ChatMessage { role, content }) in data.messages.iter().enumerate() {
        let role = match role.as_str() {
            // The newer name of the same role.
            "system" | "developer" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            other => {
                return Err(refused(&format!(
                    "messages[{index}].role: there is no role `{other}`"
                )));
            }
        };
        turns.push(Turn {
            role,
            content: content.clone(),
        });
    }
    let system = data.system_prompt.as_ref().filter(|text| !text.is_empty());
    if let Some(system) = system
        && turns.iter().all(|turn| turn.role != Role::System)
    {
        let turn = Turn {
            role: Role::System,
            content: system.clone(),
        };
        turns.insert(0, turn);
    }
    Ok(turns)
}

fn sampling(data: &StartInferenceData, random_seed: u64) -> Result<SamplingOptions, Failure> {
    let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let sampling = SamplingOptions {
        max_tokens: data.max_tokens.map_or(DEFAULT_MAX_TOKENS, count),
        temperature: data.temperature.unwrap_or(DEFAULT_TEMPERATURE) as f32,
        top_p: single(data.top_p.unwrap_or(1.0)),
        top_k: data.top_k.map_or(0, count),
        repetition_penalty: single(data.repetition_penalty.unwrap_or(1.0)),
        seed: data.seed.unwrap_or(random_seed),
        stop_ids: Vec::new(),
    };
    match sampling.validate() {
        Ok(()) => Ok(sampling),
        Err(error @ EngineError::InvalidSetting { .. }) => Err(refused(&error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// In single precision, where what is above 0 stays above 0.
fn single(number: f64) -> f32 {
    let nearest = number as f32;
    if number > 0.0 && nearest == 0.0 {
        f32::MIN_POSITIVE
    } else {
        nearest
    }
}

fn stops(stops: &[String]) -> Result<Vec<String>, Failure> {
    let problem = if stops.len() > MAX_STOPS {
        format!("stop: {} texts, at most {MAX_STOPS} are taken", stops.len())
    } else if stops.iter().any(String::is_empty) {
        "stop: an empty text".to_owned()
    } else if stops.iter().any(|stop| stop.len() > MAX_STOP_BYTES) {
        format!("stop: a text of more than {MAX_STOP_BYTES} bytes")
    } else {
        return Ok(stops.to_vec());
    };
    Err(refused(&problem))
}

/// The request is one that nobody could answer.
pub(super) fn refused(message: &str) -> Failure {
    Failure::new(FailureKind::BadConfig, message)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(change: impl FnOnce(&mut Value)) -> Result<Request, String> {
        let mut data = json!({
            "huggingface_id": "yard/tiny",
            "messages": [{"role": "user", "content": "hi"}],
        });
        change(&mut data);
        let data: StartInferenceData = serde_json::from_value(data).unwrap();
        Request::parse(&data, 99).map_err(|failure| {
            assert_eq!(failure.kind, FailureKind::BadConfig);
            failure.message
        })
    }

    fn roles(request: &Request) -> Vec<(Role, &str)> {
        let turns = request.turns.iter();
        turns
            .map(|turn| (turn.role, turn.content.as_str()))
            .collect()
    }

    #[test]
    fn g087_a_system_message_in_the_chat_wins_and_none_is_invented() {
        let given = parse(|data| data["system_prompt"] = json!("S")).unwrap();
        assert_eq!(roles(&given), [(Role::System, "S"), (Role::User, "hi")]);
        for role in ["system", "developer"] {
            let both = parse(|data| {
                data["system_prompt"] = json!("S");
                data["messages"] =
                    json!([{"role": role, "content": "S2"}, {"role": "user", "content": "hi"}]);
            });
            assert_eq!(
                roles(&both.unwrap()),
                [(Role::System, "S2"), (Role::User, "hi")]
            );
        }
        for nothing in [json!(null), json!("")] {
            let none = parse(|data| data["system_prompt"] = nothing).unwrap();
            assert_eq!(roles(&none), [(Role::User, "hi")]);
        }
        let empty = parse(|data| data["messages"] = json!([])).unwrap_err();
        assert!(empty.starts_with("messages: "), "{empty}");
        let role = parse(|data| data["messages"][0]["role"] = json!("captain")).unwrap_err();
        assert_eq!(role, "messages[0].role: there is no role `captain`");
    }

    #[test]
    fn g091_g094_every_option_out_of_range_is_refused_by_name_and_zero_is_taken() {
        for (field, value) in [
            ("temperature", json!(-1)),
            ("temperature", json!(1e300)),
            ("top_p", json!(0)),
            ("top_p", json!(1.5)),
            ("repetition_penalty", json!(0)),
            ("repetition_penalty", json!(-2)),
            ("stop", json!([""])),
            ("stop", json!(vec!["x"; 17])),
            ("stop", json!(["x".repeat(1025)])),
        ] {
            let refused = parse(|data| data[field] = value.clone()).unwrap_err();
            assert!(refused.starts_with(field), "{field} {value}: {refused}");
        }
        let zero = parse(|data| {
            data["temperature"] = json!(0);
            data["max_tokens"] = json!(0);
            data["top_k"] = json!(0);
        });
        let sampling = zero.unwrap().sampling;
        assert_eq!((sampling.temperature, sampling.max_tokens), (0.0, 0));
        let tiny = parse(|data| {
            data["top_p"] = json!(1e-300);
            data["repetition_penalty"] = json!(1e-300);
        });
        let sampling = tiny.unwrap().sampling;
        assert!(sampling.top_p > 0.0 && sampling.repetition_penalty > 0.0);
    }

    #[test]
    fn what_is_not_said_has_its_default_and_a_random_seed() {
        let sampling = parse(|_| {}).unwrap().sampling;
        assert_eq!((sampling.max_tokens, sampling.seed), (512, 99));
        let seeded = parse(|data| data["seed"] = json!(7)).unwrap().sampling;
        assert_eq!(seeded.seed, 7);
    }
}
