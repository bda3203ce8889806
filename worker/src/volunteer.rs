//! A volunteer: trains for a coordinator of Coordinator protocol v1, round after round, until it says `bitti`.
//!
//! 1. `GET /bilgi`: which base model, which adapter. Whether this machine can run it is known before anything large is
//!    fetched.
//! 2. `GET /gorev`: a task; or "wait", and it is asked again later; or the end.
//! 3. A result of this task that an earlier run kept is delivered; else weights and shard are fetched, checked by their
//!    digests (others than the task's: back to 2), and trained on.
//!    Where its owner asks for differential privacy, the result is clipped and blurred at once.
//!    While it trains, it asks now and then whether the round is still open, and stops where it is not.
//! 4. The result is kept in the state folder before it is sent, and until the coordinator has it or wants it no more.
//!
//! Whatever fails and may pass is tried again, ever later: a coordinator or hub that is away, a disk without room, memory
//! that was there before. Only what a person must put right ends the volunteer: a refused address, key or name, a task
//! that this machine cannot take.
//!
//! The owner of the machine has the last word (`limits`): nothing is trained while paused, outside the hours, or, where so
//! asked, while the machine is in use.

mod adapter;
mod address;
mod base_model;
mod client;
mod data;
mod delivery;
mod digests;
mod error;
mod event;
mod info;
mod limits;
mod local_data;
mod rounds;
mod state;
mod training;
mod waiting;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use trainyard_privacy::GaussianMechanism;
use trainyard_shared::Secret;

use crate::config::ModelSettings;
use crate::engine::data::DataFile;

pub use address::{AddressError, CoordinatorAddress};
pub use error::VolunteerError;
pub use event::{VolunteerEvent, WaitReason};
pub use limits::{CpuShare, DiskLimits, Hours, Limits, PauseSwitch, is_name};
pub use rounds::run;
pub use state::FOLDER;

/// What a volunteer needs to know.
#[derive(Debug, Clone)]
pub struct VolunteerConfig {
    /// Where the coordinator is.
    pub coordinator: CoordinatorAddress,
    /// The volunteer's name there, a pseudonym.
    pub name: String,
    /// The coordinator's shared key.
    pub key: Option<Secret>,
    /// The volunteer's own data, for coordinators that serve none.
    pub data: Option<OwnData>,
    /// The base model, where the coordinator does not name one or another place is meant.
    pub model: Option<String>,
    /// The adapter's alpha, where the coordinator does not say.
    pub lora_alpha: Option<f64>,
    /// Go on with AdamW's moments from round to round, rather than from zero.
    pub keep_optimizer: bool,
    /// What is done to results before they are sent; nothing where there is none.
    pub mechanism: Option<GaussianMechanism>,
    /// What the machine's owner allows.
    pub limits: Limits,
    /// Folder of the worker's state.
    pub state_dir: PathBuf,
    /// Where base models are looked for and put.
    pub models: ModelSettings,
    /// First delay before something is asked or tried again; it doubles.
    pub first_delay: Duration,
    /// Where that doubling ends.
    pub longest_delay: Duration,
    /// How often is asked, while a round is trained, whether it is still open.
    pub watch_every: Duration,
}

/// A volunteer's own data.
#[derive(Debug, Clone)]
pub struct OwnData {
    /// A token shard, or rows in any form that training takes.
    pub file: DataFile,
    /// Which part of it is trained on.
    pub part: OwnPart,
}

/// Which part of a volunteer's own data is trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnPart {
    /// All of it: it is the volunteer's own.
    Whole,
    /// Part `parca` of `n_parca`: all volunteers have the same file.
    ByTask,
}

#[cfg(test)]
mod tests;
