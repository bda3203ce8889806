//! The JSON bodies of Coordinator protocol v1, spoken over HTTP between a coordinator and volunteers.
//!
//! The field names on the wire are Turkish, as the source document has them; here they are English.
//! Weights and shards travel as safetensors and are no part of this file.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::number;

/// The answer to `GET /gorev`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TaskReply {
    /// Train this.
    Task(Task),
    /// This worker's result of the round is in; ask again later.
    Wait(Wait),
    /// Training has finished.
    Finished(Finished),
}

/// One worker's part of a round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// The round, from 0.
    #[serde(rename = "tur", deserialize_with = "number::count")]
    pub round: u64,
    /// Rounds of the session.
    #[serde(rename = "toplam_tur", deserialize_with = "number::count")]
    pub total_rounds: u64,
    /// The worker's shard, from 0.
    #[serde(rename = "parca", deserialize_with = "number::count")]
    pub shard: u64,
    /// Shards in all.
    #[serde(rename = "n_parca", deserialize_with = "number::count")]
    pub shards: u64,
    /// Optimizer steps of a round.
    #[serde(rename = "ic_adim", deserialize_with = "number::count")]
    pub local_steps: u64,
    /// Sequences in a batch.
    #[serde(rename = "bs", deserialize_with = "number::count")]
    pub batch_size: u64,
    /// Length of a sequence in tokens.
    #[serde(rename = "seq", deserialize_with = "number::count")]
    pub sequence_length: u64,
    /// Learning rate.
    #[serde(rename = "lr")]
    pub learning_rate: f64,
    /// Seed.
    #[serde(rename = "tohum", deserialize_with = "number::count")]
    pub seed: u64,
    /// SHA-256 of the global adapter, 64 lower-case hex digits.
    #[serde(rename = "agirlik_sha256")]
    pub weights_sha256: String,
    /// SHA-256 of the worker's shard, where the coordinator serves the data.
    #[serde(
        rename = "veri_sha256",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub data_sha256: Option<String>,
    /// Tokens of the worker's shard, where the coordinator serves the data.
    #[serde(
        rename = "veri_belirtec",
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub data_tokens: Option<u64>,
    /// What is trained; [`Mode::Cpt`] when missing.
    #[serde(rename = "mod", default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
}

/// What is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Instruction fine-tuning: loss on the assistant's tokens only.
    Sft,
    /// Continued pretraining: loss on every token. Words that are not known are read as this.
    #[serde(other)]
    Cpt,
}

/// `{"bekle": true, "tur": N}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// Always true.
    #[serde(rename = "bekle")]
    pub wait: bool,
    /// The round, from 0.
    #[serde(rename = "tur", deserialize_with = "number::count")]
    pub round: u64,
}

/// `{"bitti": true}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Always true.
    #[serde(rename = "bitti")]
    pub finished: bool,
}

/// The good answer to `POST /sonuc`: `{"tamam": true, "tur": N}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultAccepted {
    /// Always true.
    #[serde(rename = "tamam")]
    pub accepted: bool,
    /// The round that the result counts for.
    #[serde(rename = "tur", deserialize_with = "number::count")]
    pub round: u64,
}

/// Every error: `{"hata": "<message>"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What is wrong, for a person.
    #[serde(rename = "hata")]
    pub message: String,
}

/// The answer to `GET /bilgi`: what a session is and where it stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Info {
    /// Version of the protocol: 1.
    #[serde(rename = "protokol", deserialize_with = "number::count")]
    pub protocol: u64,
    /// The session's name.
    #[serde(rename = "ad")]
    pub name: String,
    /// The round, from 0; all rounds once training has finished.
    #[serde(rename = "tur", deserialize_with = "number::count")]
    pub round: u64,
    /// Rounds of the session.
    #[serde(rename = "toplam_tur", deserialize_with = "number::count")]
    pub total_rounds: u64,
    /// Results that close a round.
    #[serde(rename = "en_az", deserialize_with = "number::count")]
    pub enough: u64,
    /// Shards in all.
    #[serde(rename = "n_parca", deserialize_with = "number::count")]
    pub shards: u64,
    /// What is trained.
    #[serde(rename = "mod")]
    pub mode: Mode,
    /// Sequences in a batch.
    #[serde(rename = "bs", deserialize_with = "number::count")]
    pub batch_size: u64,
    /// Length of a sequence in tokens.
    #[serde(rename = "seq", deserialize_with = "number::count")]
    pub sequence_length: u64,
    /// Optimizer steps of a round.
    #[serde(rename = "ic_adim", deserialize_with = "number::count")]
    pub local_steps: u64,
    /// Learning rate.
    #[serde(rename = "lr")]
    pub learning_rate: f64,
    /// SHA-256 of the global adapter, 64 lower-case hex digits.
    #[serde(rename = "agirlik_sha256")]
    pub weights_sha256: String,
    /// Results so far in the round.
    #[serde(rename = "gelen", deserialize_with = "number::count")]
    pub received: u64,
    /// Workers seen in the last ten minutes.
    #[serde(rename = "isciler", deserialize_with = "number::count")]
    pub workers: u64,
    /// Whether training has finished.
    #[serde(rename = "bitti")]
    pub finished: bool,
    /// Whether a key is needed.
    #[serde(rename = "kilitli")]
    pub locked: bool,
    /// The model below the adapter.
    pub model: InfoModel,
    /// The adapter.
    #[serde(rename = "adaptor")]
    pub adapter: InfoAdapter,
    /// The data, where the coordinator serves it.
    #[serde(rename = "veri", default, skip_serializing_if = "Option::is_none")]
    pub data: Option<ServedData>,
}

