//! One volunteer session as requests find it: being prepared, ready, or failed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, http::header::HeaderName};
use chrono::NaiveDateTime;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use trainyard_engine::data::SHARD_FORMAT;
use trainyard_shared::coordinator::{Info, InfoAdapter, InfoModel, ServedData};
use trainyard_shared::ids::FederatedSessionId;

use super::{Refused, Settings};
use crate::database::{DatabaseError, from_json_text};
use crate::rounds::session::Session;
use crate::rounds::state::Phase;
use crate::rounds::store::{SessionRow, natural};

/// The header with the key that participants share.
const KEY_HEADER: HeaderName = HeaderName::from_static("x-anahtar");
/// Version of the protocol.
const PROTOCOL: u64 = 1;

/// A volunteer session.
pub struct Hosted {
    /// Its row as it was made.
    pub row: SessionRow,
    /// How volunteers train in it.
    pub settings: Settings,
    stage: RwLock<Stage>,
    is_given_up: Arc<AtomicBool>,
}

#[derive(Clone)]
enum Stage {
    Preparing,
    Failed,
    Ready(Arc<Ready>),
}

/// A session that has been prepared.
pub struct Ready {
    /// Its rounds.
    pub session: Arc<Session>,
    adapter: InfoAdapter,
}

impl Hosted {
    /// A session that is being prepared.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn preparing(row: SessionRow) -> Result<Self, DatabaseError> {
        Ok(Self {
            settings: Settings::of(&row)?,
            row,
            stage: RwLock::new(Stage::Preparing),
            is_given_up: Arc::default(),
        })
    }

    /// Its number.
    pub fn id(&self) -> FederatedSessionId {
        self.row.id()
    }

    /// It could not be prepared.
    pub fn fail(&self) {
        self.set(Stage::Failed);
    }

    /// It has been prepared.
    ///
    /// # Errors
    /// When the adapter's config that is stored cannot be read.
    pub fn make_ready(&self, session: Arc<Session>) -> Result<(), DatabaseError> {
        let config = session.row.adapter_config.as_deref().unwrap_or("{}");
        let adapter = described(from_json_text(config)?);
        self.set(Stage::Ready(Arc::new(Ready { session, adapter })));
        Ok(())
    }

    fn set(&self, stage: Stage) {
        *self
            .stage
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner()) = stage;
    }

    fn stage(&self) -> Stage {
        self.stage
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .clone()
    }

    /// The session, once it has been prepared.
    pub fn session(&self) -> Option<Arc<Session>> {
        match self.stage() {
            Stage::Ready(ready) => Some(ready.session.clone()),
            Stage::Preparing | Stage::Failed => None,
        }
    }

    /// Whether it still has rounds before it.
    pub fn is_open(&self) -> bool {
        match self.stage() {
            Stage::Preparing | Stage::Failed => false,
            Stage::Ready(ready) => !ready.session.live().rounds.phase().is_ended(),
        }
    }

    /// Whether weights and shards are still being made.
    pub fn is_preparing(&self) -> bool {
        matches!(self.stage(), Stage::Preparing)
    }

    /// Its preparation is to end.
    pub fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }

    /// Tells whether its preparation is to end.
    pub fn given_up(&self) -> Arc<AtomicBool> {
        self.is_given_up.clone()
    }

    /// When it ended; none for one that goes on, and one that could not be prepared.
    pub fn ended_at(&self) -> Option<NaiveDateTime> {
        self.session()?.live().ended_at
    }

    /// The session, for a volunteer.
    ///
    /// # Errors
    /// 503 while it is being prepared, 404 where that has failed.
    pub fn ready(&self) -> Result<Arc<Ready>, Refused> {
        match self.stage() {
            Stage::Ready(ready) => Ok(ready),
            Stage::Preparing => Err(Refused::later("the session is being prepared; ask again")),
            Stage::Failed => Err(Refused::new(
                StatusCode::NOT_FOUND,
                "this session could not be prepared",
            )),
        }
    }

    /// Makes sure that a request carries the session's key, where it has one. The comparison takes the same time
    /// wherever they differ.
    ///
    /// # Errors
    /// 401.
    pub fn check_key(&self, request: &HttpRequest) -> Result<(), Refused> {
        let Some(wanted) = &self.row.key_hash else {
            return Ok(());
        };
        let mut given = request.headers().get_all(KEY_HEADER);
        let is_right = match (given.next(), given.next()) {
            (Some(key), None) => key_hash(key.as_bytes()).ct_eq(wanted).into(),
            _ => false,
        };
        match is_right {
            true => Ok(()),
            false => Err(Refused::new(
                StatusCode::UNAUTHORIZED,
                "the key (X-Anahtar) is missing or wrong",
            )),
        }
    }
}

/// What is kept of the key that participants share.
pub fn key_hash(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

impl Ready {
    /// What anyone may know of the session.
    pub fn info(&self, hosted: &Hosted) -> Info {
        let session = &self.session;
        let workers = session.participants.seen_lately() as u64;
        let live = session.live();
        let (rounds, rules) = (&live.rounds, live.rounds.rules());
        let settings = &hosted.settings;
        Info {
            protocol: PROTOCOL,
            name: session.row.name.clone(),
            round: rounds.round(),
            total_rounds: rules.total_rounds,
            enough: rules.enough as u64,
            shards: natural(session.row.shard_count),
            mode: settings.mode,
            batch_size: settings.batch_size,
            sequence_length: settings.sequence_length,
            local_steps: settings.local_steps,
            learning_rate: settings.learning_rate,
            weights_sha256: live.weights.sha256.clone(),
            received: match rounds.phase() {
                Phase::Open | Phase::Merging => rounds.results().len() as u64,
                Phase::Finished | Phase::Stopped => 0,
            },
            workers,
            finished: rounds.phase().is_ended(),
            locked: hosted.row.key_hash.is_some(),
            model: InfoModel {
                huggingface_id: session.row.base_model.clone(),
            },
            adapter: self.adapter.clone(),
            data: (!session.shards.is_empty()).then(|| ServedData {
                format: SHARD_FORMAT.to_owned(),
                shards: session.shards.len() as u64,
            }),
        }
    }
}

/// What is said of an adapter with this config.
fn described(peft: Map<String, Value>) -> InfoAdapter {
    let targets = match peft.get("target_modules") {
        Some(Value::Array(names)) => names
            .iter()
            .filter_map(|name| name.as_str().map(str::to_owned))
            .collect(),
        Some(Value::String(pattern)) => vec![pattern.clone()],
        _ => Vec::new(),
    };
    InfoAdapter {
        format: "safetensors".to_owned(),
        r: peft.get("r").and_then(Value::as_u64).unwrap_or(0),
        alpha: peft
            .get("lora_alpha")
            .and_then(Value::as_f64)
            .unwrap_or(0.0),
        targets,
        peft: Some(peft),
    }
}
