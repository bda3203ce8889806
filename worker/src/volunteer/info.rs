//! What `GET /bilgi` says, as far as a volunteer needs it. The source document leaves its fields open but for `veri`, so
//! each of them may be missing.

use serde_json::{Map, Value};

/// What is known of a session before its first task.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SessionInfo {
    pub(super) name: Option<String>,
    /// The base model's name at the hub.
    pub(super) model: Option<String>,
    pub(super) adapter: Option<AdapterInfo>,
    /// Sequences in a batch, and tokens in a sequence.
    pub(super) batch: Option<(u64, u64)>,
}

/// The adapter that is trained.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AdapterInfo {
    pub(super) r: u64,
    pub(super) alpha: Option<f64>,
    /// Names of the layers that have a pair.
    pub(super) targets: Vec<String>,
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
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let adapter = answer.get("adaptor").filter(|adapter| adapter.is_object());
        if let Some(format) = text(adapter.and_then(|adapter| adapter.get("bicim")))
            && format != "safetensors"
        {
            return Err(format!("the adapter's format is {format}, not safetensors"));
        }
        let number = |name: &str| answer.get(name).and_then(Value::as_u64);
        Ok(Self {
            name: text(answer.get("ad")),
            model: text(answer.pointer("/model/huggingface_id")).filter(|name| !name.is_empty()),
            adapter: adapter.and_then(AdapterInfo::of),
            batch: number("bs").zip(number("seq")),
        })
    }
}

impl AdapterInfo {
    fn of(adapter: &Value) -> Option<Self> {
        let targets = adapter.get("hedefler").and_then(Value::as_array)?;
        let targets = targets.iter().map(|name| name.as_str().map(str::to_owned));
        Some(Self {
            r: adapter.get("r").and_then(Value::as_u64)?,
            alpha: adapter.get("alpha").and_then(Value::as_f64),
            targets: targets.collect::<Option<_>>()?,
            peft: adapter.get("peft").and_then(Value::as_object).cloned(),
        })
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
        assert_eq!(info.batch, Some((4, 512)));
        let adapter = info.adapter.unwrap();
        assert_eq!((adapter.r, adapter.alpha), (8, Some(16.0)));
        assert_eq!(adapter.targets, ["q_proj", "v_proj"]);
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
