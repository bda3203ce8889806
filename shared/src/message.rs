//! Every message of the wire: one enum for each direction, one file for each message.
//!
//! The enums' variants are the wire's `type` names in CamelCase. `decode` reads one text frame on top
//! of the strict reader ([`crate::json`]) and says what is wrong in a form that can be answered;
//! `encode` writes one frame and adds `timestamp`. A `timestamp` that is read is dropped: it decides
//! nothing (PROTOCOL 3). Fields that are not known are ignored.

mod ack;
mod announce_keys;
mod authenticate;
mod checkpoint_saved;
mod continue_round;
mod decode;
mod enrollment_complete;
mod error;
mod evaluation_completed;
mod evaluation_progress;
mod export_completed;
mod export_progress;
mod federated_failed;
mod federated_round;
mod federated_update;
mod heartbeat;
mod inference_completed;
mod inference_tokens;
mod job_completed;
mod job_failed;
mod job_started;
mod job_stopped;
mod job_update;
mod load_aggregated_weights;
mod mask_result;
mod parts;
mod ping;
mod reveal_shares;
mod round_trained;
mod share_secrets;
mod start_evaluation;
mod start_export;
mod start_federated_training;
mod start_inference;
mod start_training;
mod stop_training;
mod subscribe_job;
mod training_failed;
mod training_progress;
mod weights_loaded;
mod worker_log;
mod worker_metrics;
mod worker_register;
mod worker_update;

pub use ack::Ack;
pub use announce_keys::{
    AnnounceKeys, AnnounceKeysData, KeysAnnounced, KeysAnnouncedData, MaskingKeys,
};
pub use authenticate::{AuthFailed, Authenticate, Authenticated};
pub use checkpoint_saved::{CheckpointSaved, CheckpointSavedData};
pub use continue_round::{ContinueRound, ContinueRoundData};
pub use decode::{DecodeError, DecodeErrorKind, MessageIds};
pub use enrollment_complete::{EnrollmentComplete, EnrollmentCompleteData};
pub use error::{Error, ErrorCode};
pub use evaluation_completed::{
    EvaluationCompleted, EvaluationCompletedData, EvaluationFailed, EvaluationMetrics,
};
pub use evaluation_progress::EvaluationProgress;
pub use export_completed::{ExportCompleted, ExportCompletedData, ExportFailed};
pub use export_progress::ExportProgress;
pub use federated_failed::{FederatedFailed, FederatedFailedData};
pub use federated_round::{FederatedRound, FederatedRoundData};
pub use federated_update::{FederatedUpdate, FederatedUpdateData};
pub use heartbeat::Heartbeat;
pub use inference_completed::{
    InferenceCompleted, InferenceCompletedData, InferenceFailed, InferenceFailedData,
    InferenceMetrics,
};
pub use inference_tokens::{InferenceTokens, InferenceTokensData};
pub use job_completed::{JobCompleted, JobCompletedData};
pub use job_failed::{JobFailed, JobFailedData};
pub use job_started::{JobStarted, JobStartedData};
pub use job_stopped::{JobStopped, JobStoppedData};
pub use job_update::{JobUpdate, JobUpdateData};
pub use load_aggregated_weights::{LoadAggregatedWeights, LoadAggregatedWeightsData};
pub use mask_result::{MaskResult, MaskResultData, MaskingFailed, MaskingFailedData, ShareFrom};
pub use parts::{
    ArtifactFile, BaseModel, ChatMessage, DatasetSource, DownloadFile, DownloadUrl, GlobalWeights,
    TaskFailedData, TaskProgressData, UploadTarget,
};
pub use ping::{Ping, Pong};
pub use reveal_shares::{
    RevealShares, RevealSharesData, RevealedShare, SharesRevealed, SharesRevealedData,
};
pub use round_trained::{RoundTrained, RoundTrainedData};
pub use share_secrets::{
    SecretsShared, SecretsSharedData, ShareSecrets, ShareSecretsData, ShareTo,
};
pub use start_evaluation::{StartEvaluation, StartEvaluationData, StopEvaluation};
pub use start_export::{StartExport, StartExportData, StopExport};
pub use start_federated_training::{
    DifferentialPrivacy, Privacy, SecureAggregation, Shard, StartFederatedTraining,
    StartFederatedTrainingData, StopFederatedTraining,
};
pub use start_inference::{StartInference, StartInferenceData, StopInference};
pub use start_training::{ResumePoint, StartTraining, StartTrainingData};
pub use stop_training::StopTraining;
pub use subscribe_job::{SubscribeJob, UnsubscribeJob};
pub use training_failed::{TrainingFailed, TrainingFailedData};
pub use training_progress::{TrainingProgress, TrainingProgressData};
pub use weights_loaded::{WeightsLoaded, WeightsLoadedData};
pub use worker_log::{LogLevel, WorkerLog, WorkerLogData};
pub use worker_metrics::{WorkerMetrics, WorkerMetricsData};
pub use worker_register::{Benchmark, WorkerRegister, WorkerRegisterData};
pub use worker_update::{WorkerUpdate, WorkerUpdateData};

