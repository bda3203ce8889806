//! What `GET /bilgi` says, as far as a volunteer needs it. The source document leaves its fields open but for `veri`, so
//! each of them may be missing.

use serde_json::{Map, Value};
use trainyard_shared::training::TargetModules;

/// What is known of a session before its first task.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SessionInfo {
    pub(super) name: Option<String>,
    /// The base model's name at the hub.
    pub(super) model: Option<String>,
    pub(super) adapter: AdapterInfo,
}

/// The adapter that is trained, as far as it is told.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct AdapterInfo {
    pub(super) r: Option<u64>,
    pub(super) alpha: Option<f64>,
    /// The layers that have a pair.
    pub(super) targets: Option<TargetModules>,
    /// PEFT's config as a whole.
    pub(super) peft: Option<Map<String, Value>>,
}

/// The protocol's version that is spoken here.
const PROTOCOL: u64 = 1;

impl SessionInfo {
    /// Reads an answer.
    ///
    /// # Errors
    /// It speaks another version of the protocol, or trains something else than an adapter in safetensors.
    pub(super) fn of(answer: &Value) -> Result<Self, String> {
        if let Some(version) = answer.get("protokol").and_then(Value::as_u64)
            && version != PROTOCOL
        {
            return Err(format!(
                "the coordinator speaks version {version} of the protocol, not {PROTOCOL}"
            ));
        }
        let text = |value: Option<&Value>| {
            let text = value.and_then(Value::as_str)?;
            Some(text.replace(char::is_control, " "))
        };
        let adapter = answer.get("adaptor").filter(|adapter| adapter.is_object());
        if let Some(format) = text(adapter.and_then(|adapter| adapter.get("bicim")))
            && format != "safetensors"
        {
            return Err(format!("the adapter's format is {format}, not safetensors"));
        }
        Ok(Self {
            name: text(answer.get("ad")),
            model: text(answer.pointer("/model/huggingface_id")).filter(|name| !name.is_empty()),
            adapter: adapter.map(AdapterInfo::of).unwrap_or_default(),
        })
    }
}

impl AdapterInfo {
    /// Whether its shape is known without its weights.
    pub(super) fn is_complete(&self) -> bool {
        self.peft.is_some() || (self.r.is_some() && self.targets.is_some())
    }

    fn of(adapter: &Value) -> Self {
        let targets = match adapter.get("hedefler") {
            Some(Value::String(word)) if word == TargetModules::ALL_LINEAR => {
                Some(TargetModules::AllLinear)
            }
            Some(Value::String(pattern)) => Some(TargetModules::Pattern(pattern.clone())),
            Some(Value::Array(names)) => {
                let names = names.iter().map(|name| name.as_str().map(str::to_owned));
                names.collect::<Option<_>>().map(TargetModules::Names)
            }
            _ => None,
        };
        Self {
            r: adapter.get("r").and_then(Value::as_u64),
            alpha: adapter.get("alpha").and_then(Value::as_f64),
            targets,
            peft: adapter.get("peft").and_then(Value::as_object).cloned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_field_may_be_missing() {
        assert_eq!(SessionInfo::of(&json!({})).unwrap(), SessionInfo::default());
        let served = json!({"veri": {"bicim": "safetensors-ids-v1", "parca": 4}});
        assert_eq!(SessionInfo::of(&served).unwrap(), SessionInfo::default());
    }

    #[test]
    fn model_and_adapter_are_found() {
        let info = SessionInfo::of(&json!({
            "protokol": 1, "ad": "masal", "bs": 4, "seq": 512, "model": {"huggingface_id": "org/name"},
            "adaptor": {"bicim": "safetensors", "r": 8, "alpha": 16, "hedefler": ["q_proj", "v_proj"]},
        }))
        .unwrap();
        assert_eq!(info.model.as_deref(), Some("org/name"));
        let adapter = info.adapter;
        assert!(adapter.is_complete());
        assert_eq!((adapter.r, adapter.alpha), (Some(8), Some(16.0)));
        let names = vec!["q_proj".to_owned(), "v_proj".to_owned()];
        assert_eq!(adapter.targets, Some(TargetModules::Names(names)));
        let part = json!({"adaptor": {"r": 8, "alpha": 8}});
        let adapter = SessionInfo::of(&part).unwrap().adapter;
        assert!(!adapter.is_complete());
        assert_eq!(adapter.alpha, Some(8.0), "what is told is kept");
    }

    #[test]
    fn another_protocol_or_format_is_refused() {
        for answer in [
            json!({"protokol": 2}),
            json!({"adaptor": {"bicim": "pickle"}}),
        ] {
            assert!(SessionInfo::of(&answer).is_err(), "{answer}");
        }
    }
}
