//! What a volunteer tells while it goes.

use std::time::Duration;

use chrono::NaiveTime;

use crate::engine::trainer::{LogLevel, StepReport};

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum VolunteerEvent {
    /// The coordinator has told what is trained.
    Joined {
        /// The session's name, where it told one.
        session: Option<String>,
        /// The base model.
        model: String,
    },
    /// A file of the base model is fetched.
    Fetching {
        /// Its name.
        file: String,
        /// Bytes that are there.
        bytes: u64,
    },
    /// Weights and data are there, and training begins.
    RoundBegun {
        /// The round, from 0.
        round: u64,
        /// Rounds of the session.
        total_rounds: u64,
        /// The shard, from 0.
        shard: u64,
        /// Optimizer steps.
        steps: u64,
    },
    /// An optimizer step of the round is done.
    Step {
        /// The step within the round, from 1.
        step: u64,
        /// Steps of the round.
        steps: u64,
        /// What it came to.
        report: Box<StepReport>,
    },
    /// The round's result is in the state folder.
    Trained {
        /// The round, from 0.
        round: u64,
        /// Mean loss over the round.
        loss: Option<f64>,
        /// Bytes of the result.
        size_bytes: u64,
        /// Its SHA-256.
        sha256: String,
    },
    /// Results are blurred for differential privacy; told at the beginning, and after every result.
    Private {
        /// Standard deviation of the noise, in multiples of the norm that changes are clipped to; the least of all
        /// results.
        noise_multiplier: f64,
        /// Results under this name at this coordinator so far, of earlier runs too.
        results: u64,
        /// What they give away together at most; none before the first.
        epsilon: Option<f64>,
        /// For which delta.
        delta: f64,
    },
    /// What the owner's limits held up goes on.
    GoesOn,
    /// The coordinator has the result.
    Delivered {
        /// The round, from 0.
        round: u64,
    },
    /// The round was over before this volunteer was done, and it stopped training it.
    Overtaken {
        /// The round, from 0.
        round: u64,
    },
    /// So many rounds in a row were over before this volunteer was done.
    TooSlow {
        /// How many.
        rounds: u32,
    },
    /// The coordinator does not want the result any more, or refuses it.
    NotTaken {
        /// The round, from 0.
        round: u64,
        /// What it says.
        reason: String,
    },
    /// Nothing is done for a while.
    Waiting {
        /// Why.
        reason: WaitReason,
        /// For how long, where that is known.
        delay: Option<Duration>,
    },
    /// A line of the engine's log.
    Log {
        /// How much it matters.
        level: LogLevel,
        /// The line.
        line: String,
    },
    /// The coordinator has said that training is finished.
    Finished,
}

/// Why nothing is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitReason {
    /// This volunteer's result of the round is in.
    RoundOpen {
        /// The round, from 0.
        round: u64,
    },
    /// The round is over for this volunteer, and the next one is not open yet.
    RoundOver {
        /// The round, from 0.
        round: u64,
    },
    /// The machine's owner has paused it.
    Paused,
    /// It is outside the hours.
    OutsideHours {
        /// When they begin, in the machine's own time.
        until: NaiveTime,
    },
    /// The machine is in use.
    MachineInUse,
    /// Something failed that may pass.
    Fault(String),
}
