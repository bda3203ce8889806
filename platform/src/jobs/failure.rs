//! Why an attempt failed, and what can be read from a worker's own words about it.

use trainyard_shared::FailureKind;

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Whose it is.
    pub kind: FailureKind,
    /// For a person.
    pub error: String,
}

/// Whether another attempt may go better with the same data and config.
pub(super) fn is_worth_a_retry(kind: FailureKind) -> bool {
    !matches!(kind, FailureKind::BadData | FailureKind::BadConfig)
}

/// The kind of a failure that the worker did not name.
pub(super) fn kind_of(error: &str) -> FailureKind {
    if error.to_ascii_lowercase().contains("out of memory") {
        FailureKind::OutOfMemory
    } else {
        FailureKind::Internal
    }
}

/// The step in a checkpoint's path, as 400 in `checkpoints/job-123/step-400/`.
pub(super) fn step_of_path(path: &str) -> Option<u64> {
    path.rsplit('/')
        .find_map(|part| part.strip_prefix("step-")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_path_names_its_step() {
        assert_eq!(step_of_path("checkpoints/job-123/step-400/"), Some(400));
        assert_eq!(step_of_path("checkpoints/job-123/step-400"), Some(400));
        assert_eq!(step_of_path("checkpoints/job-123/step-x/"), None);
        assert_eq!(step_of_path(""), None);
    }

    #[test]
    fn an_error_about_memory_is_known_by_its_words() {
        assert_eq!(
            kind_of("CUDA out of memory. Tried to allocate 2.5 GB..."),
            FailureKind::OutOfMemory
        );
        assert_eq!(kind_of("index out of range"), FailureKind::Internal);
    }
}