use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;
use serde_json::Value;

use decode::{Envelope, body};

macro_rules! messages {
    ($(#[$doc:meta])* $name:ident { $($wire:literal => $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Serialize)]
        #[serde(tag = "type")]
        pub enum $name {
            $(
                #[doc = concat!("`", $wire, "`")]
                #[serde(rename = $wire)]
                $variant($variant),
            )+
        }

        impl $name {
            /// The `type` of every message of this direction.
            pub const TYPES: &'static [&'static str] = &[$($wire),+];

            /// Reads one text frame.
            ///
            /// # Errors
            ///
            /// What to answer with `error`: the frame is not JSON that we take, its `type` is not
            /// known, or a known type does not fit. Nothing else may happen because of it.
            pub fn decode(text: &str) -> Result<Self, DecodeError> {
                let envelope = Envelope::read(text)?;
                match envelope.kind() {
                    $($wire => body(envelope).map(Self::$variant),)+
                    _ => Err(envelope.unknown_type()),
                }
            }

            /// The message's `type`.
            pub const fn wire_type(&self) -> &'static str {
                match self { $(Self::$variant(_) => $wire),+ }
            }

            /// Writes one text frame, stamped with the present time.
            pub fn encode(&self) -> String {
                self.encode_at(Utc::now())
            }

            /// Writes one text frame, stamped with `now`.
            pub fn encode_at(&self, now: DateTime<Utc>) -> String {
                stamped(self, now)
            }

            /// The message as a JSON value, without a timestamp.
            pub fn to_value(&self) -> Value {
                serde_json::to_value(self).expect(ALWAYS_JSON)
            }
        }

        $(
            impl From<$variant> for $name {
                fn from(message: $variant) -> Self {
                    Self::$variant(message)
                }
            }
        )+
    };
}

const ALWAYS_JSON: &str = "messages have string keys and plain fields, which always are JSON";

messages!(
    /// What a worker says to the platform.
    FromWorker {
        "authenticate" => Authenticate,
        "worker_register" => WorkerRegister,
        "heartbeat" => Heartbeat,
        "pong" => Pong,
        "worker_metrics" => WorkerMetrics,
        "worker_log" => WorkerLog,
        "job_started" => JobStarted,
        "training_progress" => TrainingProgress,
        "checkpoint_saved" => CheckpointSaved,
        "job_completed" => JobCompleted,
        "job_failed" => JobFailed,
        "job_stopped" => JobStopped,
        "inference_tokens" => InferenceTokens,
        "inference_completed" => InferenceCompleted,
        "inference_failed" => InferenceFailed,
        "evaluation_progress" => EvaluationProgress,
        "evaluation_completed" => EvaluationCompleted,
        "evaluation_failed" => EvaluationFailed,
        "export_progress" => ExportProgress,
        "export_completed" => ExportCompleted,
        "export_failed" => ExportFailed,
        "federated_update" => FederatedUpdate,
        "weights_loaded" => WeightsLoaded,
        "federated_failed" => FederatedFailed,
        "round_trained" => RoundTrained,
        "keys_announced" => KeysAnnounced,
        "secrets_shared" => SecretsShared,
        "shares_revealed" => SharesRevealed,
        "masking_failed" => MaskingFailed,
        "error" => Error,
    }
);

