//! A round's training, on a thread of its own: the engine's steps, and the owner's limits between them.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use trainyard_privacy::GaussianMechanism;
use trainyard_shared::coordinator::{Mode, Task};
use trainyard_shared::training::{ScheduleKind, TrainingConfig};

use super::digests::Stamp;
use super::event::{VolunteerEvent, WaitReason};
use super::limits::Gate;
use super::watch::Overtaken;
use crate::engine::EngineError;
use crate::engine::adapter::AdapterConfig;
use crate::engine::trainer::TrainingEvent;
use crate::engine::trainer::local::{
    LocalData, LocalOutcome, LocalRound, LocalTraining, MomentsPlace, Part,
};
use crate::engine::weights::{ModelFiles, SafetensorsFile};
use crate::hardware::free_memory_bytes;
use crate::privacy::protect;
use crate::tasks::StopSignal;

/// A round in which nothing may be done for longer is given up: by then it has gone on without this volunteer.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often is looked whether work may go on.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The longest sequence and the largest batch that are taken.
const MAX_SEQUENCE: u64 = 1 << 20;
const MAX_BATCH: u64 = 4096;
/// The most steps of a round that are taken.
const MAX_STEPS: u64 = 1_000_000;

/// The most steps of a whole session that are taken.
const MAX_STEPS_OF_A_SESSION: u64 = 1 << 53;

/// The base model, with the adapter that a session trains.
pub(super) struct Trainee {
    pub(super) files: ModelFiles,
    pub(super) adapter: AdapterConfig,
    /// Loaded at the first round, and given back while nothing may be done.
    pub(super) local: Option<LocalTraining>,
    /// What was trained on last, checked and cut.
    pub(super) data: Option<(DataKey, LocalData)>,
}

/// What of which file is trained on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DataKey {
    shard: PathBuf,
    stamp: Stamp,
    sequence_length: u32,
    part: Option<Part>,
}

/// Where AdamW's moments are kept between rounds, and of which session they are.
pub(super) struct Moments {
    pub(super) folder: PathBuf,
    pub(super) session: String,
}

/// One round's work.
pub(super) struct Work {
    pub(super) config: TrainingConfig,
    pub(super) task: Task,
    pub(super) weights: PathBuf,
    pub(super) shard: PathBuf,
    /// The part of the shard, where it is not all of it.
    pub(super) part: Option<Part>,
    pub(super) output: PathBuf,
    pub(super) moments: Option<Moments>,
    pub(super) mechanism: Option<GaussianMechanism>,
}

/// The training config of a task.
///
/// # Errors
/// The field of the task that is out of range.
pub(super) fn config_of(task: &Task, adapter: &AdapterConfig) -> Result<TrainingConfig, String> {
    let within = |name: &str, value: u64, most: u64| match (1..=most).contains(&value) {
        true => Ok(value as u32),
        false => Err(format!(
            "the task's {name} is {value}, which is not in 1..={most}"
        )),
    };
    within("ic_adim", task.local_steps, MAX_STEPS)?;
    if task.round >= task.total_rounds || task.shard >= task.shards {
        return Err(format!(
            "the task's tur {} of {} or parca {} of {} is out of range",
            task.round, task.total_rounds, task.shard, task.shards
        ));
    }
    if task.total_rounds > MAX_STEPS_OF_A_SESSION / task.local_steps {
        return Err(format!(
            "the task's toplam_tur is {}, which is too many",
            task.total_rounds
        ));
    }
    let learning_rate = task.learning_rate;
    if !(learning_rate > 0.0 && learning_rate <= 1.0) {
        return Err(format!(
            "the task's lr is {learning_rate}, which is not above 0 and at most 1"
        ));
    }
    Ok(TrainingConfig {
        packing: false,
        batch_size: within("bs", task.batch_size, MAX_BATCH)?,
        max_length: within("seq", task.sequence_length, MAX_SEQUENCE)?,
        gradient_accumulation_steps: 1,
        learning_rate,
        lr_scheduler_type: ScheduleKind::Constant,
        seed: task.seed,
        lora_r: adapter.r as u32,
        lora_alpha: adapter.lora_alpha,
        lora_dropout: adapter.lora_dropout,
        target_modules: adapter.target_modules.clone(),
        ..TrainingConfig::default()
    })
}

/// Trains, and blurs the result where that is asked for.
pub(super) fn train(
    trainee: &mut Trainee,
    work: &Work,
    governor: &Governor<'_>,
) -> Result<LocalOutcome, EngineError> {
    let mut outcome = trained(trainee, work, governor)?;
    if let (LocalOutcome::Trained(result), Some(mechanism)) = (&mut outcome, &work.mechanism) {
        result.file = protect(&work.output, &work.weights, mechanism)?;
    }
    Ok(outcome)
}

