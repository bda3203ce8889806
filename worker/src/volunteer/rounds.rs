//! The volunteer's way through a session, from `/bilgi` to `bitti`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;
use trainyard_shared::coordinator::{Finished, Task, TaskReply};

use super::VolunteerConfig;
use super::client::Client;
use super::digests::Digests;
use super::error::VolunteerError;
use super::event::{VolunteerEvent, WaitReason};
use super::info::SessionInfo;
use super::limits::Gate;
use super::state::{KeptResult, Session};
use super::training::{self, Governor, Moments, Trainee, Work};
use super::waiting::blocking;
use super::watch::Overtaken;
use crate::connection::backoff::Backoff;
use crate::engine::EngineError;
use crate::engine::trainer::LogLevel;
use crate::engine::trainer::local::{LocalOutcome, LocalResult, Part};
use crate::files::is_digest;
use crate::tasks::StopSignal;
use crate::tasks::transfers::check_room;

/// So many results in a row that are refused, or that came to nothing, end the volunteer.
pub(super) const FAILURES_IN_A_ROW: u32 = 3;

/// Volunteers until the coordinator says that training is finished. `tell` is told what happens.
///
/// # Errors
/// What a person must put right, or that `stop` was set.
pub async fn run(
    config: &VolunteerConfig,
    stop: &StopSignal,
    tell: UnboundedSender<VolunteerEvent>,
) -> Result<(), VolunteerError> {
    let session = Session::open(config)?;
    let client = Client::new(config)?;
    let mut volunteer = Volunteer {
        config,
        client,
        session,
        gate: Arc::new(Gate::new(&config.limits)),
        stop,
        tell,
        polls: Backoff::new(config.first_delay, config.longest_delay),
        faults: Backoff::new(config.first_delay, config.longest_delay),
        info: None,
        model_name: String::new(),
        trainee: None,
        has_had_a_task: false,
        newest_round: None,
        spent: None,
        has_loaded: false,
        failures: 0,
        late: 0,
        digests: Digests::default(),
    };
    volunteer.has_had_a_task = volunteer.session.was_used();
    volunteer.run().await
}

pub(super) struct Volunteer<'a> {
    pub(super) config: &'a VolunteerConfig,
    pub(super) client: Client,
    pub(super) session: Session,
    pub(super) gate: Arc<Gate>,
    pub(super) stop: &'a StopSignal,
    pub(super) tell: UnboundedSender<VolunteerEvent>,
    /// Between questions while the round is open.
    pub(super) polls: Backoff,
    /// Between tries while something fails.
    pub(super) faults: Backoff,
    /// None before it has joined.
    pub(super) info: Option<SessionInfo>,
    pub(super) model_name: String,
    /// None before the first round.
    pub(super) trainee: Option<Trainee>,
    /// Whether the coordinator was there before, now or in an earlier run.
    pub(super) has_had_a_task: bool,
    newest_round: Option<u64>,
    /// The round and weights from which nothing more can come: the same would be trained again.
    pub(super) spent: Option<(u64, String)>,
    /// Whether the base model was in memory once.
    has_loaded: bool,
    /// Rounds in a row that came to nothing.
    pub(super) failures: u32,
    /// Rounds in a row that were over before this volunteer was done.
    pub(super) late: u32,
    /// Of the files that are there.
    pub(super) digests: Digests,
}