/// The model below the adapter of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InfoModel {
    /// Its name at the hub.
    pub huggingface_id: String,
}

/// The adapter of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InfoAdapter {
    /// Always `safetensors`.
    #[serde(rename = "bicim")]
    pub format: String,
    /// Rank.
    #[serde(deserialize_with = "number::count")]
    pub r: u64,
    /// Its output is scaled by `alpha / r`.
    pub alpha: f64,
    /// The layers that have it, by the last part of their names.
    #[serde(rename = "hedefler")]
    pub targets: Vec<String>,
    /// The whole of PEFT's config, as in `adapter_config.json`. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peft: Option<Map<String, Value>>,
}

/// What `GET /bilgi` says of the data that the coordinator serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedData {
    /// Always `safetensors-ids-v1`.
    #[serde(rename = "bicim")]
    pub format: String,
    /// Shards in all.
    #[serde(rename = "parca", deserialize_with = "number::count")]
    pub shards: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    fn round_trip<T: Serialize + DeserializeOwned>(example: Value) -> T {
        let read: T = serde_json::from_value(example.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), example);
        read
    }

    #[test]
    fn the_source_documents_task_round_trips_as_it_stands() {
        let example = r#"{"tur": 3, "toplam_tur": 20, "parca": 1, "n_parca": 4, "ic_adim": 20, "bs": 4, "seq": 512,
 "lr": 0.0002, "tohum": 0, "agirlik_sha256": "<64 lowercase hex>"}"#;
        let reply: TaskReply = round_trip(serde_json::from_str(example).unwrap());
        assert!(matches!(
            reply,
            TaskReply::Task(Task {
                round: 3,
                shards: 4,
                mode: None,
                ..
            })
        ));
    }

    #[test]
    fn the_other_replies_round_trip_as_they_stand() {
        assert!(matches!(
            round_trip(json!({"bitti": true})),
            TaskReply::Finished(_)
        ));
        assert!(matches!(
            round_trip(json!({"bekle": true, "tur": 2})),
            TaskReply::Wait(Wait { round: 2, .. })
        ));
        round_trip::<ResultAccepted>(json!({"tamam": true, "tur": 0}));
        round_trip::<Refusal>(json!({"hata": "<message>"}));
        round_trip::<ServedData>(json!({"bicim": "safetensors-ids-v1", "parca": 4}));
    }

    #[test]
    fn what_is_said_of_a_session_round_trips() {
        let info: Info = round_trip(json!({
            "protokol": 1, "ad": "masal", "tur": 3, "toplam_tur": 20, "en_az": 2, "n_parca": 4, "mod": "cpt",
            "bs": 4, "seq": 512, "ic_adim": 20, "lr": 0.0002, "agirlik_sha256": "<64 lowercase hex>", "gelen": 1,
            "isciler": 7, "bitti": false, "kilitli": true, "model": {"huggingface_id": "org/name"},
            "adaptor": {"bicim": "safetensors", "r": 8, "alpha": 16.0, "hedefler": ["q_proj"]},
            "veri": {"bicim": "safetensors-ids-v1", "parca": 4},
        }));
        assert_eq!((info.enough, info.adapter.r), (2, 8));
    }

    #[test]
    fn a_mode_that_is_not_known_means_continued_pretraining() {
        assert_eq!(
            serde_json::from_value::<Mode>(json!("sft")).unwrap(),
            Mode::Sft
        );
        assert_eq!(
            serde_json::from_value::<Mode>(json!("dpo")).unwrap(),
            Mode::Cpt
        );
    }
}
