//! Taking part in one federated session, from `start_federated_training` until it is over.
//!
//! 1. Orders come as long as the session lasts; [`Plan`] says what is to be done next. A newer round breaks off
//!    what is under way for an older one.
//! 2. Base model and data set are found or fetched once. Weights are fetched for each round and checked by their
//!    digest; then `weights_loaded` is said.
//! 3. A round is trained on a thread of its own ([`rounds`]). Its result goes into the outbox with the message
//!    that names it; that is what a restart of the worker goes on from.
//!    Where the session asks for differential privacy, the result is clipped and blurred before, and its loss not said.
//!    With secure aggregation the result stays here, which is said, until it can be masked ([`masking`]); only what is
//!    masked is sent.
//! 4. A round that fails is told with `federated_failed`; the platform names it again, or goes on without it.
//! 5. A stop ends all of it at once and without a word.

mod keeping;
mod masking;
mod plan;
mod rounds;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use trainyard_privacy::GaussianMechanism;
use trainyard_shared::FailureKind;
use trainyard_shared::ids::{FederatedSessionId, MessageId};
use trainyard_shared::message::{
    FederatedFailed, FederatedFailedData, FromWorker, GlobalWeights, StartFederatedTraining,
    StartFederatedTrainingData, WeightsLoaded, WeightsLoadedData,
};
use trainyard_shared::training::LocalConfig;

use super::dataset::fetch_dataset;
use super::failure::Failure;
use super::transfers::{Download, TransferError};
use super::{StopReason, StopSignal, TaskContext};
use crate::connection::{Activity, Reports};
use crate::files::{WrittenFile, delete_unfinished};
use masking::{Answer, Held, MaskWork, Masker};
use plan::{Plan, Step};
use rounds::{RoundResult, RoundWork, Rounds, Setup};

pub use masking::SumOrder;
pub(crate) use masking::failed_message;
pub use plan::Order;

/// Folder of sessions in the state directory.
const SESSIONS: &str = "federated";
/// How the names of results begin.
const RESULT: &str = "result-";
/// The same of masked ones.
const MASKED: &str = "masked-";
/// How the names of those files begin that tell of which round of a session this worker has helped to read a sum. They
/// outlast the session's folder: the worker may leave the session and be given to it again.
const REVEALED: &str = "revealed-";
/// No round is open for so long.
const LONGEST_ROUND: Duration = Duration::from_secs(60 * 24 * 3600);

/// Takes part in a session until it is stopped.
pub(super) async fn run_session(
    start: StartFederatedTraining,
    context: TaskContext,
    mut orders: UnboundedReceiver<Order>,
    stop: StopSignal,
) {
    let id = start.session_id;
    let sessions = context.state_dir.join(SESSIONS);
    let folder = sessions.join(format!("session-{id}"));
    // A worker takes part in one session at a time: others are left over.
    delete_others(&sessions, "session-", &folder);
    // What was kept to be masked belongs to secrets that are gone.
    delete_others(&folder, RESULT, Path::new(""));
    delete_others(&folder, MASKED, Path::new(""));
    // What was being written when the worker was killed.
    delete_unfinished(&folder);
    forget_revealed(&sessions);
    let masker = masker_of(&start.data, id, &sessions);
    let settled = context.reports.undelivered_rounds(id).into_iter().max();
    let mut session = Session {
        part: Part {
            id,
            data: Arc::new(start.data.clone()),
            folder,
            context,
        },
        plan: Plan::new(settled),
        rounds: None,
        held: None,
        masker,
        stop,
    };
    session.take(Order::Start(Box::new(start)));
    while session.goes_on(&mut orders).await {}
    if session.stop.reason() != Some(StopReason::Shutdown) {
        session.part.clean_up();
    }
}

/// Says that this worker has no result for a round.
pub(super) fn report_failed(
    session_id: FederatedSessionId,
    round: Option<u64>,
    failure: Failure,
    reports: &Reports,
) {
    let (error, kind) = (failure.message, failure.kind);
    tracing::warn!(session.id = %session_id, round, reason = error, "no result for a federated session");
    reports.keep_or_send(FromWorker::FederatedFailed(FederatedFailed {
        worker_id: None,
        session_id,
        message_id: Some(MessageId::random()),
        data: FederatedFailedData {
            round,
            error,
            failure_kind: Some(kind),
        },
    }));
}

