//! The volunteer's way through a session, from `/bilgi` to `bitti`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::StatusCode;
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;
use trainyard_privacy::epsilon;
use trainyard_shared::coordinator::{Finished, Mode, Task, TaskReply};

use super::client::{Client, Submitted, Trouble};
use super::error::VolunteerError;
use super::event::{VolunteerEvent, WaitReason};
use super::info::SessionInfo;
use super::limits::Gate;
use super::local_data;
use super::state::{KeptResult, Session};
use super::training::{self, Governor, Trainee, Work};
use super::{OwnPart, VolunteerConfig};
use crate::connection::backoff::Backoff;
use crate::engine::EngineError;
use crate::engine::trainer::LogLevel;
use crate::engine::trainer::local::{LocalOutcome, LocalResult, Part};
use crate::files::is_digest;
use crate::tasks::StopSignal;

/// So many results in a row that are refused, or that came to nothing, end the volunteer.
const FAILURES_IN_A_ROW: u32 = 3;
/// The delta that epsilon is told for.
const DELTA: f64 = 1e-5;
/// How often is looked whether the owner's limits let it go on.
const LOOK_EVERY: Duration = Duration::from_millis(500);

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
    let delays = (config.first_delay, config.longest_delay);
    let client = Client::new(
        &config.coordinator,
        &config.name,
        config.key.as_ref(),
        delays,
    )?;
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
        results: None,
    };
    volunteer.has_had_a_task = volunteer.session.was_used();
    volunteer.run().await
}

pub(super) struct Volunteer<'a> {
    pub(super) config: &'a VolunteerConfig,
    client: Client,
    session: Session,
    gate: Arc<Gate>,
    stop: &'a StopSignal,
    tell: UnboundedSender<VolunteerEvent>,
    /// Between questions while the round is open.
    polls: Backoff,
    /// Between tries while something fails.
    faults: Backoff,
    /// None before it has joined.
    pub(super) info: Option<SessionInfo>,
    pub(super) model_name: String,
    /// None before the first round.
    pub(super) trainee: Option<Trainee>,
    /// Whether the coordinator was there before, now or in an earlier run.
    has_had_a_task: bool,
    newest_round: Option<u64>,
    /// The round and weights from which nothing more can come: the same would be trained again.
    spent: Option<(u64, String)>,
    /// Whether the base model was in memory once.
    has_loaded: bool,
    /// Rounds in a row that came to nothing.
    failures: u32,
    /// Results that may have been sent so far.
    results: Option<u64>,
}