fn trained(
    trainee: &mut Trainee,
    work: &Work,
    governor: &Governor<'_>,
) -> Result<LocalOutcome, EngineError> {
    let Task {
        round,
        total_rounds,
        local_steps: steps,
        ..
    } = work.task;
    let data = data(work, trainee)?;
    let local = match &mut trainee.local {
        Some(local) => local,
        none => none.insert(LocalTraining::load(
            &trainee.files,
            &trainee.adapter,
            &work.config,
            free_memory_bytes(),
        )?),
    };
    let local_round = LocalRound {
        data: &data,
        config: &work.config,
        round,
        total_rounds,
        steps,
        weights: &work.weights,
        weights_sha256: &work.task.weights_sha256,
        output: &work.output,
        moments: work.moments.as_ref().map(|moments| MomentsPlace {
            folder: &moments.folder,
            session: &moments.session,
        }),
    };
    let tell = governor.tell;
    let is_stopped = || governor.ends_the_round();
    let mut step = 0;
    let outcome = local.round(&local_round, &is_stopped, &mut |event| match event {
        TrainingEvent::Step(report) => {
            step += 1;
            let report = Box::new(report);
            tell(VolunteerEvent::Step {
                step,
                steps,
                report,
            });
        }
        TrainingEvent::Log { level, line } => tell(VolunteerEvent::Log { level, line }),
        TrainingEvent::Started(_) | TrainingEvent::CheckpointSaved(_) => {}
    });
    if matches!(outcome, Ok(LocalOutcome::Stopped)) && governor.gate.closed().is_some() {
        trainee.local = None;
    }
    outcome
}

/// What is trained on; that of the round before, where it is the same.
fn data(work: &Work, trainee: &mut Trainee) -> Result<LocalData, EngineError> {
    let stamp =
        Stamp::of(&work.shard).map_err(|error| EngineError::io("read", &work.shard, error))?;
    let key = DataKey {
        shard: work.shard.clone(),
        stamp,
        sequence_length: work.config.max_length,
        part: work.part,
    };
    match &trainee.data {
        Some((known, data)) if *known == key => return Ok(data.clone()),
        _ => {}
    }
    let data = read_data(work, &trainee.files)?;
    trainee.data = Some((key, data.clone()));
    Ok(data)
}

fn read_data(work: &Work, files: &ModelFiles) -> Result<LocalData, EngineError> {
    let has_labels = || {
        Ok::<_, EngineError>(
            SafetensorsFile::open(&work.shard)?
                .shape("etiket")
                .is_some(),
        )
    };
    if work.task.mode == Some(Mode::Sft) && !has_labels()? {
        return Err(EngineError::InvalidData(
            "mod is sft, and the shard has no etiket: loss would fall on every token".to_owned(),
        ));
    }
    let data = LocalData::of_shard(&work.shard, files, work.config.max_length)?;
    match work.part {
        Some(part) => data.part(part),
        None => Ok(data),
    }
}

/// The owner's limits are looked at so often where rows are packed.
const ASKED_EVERY: Duration = Duration::from_millis(50);

/// Keeps to the owner's limits between two micro-batches.
pub(super) struct Governor<'a> {
    gate: &'a Gate,
    stop: &'a StopSignal,
    overtaken: Overtaken,
    tell: &'a (dyn Fn(VolunteerEvent) + Sync),
    /// When the work began that is not rested from yet. Held while it rests, so that all threads rest together.
    work_began: Mutex<Instant>,
}

impl<'a> Governor<'a> {
    pub(super) fn new(
        gate: &'a Gate,
        stop: &'a StopSignal,
        overtaken: Overtaken,
        tell: &'a (dyn Fn(VolunteerEvent) + Sync),
    ) -> Self {
        Self {
            gate,
            stop,
            overtaken,
            tell,
            work_began: Mutex::new(Instant::now()),
        }
    }

    /// Rests as the limits ask, and says whether the round is given up.
    pub(super) fn ends_the_round(&self) -> bool {
        self.rest_and_look(&mut self.work_began())
    }

    /// The same for work on several threads that ask all the time: the limits are looked at now and then.
    pub(super) fn ends_the_packing(&self) -> bool {
        let mut work_began = self.work_began();
        match work_began.elapsed() < ASKED_EVERY {
            true => self.is_in_vain(),
            false => self.rest_and_look(&mut work_began),
        }
    }

    fn work_began(&self) -> MutexGuard<'_, Instant> {
        self.work_began
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn rest_and_look(&self, work_began: &mut Instant) -> bool {
        self.rest(self.gate.cpu_share().rest_after(work_began.elapsed()));
        let waited_from = Instant::now();
        let mut told: Option<WaitReason> = None;
        while let Some(reason) = self.gate.closed() {
            if told.as_ref() != Some(&reason) {
                told = Some(reason.clone());
                (self.tell)(VolunteerEvent::Waiting {
                    reason,
                    delay: None,
                });
            }
            if self.is_in_vain() || waited_from.elapsed() > PATIENCE {
                return true;
            }
            thread::sleep(LOOK_EVERY);
        }
        if told.is_some() {
            (self.tell)(VolunteerEvent::GoesOn);
        }
        *work_began = Instant::now();
        self.is_in_vain()
    }

    fn is_in_vain(&self) -> bool {
        self.stop.is_set() || self.overtaken.is_set()
    }

    fn rest(&self, duration: Duration) {
        let end = Instant::now() + duration;
        while !self.is_in_vain() {
            match end.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => thread::sleep(left.min(LOOK_EVERY)),
                _ => return,
            }
        }
    }
}