messages!(
    /// What the platform says to a worker.
    ToWorker {
        "enrollment_complete" => EnrollmentComplete,
        "authenticated" => Authenticated,
        "auth_failed" => AuthFailed,
        "ping" => Ping,
        "start_training" => StartTraining,
        "stop_training" => StopTraining,
        "start_inference" => StartInference,
        "stop_inference" => StopInference,
        "start_evaluation" => StartEvaluation,
        "stop_evaluation" => StopEvaluation,
        "start_export" => StartExport,
        "stop_export" => StopExport,
        "start_federated_training" => StartFederatedTraining,
        "load_aggregated_weights" => LoadAggregatedWeights,
        "continue_round" => ContinueRound,
        "stop_federated_training" => StopFederatedTraining,
        "announce_keys" => AnnounceKeys,
        "share_secrets" => ShareSecrets,
        "mask_result" => MaskResult,
        "reveal_shares" => RevealShares,
        "ack" => Ack,
        "error" => Error,
    }
);

messages!(
    /// What a dashboard says to the platform.
    FromDashboard {
        "subscribe_job" => SubscribeJob,
        "unsubscribe_job" => UnsubscribeJob,
    }
);

messages!(
    /// What the platform says to a dashboard.
    ToDashboard {
        "job_update" => JobUpdate,
        "worker_update" => WorkerUpdate,
        "training_failed" => TrainingFailed,
        "job_completed" => JobCompleted,
        "checkpoint_saved" => CheckpointSaved,
        "worker_log" => WorkerLog,
        "inference_tokens" => InferenceTokens,
        "inference_completed" => InferenceCompleted,
        "inference_failed" => InferenceFailed,
        "evaluation_progress" => EvaluationProgress,
        "evaluation_completed" => EvaluationCompleted,
        "evaluation_failed" => EvaluationFailed,
        "export_progress" => ExportProgress,
        "export_completed" => ExportCompleted,
        "export_failed" => ExportFailed,
        "federated_round" => FederatedRound,
        "error" => Error,
    }
);

macro_rules! common_fields {
    ($($variant:ident),+ $(,)?; acked: $($acked:ident),+ $(,)?) => {
        impl FromWorker {
            /// The `worker_id` that the message names, if it names one.
            pub fn worker_id(&self) -> Option<&str> {
                match self {
                    $(Self::$variant(message) => message.worker_id.as_deref(),)+
                    Self::Authenticate(_) | Self::Error(_) => None,
                }
            }

            /// Says in the message which worker sends it.
            pub fn set_worker_id(&mut self, worker: crate::ids::WorkerUuid) {
                match self {
                    $(Self::$variant(message) => message.worker_id = Some(worker.to_string()),)+
                    Self::Authenticate(_) | Self::Error(_) => {}
                }
            }

            /// The id that the platform is to acknowledge, if the sender wants that.
            pub fn message_id(&self) -> Option<crate::ids::MessageId> {
                match self {
                    $(Self::$acked(message) => message.message_id,)+
                    _ => None,
                }
            }
        }
    };
}

common_fields!(
    WorkerRegister, Heartbeat, Pong, WorkerMetrics, WorkerLog, JobStarted, TrainingProgress, CheckpointSaved,
    JobCompleted, JobFailed, JobStopped, InferenceTokens, InferenceCompleted, InferenceFailed,
    EvaluationProgress, EvaluationCompleted, EvaluationFailed, ExportProgress, ExportCompleted, ExportFailed,
    FederatedUpdate, WeightsLoaded, FederatedFailed, RoundTrained, KeysAnnounced, SecretsShared,
    SharesRevealed, MaskingFailed;
    acked: JobStarted, CheckpointSaved, JobCompleted, JobFailed, JobStopped, InferenceCompleted,
    InferenceFailed, EvaluationCompleted, EvaluationFailed, ExportCompleted, ExportFailed, FederatedUpdate,
    FederatedFailed, RoundTrained, KeysAnnounced, SecretsShared, SharesRevealed, MaskingFailed
);

/// Serialises once and puts `timestamp` behind the last field.
fn stamped<M: Serialize>(message: &M, now: DateTime<Utc>) -> String {
    let mut frame = serde_json::to_string(message).expect(ALWAYS_JSON);
    let brace = frame.pop();
    debug_assert_eq!(brace, Some('}'), "a message is a JSON object");
    frame.push_str(",\"timestamp\":\"");
    frame.push_str(&now.to_rfc3339_opts(SecondsFormat::Millis, true));
    frame.push_str("\"}");
    frame
}