impl Volunteer<'_> {
    async fn run(mut self) -> Result<(), VolunteerError> {
        self.join().await?;
        loop {
            self.wait_until_allowed().await?;
            match self.task().await? {
                TaskReply::Finished(Finished { finished: true }) => {
                    self.session.drop_result()?;
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
                    self.round(task).await?;
                }
            }
        }
    }

    /// Learns what is trained.
    async fn join(&mut self) -> Result<(), VolunteerError> {
        let answer = loop {
            match self.until_stopped(self.client.info()).await? {
                Ok(answer) => break answer.unwrap_or_default(),
                Err(trouble) => self.after(trouble).await?,
            }
        };
        self.take_up(&answer)
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
                .rest(WaitReason::RoundOpen { round: task.round }, delay)
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
        self.tell_epsilon(kept.round);
        self.tell(VolunteerEvent::Trained {
            round: kept.round,
            loss: result.loss,
            size_bytes: kept.size_bytes,
            sha256: kept.sha256.clone(),
        });
        self.deliver(&kept).await
    }

    /// Says what the results together tell of the data. Earlier runs may have sent one in every round before.
    fn tell_epsilon(&mut self, round: u64) {
        let Some(mechanism) = &self.config.mechanism else {
            return;
        };
        let results = *self.results.get_or_insert(round) + 1;
        self.results = Some(results);
        let epsilon = epsilon(mechanism.noise_multiplier(), results, DELTA);
        self.tell(VolunteerEvent::Log {
            level: LogLevel::Info,
            line: format!(
                "differential privacy: epsilon is at most {epsilon:.2} after this result, for a delta of {DELTA}"
            ),
        });
    }

    /// Sends a result once; what may pass brings it back at the next answer with the same task.
    async fn deliver(&mut self, kept: &KeptResult) -> Result<(), VolunteerError> {
        let (round, path) = (kept.round, self.session.result());
        let submitted = self.until_stopped(self.client.submit(kept, &path)).await?;
        let reason = match submitted {
            Ok(Submitted::Taken) => {
                self.failures = 0;
                self.faults.reset();
                self.session.drop_result()?;
                self.tell(VolunteerEvent::Delivered { round });
                return Ok(());
            }
            Ok(Submitted::TooLate(reason)) => reason,
            Ok(Submitted::Invalid(reason)) => {
                self.failures += 1;
                if self.failures >= FAILURES_IN_A_ROW {
                    return Err(VolunteerError::Refused {
                        times: self.failures,
                        last: reason,
                    });
                }
                reason
            }
            Err(trouble) => return self.after(trouble).await,
        };
        self.session.drop_result()?;
        self.spent = Some((round, kept.weights_sha256.clone()));
        self.tell(VolunteerEvent::NotTaken { round, reason });
        let delay = self.polls.next_delay(rand::random());
        self.rest(WaitReason::RoundOpen { round }, delay).await
    }

    /// The shard to train on, with the part of it.
    async fn data(
        &mut self,
        task: &Task,
    ) -> Result<Result<(PathBuf, Option<Part>), Trouble>, VolunteerError> {
        if let Some(digest) = &task.data_sha256 {
            let path = self.session.shard(digest);
            if !self.has(&path, digest).await? {
                let fetched = self.client.shard(task, digest, &path);
                if let Err(trouble) = self.until_stopped(fetched).await? {
                    return Ok(Err(trouble));
                }
            }
            return Ok(Ok((path, None)));
        }
        let Some(own) = &self.config.data else {
            return Err(VolunteerError::Arguments(
                "the coordinator serves no data: give your own with --veri FILE".to_owned(),
            ));
        };
        let part = match own.part {
            OwnPart::Whole => None,
            OwnPart::ByTask => Some(Part {
                index: task.shard,
                count: task.shards,
            }),
        };
        let mode = task.mode.unwrap_or(Mode::Cpt);
        let trainee = self.trainee.take().expect("it is there before the data");
        let (file, folder) = (own.file.clone(), self.session.folder().to_owned());
        let (gate, stop, tell) = (self.gate.clone(), self.stop.clone(), self.tell.clone());
        // Apart from this thread, on which signals are waited for.
        let (trainee, packed) = blocking(move || {
            let tell = |event| drop(tell.send(event));
            let governor = Governor::new(&gate, &stop, &tell);
            let packed = local_data::shard(&file, mode, &trainee.files, &folder, &|| {
                governor.ends_the_round()
            });
            (trainee, packed)
        })
        .await?;
        self.trainee = Some(trainee);
        match packed {
            Ok(path) => Ok(Ok((path, part))),
            Err(VolunteerError::Stopped { .. }) if !self.stop.is_set() => {
                let reason = "packing was given up while nothing might be done".to_owned();
                Ok(Err(Trouble::OtherContent(reason)))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the file at `path` is there and has this digest.
    async fn has(&self, path: &Path, sha256: &str) -> Result<bool, VolunteerError> {
        let (path, sha256) = (path.to_owned(), sha256.to_owned());
        self.until_stopped(blocking(move || Session::has(&path, &sha256)))
            .await?
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
            optimizer: self.config.keep_optimizer.then(|| self.session.optimizer()),
            mechanism: self.config.mechanism,
        };
        let (gate, stop, tell) = (self.gate.clone(), self.stop.clone(), self.tell.clone());
        let (trainee, outcome) = blocking(move || {
            // Nobody listens any more only where the program ends.
            let tell = |event| drop(tell.send(event));
            let outcome = training::train(&mut trainee, &work, &gate, &stop, &tell);
            (trainee, outcome)
        })
        .await?;
        self.has_loaded |= trainee.local.is_some();
        self.trainee = Some(trainee);
        match outcome {
            Ok(LocalOutcome::Trained(result)) => Ok(Some(result)),
            Ok(LocalOutcome::Stopped) if self.stop.is_set() => Err(self.stopped()),
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

    /// Waits after what may pass; ends with what does not.
    async fn after(&mut self, trouble: Trouble) -> Result<(), VolunteerError> {
        match trouble {
            Trouble::Passing {
                reason,
                retry_after,
            } => self.rest_after_fault(reason, retry_after).await,
            Trouble::OtherContent(reason) => self.rest_after_fault(reason, None).await,
            Trouble::Refused { status, answer } => match status {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    let hint = match self.config.key {
                        Some(_) => "the coordinator does not take the key",
                        None => "the coordinator asks for a key: give it with --anahtar",
                    };
                    Err(VolunteerError::Arguments(format!("{hint} ({answer})")))
                }
                StatusCode::BAD_REQUEST => Err(VolunteerError::Arguments(format!(
                    "the coordinator does not take this request ({answer})"
                ))),
                // It was there before: it is being started again, or something in front of it is.
                _ if self.has_had_a_task => self.rest_after_fault(answer, None).await,
                _ => Err(VolunteerError::Arguments(format!(
                    "there is no session at {} ({answer})",
                    self.config.coordinator
                ))),
            },
            Trouble::Redirected(reason) => Err(VolunteerError::Arguments(reason)),
            Trouble::Disk(error) => Err(VolunteerError::Disk(error)),
        }
    }

    async fn rest_after_fault(
        &mut self,
        reason: String,
        retry_after: Option<Duration>,
    ) -> Result<(), VolunteerError> {
        let longest = self.config.longest_delay;
        let asked = retry_after
            .unwrap_or_default()
            .min(longest.max(LONGEST_ASKED));
        let delay = self.faults.next_delay(rand::random()).max(asked);
        self.rest(WaitReason::Fault(reason), delay).await
    }

    async fn rest(&self, reason: WaitReason, delay: Duration) -> Result<(), VolunteerError> {
        let delay_told = Some(delay);
        self.tell(VolunteerEvent::Waiting {
            reason,
            delay: delay_told,
        });
        self.until_stopped(tokio::time::sleep(delay)).await
    }

    /// Waits while the owner's limits say so; the base model's memory is given back meanwhile.
    async fn wait_until_allowed(&mut self) -> Result<(), VolunteerError> {
        let mut told: Option<WaitReason> = None;
        while let Some(reason) = self.gate.closed() {
            if let Some(trainee) = &mut self.trainee {
                trainee.local = None;
            }
            if told.as_ref() != Some(&reason) {
                told = Some(reason.clone());
                self.tell(VolunteerEvent::Waiting {
                    reason,
                    delay: None,
                });
            }
            self.until_stopped(tokio::time::sleep(LOOK_EVERY)).await?;
        }
        Ok(())
    }

    pub(super) async fn until_stopped<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> Result<T, VolunteerError> {
        tokio::select! {
            done = work => Ok(done),
            _ = self.stop.stopped() => Err(self.stopped()),
        }
    }

    fn stopped(&self) -> VolunteerError {
        VolunteerError::Stopped {
            kept: self.session.kept().is_some(),
        }
    }

    pub(super) fn tell(&self, event: VolunteerEvent) {
        // Nobody listens any more only where the program ends.
        let _ = self.tell.send(event);
    }
}

/// Runs work that takes its time apart from the runtime's own thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, VolunteerError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| VolunteerError::NotPossible(format!("the work broke off: {error}")))
}

/// A coordinator is waited for as long as it asks, up to this.
const LONGEST_ASKED: Duration = Duration::from_secs(3600);