/// A session under way.
struct Session {
    part: Part,
    plan: Plan,
    /// The model and the data, once they are here.
    rounds: Option<Rounds>,
    /// A result that is kept until it can be masked.
    held: Option<Held>,
    /// With secure aggregation: this worker's part in sums.
    masker: Option<Masker>,
    stop: StopSignal,
}

fn masker_of(
    data: &StartFederatedTrainingData,
    id: FederatedSessionId,
    sessions: &Path,
) -> Option<Masker> {
    let asked = data.privacy.as_ref()?.secure_aggregation.as_ref()?;
    let revealed = sessions.join(format!("{REVEALED}{id}"));
    Some(Masker::new(id, asked.threshold, revealed))
}

/// Deletes what was noted of rounds that are over for long.
fn forget_revealed(sessions: &Path) {
    let Ok(entries) = fs::read_dir(sessions) else {
        return;
    };
    for entry in entries.flatten() {
        let is_one = entry.file_name().to_string_lossy().starts_with(REVEALED);
        let written = entry.metadata().and_then(|metadata| metadata.modified());
        let age = written.ok().and_then(|written| written.elapsed().ok());
        if is_one && age.is_some_and(|age| age > LONGEST_ROUND) {
            // Tried again with the next session.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// What the work at a step needs to know. Cheap to clone.
#[derive(Clone)]
struct Part {
    id: FederatedSessionId,
    /// As it was told last.
    data: Arc<StartFederatedTrainingData>,
    /// The session's own.
    folder: PathBuf,
    context: TaskContext,
}

/// What a step came to.
enum Outcome {
    /// The weights are here.
    Fetched,
    /// The round is trained.
    Trained(RoundResult),
    /// The result is masked.
    Masked(Arc<MaskWork>, WrittenFile),
    /// It was told to end.
    BrokenOff,
}

impl Session {
    fn take(&mut self, order: Order) {
        let mut asked = None;
        match order {
            Order::OfSum(order) => return self.take_part(order),
            Order::Start(ref start) => {
                // Addresses in it are fresh; all else is the same for the whole session.
                self.part.data = Arc::new(start.data.clone());
                asked = Some(start.data.round);
            }
            Order::Load(_) | Order::Continue(_) => {}
        }
        let (id, reports) = (self.part.id, self.part.context.reports.clone());
        let held = self.held.as_ref().map(|held| held.round);
        let is_undelivered =
            move |round| held == Some(round) || reports.undelivered_rounds(id).contains(&round);
        self.plan.take(order, is_undelivered);
        // It does not know that the result is here.
        if let Some(held) = self.held.as_ref().filter(|held| Some(held.round) == asked) {
            self.part.tell_trained(held);
        }
    }

    /// Takes part in the sum of a round's results.
    fn take_part(&mut self, order: SumOrder) {
        let (round, attempt) = order.place();
        let reports = &self.part.context.reports;
        let answer = match &mut self.masker {
            Some(masker) => masker.take(order, self.held.as_ref()),
            None => {
                let error = "this session is not one with secure aggregation".to_owned();
                let failed = failed_message(self.part.id, (round, attempt), error, None);
                Answer::Say(Box::new(failed))
            }
        };
        match answer {
            Answer::Say(message) => reports.send(*message),
            Answer::Mask(work) => {
                let is_on_its_way = reports.has_masked(self.part.id, work.held.round, attempt);
                if !is_on_its_way {
                    self.plan.mask(work);
                }
            }
            Answer::Nothing => {}
        }
    }

    /// Does the next step, or waits for an order; false once the session is over.
    async fn goes_on(&mut self, orders: &mut UnboundedReceiver<Order>) -> bool {
        let step = self.plan.next();
        self.part.tell_status(&step);
        let broken_off = StopSignal::default();
        let work = self
            .part
            .clone()
            .work(step.clone(), self.rounds.take(), broken_off.clone());
        tokio::pin!(work);
        let mut is_over = false;
        let (rounds, outcome) = loop {
            let order = tokio::select! {
                done = &mut work => break done,
                _ = self.stop.stopped(), if !is_over => None,
                order = orders.recv(), if !is_over => order,
            };
            match order {
                Some(order) => self.take(order),
                None => is_over = true,
            }
            if is_over || self.plan.next() != step {
                broken_off.stop(StopReason::Superseded);
            }
        };
        self.rounds = rounds;
        if let (Some(round), false) = (step.round(), is_over) {
            self.finish(&step, round, outcome);
        }
        !is_over
    }

    fn finish(&mut self, step: &Step, round: u64, outcome: Result<Outcome, Failure>) {
        match outcome {
            Ok(Outcome::Fetched) => {
                self.plan.loaded(round);
                self.forget_held();
                let reports = &self.part.context.reports;
                reports.send(FromWorker::WeightsLoaded(WeightsLoaded {
                    worker_id: None,
                    session_id: self.part.id,
                    data: WeightsLoadedData { round },
                }));
            }
            Ok(Outcome::Trained(result)) if self.masker.is_some() => {
                let held = self.part.hold(round, result);
                self.part.tell_trained(&held);
                self.held = Some(held);
                self.plan.settled(round);
            }
            Ok(Outcome::Trained(result)) => {
                let kept = self.part.keep(round, result);
                match kept {
                    Ok(()) => self.plan.settled(round),
                    Err(failure) => self.fail(round, failure),
                }
            }
            Ok(Outcome::Masked(work, file)) => {
                let kept = match self.plan.masked(&work) {
                    true => self.part.keep_masked(&work, file),
                    false => Ok(()),
                };
                self.part.forget_masked(&work);
                if let Err(failure) = kept {
                    self.fail_masking(round, work.attempt, failure);
                }
            }
            Ok(Outcome::BrokenOff) => {
                tracing::info!(session.id = %self.part.id, round, "a newer round takes the place of this one");
            }
            Err(failure) => match step {
                // The result or the weights that it came from may be damaged: it is trained anew.
                Step::Mask(work) => {
                    if self.plan.masked(work) {
                        self.forget_held();
                        self.fail(round, failure);
                    }
                }
                _ => self.fail(round, failure),
            },
        }
    }

    /// A round is over: its result is of no use any more.
    fn forget_held(&mut self) {
        if let Some(held) = self.held.take() {
            // What stays is deleted with the session.
            let _ = fs::remove_file(held.file);
        }
    }

    /// The result stays as good as it was.
    fn fail_masking(&self, round: u64, attempt: u64, failure: Failure) {
        let failed = failed_message(self.part.id, (round, attempt), failure.message, None);
        self.part.context.reports.send(failed);
    }

    fn fail(&mut self, round: u64, failure: Failure) {
        self.plan.failed(round);
        report_failed(
            self.part.id,
            Some(round),
            failure,
            &self.part.context.reports,
        );
    }
}

impl Part {
    /// Works at a step until it is done or broken off. The rounds are given back in any case.
    async fn work(
        self,
        step: Step,
        rounds: Option<Rounds>,
        broken_off: StopSignal,
    ) -> (Option<Rounds>, Result<Outcome, Failure>) {
        match step {
            Step::Wait => {
                broken_off.stopped().await;
                (rounds, Ok(Outcome::BrokenOff))
            }
            Step::Fetch { round, weights } => {
                let fetched = tokio::select! {
                    fetched = self.fetch(round, &weights) => fetched.map(|()| Outcome::Fetched),
                    _ = broken_off.stopped() => Ok(Outcome::BrokenOff),
                };
                (rounds, fetched)
            }
            Step::Train { round, key, sha256 } => {
                let rounds = match rounds {
                    Some(rounds) => rounds,
                    None => {
                        let prepared = tokio::select! {
                            prepared = self.prepare() => prepared,
                            _ = broken_off.stopped() => return (None, Ok(Outcome::BrokenOff)),
                        };
                        match prepared {
                            Ok(setup) => Rounds::new(setup),
                            Err(failure) => return (None, Err(failure)),
                        }
                    }
                };
                let work = RoundWork {
                    round,
                    key,
                    weights: self.weights_file(round),
                    sha256,
                    result: self.folder.join(format!("{RESULT}{round}.safetensors")),
                    teller: Box::new(self.teller(round)),
                };
                rounds.train(work, broken_off).await
            }
            Step::Mask(work) => (rounds, self.mask(work, broken_off).await),
        }
    }

    /// Fetches the weights that begin a round, and forgets those of other rounds.
    async fn fetch(&self, round: u64, weights: &GlobalWeights) -> Result<(), Failure> {
        let file = self.weights_file(round);
        let create = |source| TransferError::io("create", &self.folder, source);
        fs::create_dir_all(&self.folder).map_err(create)?;
        let name = format!("weights of round {round}");
        let download = Download {
            name: &name,
            url: weights.download_url.clone(),
            bearer: None,
            size_bytes: Some(weights.size_bytes),
            sha256: Some(&weights.sha256),
            digest_header: None,
            max_bytes: Some(weights.size_bytes),
            destination: &file,
        };
        let http = self.context.files.http();
        http.download(&download, async || Ok(None), |_| {}).await?;
        delete_others(&self.folder, "weights-", &file);
        Ok(())
    }

    /// Finds or fetches base model and data set.
    async fn prepare(&self) -> Result<Setup, Failure> {
        let config = LocalConfig::parse(&self.data.config)
            .map_err(|problems| Failure::from_problems(&problems))?;
        let source = &self.data.dataset;
        let dataset = fetch_dataset(source, &self.context, &self.folder, async || Ok(None)).await?;
        let model = self
            .context
            .models
            .find(&self.data.base_model, |_| {})
            .await?;
        Ok(Setup {
            session: self.id,
            base_model: self.data.base_model.huggingface_id.clone(),
            model,
            dataset,
            max_bad_rows: source.max_bad_rows.unwrap_or(0),
            token_cache: self.context.token_cache(),
            shard: self.data.shard.clone(),
            total_rounds: self.data.total_rounds,
            optimizer: self.folder.join("optimizer"),
            mechanism: self.mechanism()?,
            config,
        })
    }

    /// What is done to results before they are sent.
    fn mechanism(&self) -> Result<Option<GaussianMechanism>, Failure> {
        let privacy = self.data.privacy.as_ref();
        let asked = privacy.and_then(|privacy| privacy.differential_privacy.as_ref());
        asked
            .map(|asked| GaussianMechanism::new(asked.clip_norm, asked.noise_multiplier))
            .transpose()
            .map_err(|error| {
                let text = format!("privacy.differential_privacy: {error}");
                Failure::new(FailureKind::BadConfig, text)
            })
    }

    fn weights_file(&self, round: u64) -> PathBuf {
        self.folder.join(format!("weights-{round}.safetensors"))
    }

    fn tell_status(&self, step: &Step) {
        let total = self.data.total_rounds;
        let id = self.id;
        self.tell(match step {
            Step::Fetch { round, .. } => {
                format!("Session {id}, round {round}/{total}: fetching the weights")
            }
            Step::Train { round, .. } => format!("Session {id}, round {round}/{total}: preparing"),
            Step::Mask(work) => {
                format!("Session {id}, round {}/{total}: masking", work.held.round)
            }
            Step::Wait => format!("Session {id}: waiting for the next round"),
        });
    }

    fn teller(&self, round: u64) -> impl FnMut(u64, u64) + Send + 'static {
        let (part, total) = (self.clone(), self.data.total_rounds);
        move |step, steps| {
            let id = part.id;
            part.tell(format!(
                "Session {id}, round {round}/{total}, step {step}/{steps}"
            ));
        }
    }

    fn tell(&self, message: String) {
        let change = |activity: &mut Activity| activity.status_message = Some(message);
        self.context.reports.change_activity(change);
    }

    /// What a session leaves behind when it is over.
    fn clean_up(&self) {
        if let Err(error) = fs::remove_dir_all(&self.folder)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(folder = %self.folder.display(), %error, "the session's folder cannot be deleted");
        }
    }
}

/// Deletes what lies in `folder` under names that begin so, but one.
fn delete_others(folder: &Path, beginning: &str, kept: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path == kept || !entry.file_name().to_string_lossy().starts_with(beginning) {
            continue;
        }
        let deleted = match path.is_dir() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        if let Err(error) = deleted {
            tracing::warn!(path = %path.display(), %error, "what a session left cannot be deleted");
        }
    }
}
