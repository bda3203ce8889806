//! Why a job failed, and whose failure it is.

use trainyard_shared::FailureKind;
use trainyard_shared::training::FieldProblem;

use crate::engine::EngineError;
use crate::tasks::base_model::ModelUnavailable;
use crate::tasks::transfers::TransferError;

/// Longest text of an error that goes to the platform: far below the limit of a frame.
const LONGEST_TEXT_BYTES: usize = 128 * 1024;

/// A job that cannot go on.
#[derive(Debug)]
pub struct Failure {
    /// Whose failure it is.
    pub kind: FailureKind,
    /// Why, for a person.
    pub message: String,
}

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > LONGEST_TEXT_BYTES {
            message.truncate(message.floor_char_boundary(LONGEST_TEXT_BYTES));
            message.push('…');
        }
        Self { kind, message }
    }

    /// The config is not one that this worker can carry out.
    pub fn from_problems(problems: &[FieldProblem]) -> Self {
        let lines: Vec<String> = problems
            .iter()
            .map(|problem| match &problem.hint {
                Some(hint) => format!("{problem} ({hint})"),
                None => problem.to_string(),
            })
            .collect();
        Self::new(FailureKind::BadConfig, lines.join("; "))
    }

    /// Opening the base model failed.
    pub fn from_model(error: &EngineError) -> Self {
        Self::new(FailureKind::ModelUnavailable, error.to_string())
    }

    /// A panic on the engine's thread.
    pub fn from_panic(panic: &(dyn std::any::Any + Send)) -> Self {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no reason given".to_owned());
        Self::new(
            FailureKind::Internal,
            format!("the engine broke down: {text}"),
        )
    }
}

impl From<TransferError> for Failure {
    fn from(error: TransferError) -> Self {
        let kind = match error {
            TransferError::DiskFull { .. }
            | TransferError::NoRoom { .. }
            | TransferError::Io { .. } => FailureKind::Storage,
            _ => FailureKind::Download,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<ModelUnavailable> for Failure {
    fn from(error: ModelUnavailable) -> Self {
        // Whoever runs the worker may know where that is; whoever runs the job need not.
        tracing::warn!(%error, "no base model");
        Self::new(FailureKind::ModelUnavailable, error.for_others())
    }
}

impl From<EngineError> for Failure {
    /// For everything after the model was opened.
    fn from(error: EngineError) -> Self {
        let kind = match &error {
            EngineError::OutOfMemory { .. } | EngineError::TooLarge(_) => FailureKind::OutOfMemory,
            EngineError::Io { .. } | EngineError::InvalidCheckpoint { .. } => FailureKind::Storage,
            EngineError::InvalidModel { .. }
            | EngineError::MissingTensor { .. }
            | EngineError::ShapeMismatch { .. }
            | EngineError::Tokenizer(_)
            | EngineError::ChatTemplate(_) => FailureKind::ModelUnavailable,
            EngineError::Unsupported(_) | EngineError::InvalidSetting { .. } => {
                FailureKind::BadConfig
            }
            EngineError::InvalidData(_) => FailureKind::BadData,
            EngineError::Diverged { .. } => FailureKind::Diverged,
            EngineError::InvalidBatch(_) | EngineError::NotFinite | EngineError::Stopped => {
                FailureKind::Internal
            }
        };
        Self::new(kind, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_say_whose_they_are() {
        let data = Failure::from(EngineError::InvalidData("line 3: no text".to_owned()));
        assert_eq!(data.kind, FailureKind::BadData);
        assert!(data.message.contains("line 3"));
        let disk = Failure::from(EngineError::io(
            "write",
            "/state/adapter",
            std::io::ErrorKind::StorageFull.into(),
        ));
        assert_eq!(disk.kind, FailureKind::Storage);
        let full = Failure::from(TransferError::DiskFull {
            path: "/state/data".into(),
        });
        assert_eq!(full.kind, FailureKind::Storage);
        assert_eq!(full.message, "the disk is full: /state/data");
    }

    #[test]
    fn g031_a_very_long_error_stays_below_the_limit_of_a_frame() {
        let failure = Failure::new(FailureKind::Internal, "é".repeat(1 << 20));
        assert!(failure.message.len() < 200 * 1024);
    }

    #[test]
    fn a_panic_is_an_internal_failure_with_its_words() {
        let panic = std::panic::catch_unwind(|| panic!("index 5")).unwrap_err();
        let failure = Failure::from_panic(&*panic);
        assert_eq!(failure.kind, FailureKind::Internal);
        assert!(failure.message.contains("index 5"));
    }
}