impl Volunteer<'_> {
    async fn run(mut self) -> Result<(), VolunteerError> {
        self.join().await?;
        self.tell_privacy();
        loop {
            self.wait_until_allowed().await?;
            match self.task().await? {
                TaskReply::Finished(Finished { finished: true }) => {
                    self.session.end()?;
                    self.tell(VolunteerEvent::Finished);
                    return Ok(());
                }
                TaskReply::Finished(_) => {
                    let reason = "the coordinator has neither a task nor an end".to_owned();
                    self.rest_after_fault(reason, None).await?;
                }
                TaskReply::Wait(wait) => {
                    // This worker's result is in, however that was learned.
                    self.session.drop_result()?;
                    self.faults.reset();
                    let delay = self.polls.next_delay(rand::random());
                    let reason = WaitReason::RoundOpen { round: wait.round };
                    self.rest(reason, delay).await?;
                }
                TaskReply::Task(task) => {
                    self.has_had_a_task = true;
                    if self.newest_round.replace(task.round) != Some(task.round) {
                        self.polls.reset();
                    }
                    match self.round(task).await {
                        Err(error) if error.may_pass() => {
                            self.rest_after_fault(error.to_string(), None).await?;
                        }
                        done => done?,
                    }
                }
            }
        }
    }

    /// Learns what is trained.
    async fn join(&mut self) -> Result<(), VolunteerError> {
        let answer = loop {
            match self.until_stopped(self.client.info()).await? {
                Ok(answer) => break answer,
                Err(trouble) => self.after(trouble).await?,
            }
        };
        if answer.is_none() {
            // There may be no such page, or no session at all: then that is said, and not what else is missing.
            self.task().await?;
        }
        self.take_up(&answer.unwrap_or_default())
    }

    /// Takes up what the coordinator says of its session, which may be another one than before.
    fn take_up(&mut self, answer: &Value) -> Result<(), VolunteerError> {
        let info = SessionInfo::of(answer).map_err(VolunteerError::NotPossible)?;
        if self.info.as_ref() == Some(&info) {
            return Ok(());
        }
        let named = self.config.model.clone().or_else(|| info.model.clone());
        self.model_name = named.ok_or_else(|| {
            VolunteerError::Arguments(
                "the coordinator does not say which base model is trained: name it with --model"
                    .to_owned(),
            )
        })?;
        if let (Some(own), Some(named)) = (&self.config.model, &info.model)
            && own != named
        {
            self.tell(VolunteerEvent::Log {
                level: LogLevel::Warning,
                line: format!(
                    "the coordinator names {named} as the base model; trained is what --model says: {own}"
                ),
            });
        }
        self.tell(VolunteerEvent::Joined {
            session: info.name.clone(),
            model: self.model_name.clone(),
        });
        self.trainee = None;
        self.info = Some(info);
        Ok(())
    }

    /// Asks for a task until there is an answer.
    async fn task(&mut self) -> Result<TaskReply, VolunteerError> {
        loop {
            match self.until_stopped(self.client.task()).await? {
                Ok(reply) => return Ok(reply),
                Err(trouble) => self.after(trouble).await?,
            }
        }
    }

    /// One round: what was trained is delivered, or what is to be trained is.
    async fn round(&mut self, mut task: Task) -> Result<(), VolunteerError> {
        task.weights_sha256.make_ascii_lowercase();
        if let Some(digest) = &mut task.data_sha256 {
            digest.make_ascii_lowercase();
        }
        let kept = self.session.kept();
        if let Some(kept) = kept.filter(|kept| kept.is_of(&task)) {
            return self.deliver(&kept).await;
        }
        self.session.drop_result()?;
        if !is_digest(&task.weights_sha256)
            || task
                .data_sha256
                .as_deref()
                .is_some_and(|digest| !is_digest(digest))
        {
            return Err(VolunteerError::NotPossible(
                "the task's digests are no SHA-256 in hexadecimal".to_owned(),
            ));
        }
        if self.spent.as_ref() == Some(&(task.round, task.weights_sha256.clone())) {
            let delay = self.polls.next_delay(rand::random());
            return self
                .rest(WaitReason::RoundOver { round: task.round }, delay)
                .await;
        }
        // Behind the same address there may be another session by now.
        match self.until_stopped(self.client.info()).await? {
            Ok(answer) => self.take_up(&answer.unwrap_or_default())?,
            Err(trouble) => return self.after(trouble).await,
        }
        self.session.sweep(&task)?;
        let is_told = self
            .info
            .as_ref()
            .is_some_and(|info| info.adapter.is_complete());
        if self.trainee.is_none() && is_told {
            self.trainee = Some(self.trainee(&task, None).await?);
        }
        let weights = self.session.weights(&task.weights_sha256);
        if !self.has(&weights, &task.weights_sha256).await? {
            let most = self.most_weight_bytes();
            let fetched = self.client.weights(&task, most, &weights);
            if let Err(trouble) = self.until_stopped(fetched).await? {
                return self.after(trouble).await;
            }
        }
        if self.trainee.is_none() {
            self.trainee = Some(self.trainee(&task, Some(&weights)).await?);
        }
        let (shard, part) = match self.data(&task).await? {
            Ok(data) => data,
            Err(trouble) => return self.after(trouble).await,
        };
        let Some(result) = self.train(&task, weights, shard, part).await? else {
            return Ok(());
        };
        let kept = KeptResult {
            round: task.round,
            weights_sha256: task.weights_sha256,
            sha256: result.file.sha256,
            size_bytes: result.file.size_bytes,
        };
        self.session.keep(&kept)?;
        self.faults.reset();
        self.count_private_result()?;
        self.tell(VolunteerEvent::Trained {
            round: kept.round,
            loss: result.loss,
            size_bytes: kept.size_bytes,
            sha256: kept.sha256.clone(),
        });
        self.deliver(&kept).await
    }

    /// Trains; gives none where the round came to nothing.
    async fn train(
        &mut self,
        task: &Task,
        weights: PathBuf,
        shard: PathBuf,
        part: Option<Part>,
    ) -> Result<Option<LocalResult>, VolunteerError> {
        let mut trainee = self.trainee.take().expect("it is there between rounds");
        let config =
            training::config_of(task, &trainee.adapter).map_err(VolunteerError::NotPossible)?;
        self.check_room(&weights)?;
        let moments = match self.config.keep_optimizer {
            true => Some(Moments {
                folder: self.session.optimizer(),
                session: self.identity(task, &trainee)?,
            }),
            false => None,
        };
        self.tell(VolunteerEvent::RoundBegun {
            round: task.round,
            total_rounds: task.total_rounds,
            shard: task.shard,
            steps: task.local_steps,
        });
        let work = Work {
            config,
            task: task.clone(),
            weights,
            shard,
            part,
            output: self.session.result(),
            moments,
            mechanism: self.config.mechanism,
        };
        let (gate, stop, tell) = (self.gate.clone(), self.stop.clone(), self.tell.clone());
        let overtaken = Overtaken::default();
        let noticed = overtaken.clone();
        let work = blocking(move || {
            // Nobody listens any more only where the program ends.
            let tell = |event| drop(tell.send(event));
            let governor = Governor::new(&gate, &stop, noticed, &tell);
            let outcome = training::train(&mut trainee, &work, &governor);
            (trainee, outcome)
        });
        let (trainee, outcome) = self.watched(task, &overtaken, work).await?;
        self.has_loaded |= trainee.local.is_some();
        self.trainee = Some(trainee);
        match outcome {
            Ok(LocalOutcome::Trained(result)) => Ok(Some(result)),
            Ok(LocalOutcome::Stopped) if self.stop.is_set() => Err(self.stopped()),
            Ok(LocalOutcome::Stopped) if overtaken.is_set() => {
                let round = task.round;
                self.tell(VolunteerEvent::Overtaken { round });
                self.was_late();
                Ok(None)
            }
            Ok(LocalOutcome::Stopped) => Ok(None),
            Err(error @ EngineError::Diverged { .. }) if self.failures + 1 < FAILURES_IN_A_ROW => {
                self.failures += 1;
                self.spent = Some((task.round, task.weights_sha256.clone()));
                self.rest_after_fault(error.to_string(), None).await?;
                Ok(None)
            }
            // Memory that was there before will be there again.
            Err(error @ (EngineError::TooLarge(_) | EngineError::OutOfMemory { .. }))
                if self.has_loaded =>
            {
                self.rest_after_fault(error.to_string(), None).await?;
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// That what a round from these weights writes finds room.
    fn check_room(&self, weights: &Path) -> Result<(), VolunteerError> {
        let times = match self.config.keep_optimizer {
            // Two moments for each value, beside those of the round before.
            true => 5,
            false => 1,
        };
        let size_bytes = std::fs::metadata(weights).map_or(0, |metadata| metadata.len());
        let (result, kept_bytes) = (
            self.session.result(),
            self.config.limits.disk.keep_free_bytes,
        );
        check_room(
            "the round's result",
            &result,
            times * size_bytes,
            kept_bytes,
        )
        .map_err(VolunteerError::Disk)
    }

    /// What AdamW's moments belong to. Another session may be of the same shape, behind the same address.
    fn identity(&self, task: &Task, trainee: &Trainee) -> Result<String, VolunteerError> {
        let adapter = trainee.adapter.to_json(&trainee.files.config);
        let session = json!({
            "coordinator": self.config.coordinator.to_string(),
            "session": self.info.as_ref().and_then(|info| info.name.as_ref()),
            "model": self.model_name,
            "adapter": adapter.map_err(VolunteerError::NotPossible)?,
            "seed": task.seed,
            "total_rounds": task.total_rounds,
        });
        Ok(session.to_string())
    }

    pub(super) fn tell(&self, event: VolunteerEvent) {
        // Nobody listens any more only where the program ends.
        let _ = self.tell.send(event);
    }
}
