//! The words for what a worker does, where a job stands and whose a failure is.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

macro_rules! words {
    ($name:ident { $($variant:ident => $word:literal),+ $(,)? }) => {
        impl $name {
            /// Every value, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word on the wire, in the API and in the database.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// The value that this word stands for.
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.as_str() == word)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

/// What a worker does, as it says itself in `heartbeat` and `pong` and as dashboards are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkerStatus {
    /// Not connected, or silent beyond the heartbeat timeout. Only the platform says this.
    Offline,
    /// Free for work.
    Idle,
    /// Runs a training job.
    Training,
    /// Answers an inference request.
    Inference,
    /// Evaluates a model.
    Evaluating,
    /// Writes a job's result in another form (ours).
    Exporting,
    /// Takes part in a federated session.
    Federated,
    /// Finishes what it has and is given nothing new. Only the platform says this.
    Draining,
    /// Connected; what it does is not known. Words that we do not know are read as this.
    #[serde(other)]
    Online,
}

words!(WorkerStatus {
    Offline => "offline",
    Idle => "idle",
    Training => "training",
    Inference => "inference",
    Evaluating => "evaluating",
    Exporting => "exporting",
    Federated => "federated",
    Draining => "draining",
    Online => "online",
});

/// Where a job stands (PROTOCOL 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    /// Waits for a worker.
    Queued,
    /// Sent to a worker that has not said `job_started` yet.
    Assigned,
    /// Trains.
    Running,
    /// A stop was asked for; the worker saves a checkpoint.
    Stopping,
    /// Ended with a result.
    Completed,
    /// Ended without one. Can be resumed.
    Failed,
    /// Ended because someone asked for it. Can be resumed.
    Stopped,
}

words!(JobStatus {
    Queued => "queued",
    Assigned => "assigned",
    Running => "running",
    Stopping => "stopping",
    Completed => "completed",
    Failed => "failed",
    Stopped => "stopped",
});

impl JobStatus {
    /// Whether the job has ended. An ended state is final for its attempt.
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Stopped)
    }
}

/// Whose a failure is (PROTOCOL 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The worker was silent beyond the heartbeat timeout.
    WorkerLost,
    /// The worker came back without the job that it had.
    WorkerRestarted,
    /// The worker took the job and never started it.
    NotStarted,
    /// Memory of the GPU or the machine ran out.
    OutOfMemory,
    /// The data set cannot be trained on.
    BadData,
    /// The job's config cannot be carried out.
    BadConfig,
    /// The base model is not to be had, or is of a kind that is not known.
    ModelUnavailable,
    /// A download failed for good.
    Download,
    /// The loss or the weights stopped being finite.
    Diverged,
    /// A file could not be written or stored.
    Storage,
    /// A fault of ours. Kinds that we do not know are read as this.
    #[serde(other)]
    Internal,
}

words!(FailureKind {
    WorkerLost => "worker_lost",
    WorkerRestarted => "worker_restarted",
    NotStarted => "not_started",
    OutOfMemory => "out_of_memory",
    BadData => "bad_data",
    BadConfig => "bad_config",
    ModelUnavailable => "model_unavailable",
    Download => "download",
    Diverged => "diverged",
    Storage => "storage",
    Internal => "internal",
});

/// Why an answer ended (ours: `inference_completed`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// `max_tokens` were given, or the model's context is full.
    Length,
    /// Someone asked to stop.
    Cancelled,
    /// The model gave a stop token, or the text a stop string. Words that we do not know are read as this.
    #[serde(other)]
    Stop,
}

words!(FinishReason {
    Length => "length",
    Cancelled => "cancelled",
    Stop => "stop",
});

/// What kinds of work a worker takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkerType {
    /// Training and inference.
    #[default]
    Both,
    /// Training only.
    Training,
    /// Inference only.
    Inference,
}

words!(WorkerType {
    Both => "both",
    Training => "training",
    Inference => "inference",
});

impl WorkerType {
    /// Whether training jobs may be given to such a worker.
    pub const fn takes_training(self) -> bool {
        matches!(self, Self::Both | Self::Training)
    }

    /// Whether chats, evaluations and exports may be given to such a worker.
    pub const fn takes_inference(self) -> bool {
        matches!(self, Self::Both | Self::Inference)
    }
}

/// In which form a job's result leaves the yard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExportFormat {
    /// A folder that transformers loads, the adapter merged into the weights.
    MergedSafetensors,
    /// One GGUF file for llama.cpp, the adapter merged into the weights.
    GgufMerged,
    /// The adapter alone as a GGUF file that llama.cpp adds to its base model.
    GgufLora,
}

words!(ExportFormat {
    MergedSafetensors => "merged_safetensors",
    GgufMerged => "gguf_merged",
    GgufLora => "gguf_lora",
});

/// The type of an export's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WeightType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// bfloat16.
    Bf16,
    /// Blocks of 32 values of 8 bits; only for merged GGUF files.
    #[serde(rename = "q8_0")]
    Q8_0,
}

words!(WeightType {
    F32 => "f32",
    F16 => "f16",
    Bf16 => "bf16",
    Q8_0 => "q8_0",
});

impl ExportFormat {
    /// Whether weights of that type can be written in this form.
    pub const fn takes(self, weights: WeightType) -> bool {
        matches!(self, Self::GgufMerged) || !matches!(weights, WeightType::Q8_0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_same_in_serde_and_in_as_str() {
        for status in WorkerStatus::ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
            assert_eq!(WorkerStatus::from_word(status.as_str()), Some(*status));
        }
        for status in JobStatus::ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
        }
        for kind in FailureKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        for reason in FinishReason::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        }
        for kind in WorkerType::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        for format in ExportFormat::ALL {
            assert_eq!(serde_json::to_value(format).unwrap(), format.as_str());
        }
        for weights in WeightType::ALL {
            assert_eq!(serde_json::to_value(weights).unwrap(), weights.as_str());
        }
    }

    #[test]
    fn a_status_that_is_not_known_means_online() {
        assert_eq!(
            serde_json::from_str::<WorkerStatus>("\"busy\"").unwrap(),
            WorkerStatus::Online
        );
        assert_eq!(
            serde_json::from_str::<FailureKind>("\"gremlins\"").unwrap(),
            FailureKind::Internal
        );
        assert_eq!(
            serde_json::from_str::<FinishReason>("\"eos\"").unwrap(),
            FinishReason::Stop
        );
        assert!(serde_json::from_str::<JobStatus>("\"busy\"").is_err());
    }
}
