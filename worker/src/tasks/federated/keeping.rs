//! What becomes of a round's result: sent as it is, or kept until it is masked and only then sent.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use trainyard_shared::FailureKind;
use trainyard_shared::ids::MessageId;
use trainyard_shared::message::{
    ArtifactFile, FederatedUpdate, FederatedUpdateData, FromWorker, RoundTrained, RoundTrainedData,
};

use super::masking::{Held, MaskWork};
use super::rounds::RoundResult;
use super::{MASKED, Outcome, Part};
use crate::engine::EngineError;
use crate::files::WrittenFile;
use crate::privacy::masked::{ToMask, mask};
use crate::tasks::StopSignal;
use crate::tasks::failure::Failure;

impl Part {
    /// Keeps the result of a round until the platform has it.
    pub(super) fn keep(&self, round: u64, result: RoundResult) -> Result<(), Failure> {
        let RoundResult {
            key,
            file,
            num_examples,
            made,
        } = result;
        let data = FederatedUpdateData {
            round,
            num_examples,
            steps: made.steps,
            loss: made.loss,
            key,
            sha256: made.file.sha256,
            size_bytes: made.file.size_bytes,
            attempt: None,
        };
        self.keep_update(data, file.clone())?;
        // It lies in the outbox now; what stays here is overwritten or goes with the session.
        let _ = fs::remove_file(file);
        tracing::info!(session.id = %self.id, round, loss = made.loss, "the round is trained");
        Ok(())
    }

    /// The result of a round stays here until it can be masked.
    pub(super) fn hold(&self, round: u64, result: RoundResult) -> Held {
        tracing::info!(session.id = %self.id, round, loss = result.made.loss, "the round is trained; its result waits for the others'");
        Held {
            round,
            file: result.file,
            weights: self.weights_file(round),
            num_examples: result.num_examples,
            steps: result.made.steps,
            loss: result.made.loss,
        }
    }

    /// Says that there is a result which waits to be masked.
    pub(super) fn tell_trained(&self, held: &Held) {
        self.context
            .reports
            .send(FromWorker::RoundTrained(RoundTrained {
                worker_id: None,
                session_id: self.id,
                message_id: None,
                data: RoundTrainedData {
                    round: held.round,
                    num_examples: held.num_examples,
                    steps: held.steps,
                },
            }));
    }

    /// Masks a result, or breaks that off; nothing is left of it then.
    pub(super) async fn mask(
        &self,
        work: Arc<MaskWork>,
        broken_off: StopSignal,
    ) -> Result<Outcome, Failure> {
        let (out, to_mask) = (self.masked_file(&work), work.clone());
        let masking = move || {
            let is_stopped = || broken_off.is_set();
            let what = ToMask {
                result: &to_mask.held.file,
                weights: &to_mask.held.weights,
                masks: &to_mask.masks,
                factor: to_mask.factor,
                loss: to_mask.held.loss,
            };
            mask(&what, &out, &is_stopped)
        };
        let internal = |error| {
            let text = format!("masking has broken down: {error}");
            Failure::new(FailureKind::Internal, text)
        };
        let masked = tokio::task::spawn_blocking(masking).await;
        match masked.map_err(internal)? {
            Ok(file) => Ok(Outcome::Masked(work, file)),
            Err(EngineError::Stopped) => Ok(Outcome::BrokenOff),
            Err(error) => Err(error.into()),
        }
    }

    /// Keeps a masked change until the platform has it.
    pub(super) fn keep_masked(&self, work: &MaskWork, file: WrittenFile) -> Result<(), Failure> {
        let held = &work.held;
        let data = FederatedUpdateData {
            round: held.round,
            num_examples: held.num_examples,
            steps: held.steps,
            loss: None,
            key: work.key.clone(),
            sha256: file.sha256,
            size_bytes: file.size_bytes,
            attempt: Some(work.attempt),
        };
        self.keep_update(data, self.masked_file(work))?;
        tracing::info!(session.id = %self.id, held.round, work.attempt, "the round's result is masked");
        Ok(())
    }

    /// A masked change is in the outbox, or of no use.
    pub(super) fn forget_masked(&self, work: &MaskWork) {
        // What stays is deleted when the session begins anew, or ends.
        let _ = fs::remove_file(self.masked_file(work));
    }

    fn masked_file(&self, work: &MaskWork) -> PathBuf {
        self.folder.join(format!("{MASKED}{}", work.attempt))
    }

    fn keep_update(&self, data: FederatedUpdateData, file: PathBuf) -> Result<(), Failure> {
        let artifact = ArtifactFile {
            key: data.key.clone(),
            size_bytes: data.size_bytes,
            sha256: data.sha256.clone(),
        };
        let message = FromWorker::FederatedUpdate(FederatedUpdate {
            worker_id: None,
            session_id: self.id,
            message_id: Some(MessageId::random()),
            data,
        });
        let kept = self.context.reports.keep(message, vec![(artifact, file)]);
        kept.map_err(|error| {
            let text = format!("the round's result cannot be kept for delivery: {error}");
            Failure::new(FailureKind::Storage, text)
        })
    }
}
