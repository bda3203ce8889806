//! The engine's one error type: what was being done, to which object, and why it failed.

use std::path::PathBuf;

/// Everything that can go wrong in the engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done, as a verb: "read", "create", "rename".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's own error.
        source: std::io::Error,
    },
    /// A model's files contradict themselves or are damaged.
    #[error("model {}: {message}", path.display())]
    InvalidModel {
        /// The model's folder or file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// A model, configuration or file is sound but asks for something the engine does not do.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// A weight that the model's configuration calls for is not in its files.
    #[error("weight {name} is missing")]
    MissingTensor {
        /// Its Hugging Face name.
        name: String,
    },
    /// A weight has another shape than the model's configuration calls for.
    #[error("weight {name} has shape {found:?}, expected {expected:?}")]
    ShapeMismatch {
        /// Its Hugging Face name.
        name: String,
        /// The shape by the configuration.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },
    /// A tokenizer cannot be built or fails on a text.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// A model's chat template cannot be compiled, or refuses a chat.
    #[error("chat template: {0}")]
    ChatTemplate(String),
    /// A batch of tokens cannot be run through the model.
    #[error("invalid batch: {0}")]
    InvalidBatch(String),
    /// A setting of a training run, an adapter or of sampling is out of range.
    #[error("{field}: {message}")]
    InvalidSetting {
        /// The setting's name, as users write it.
        field: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// The system has no room for weights or activations.
    #[error("out of memory: {} MiB more are needed", bytes.div_ceil(1 << 20))]
    OutOfMemory {
        /// What was asked for.
        bytes: usize,
    },
    /// A training run needs more memory than there is, however it is cut up.
    #[error("out of memory: {0}")]
    TooLarge(String),
    /// A model's output is no numbers any more: its weights are damaged.
    #[error("the model's output is not finite")]
    NotFinite,
    /// Training data cannot be used.
    #[error("training data: {0}")]
    InvalidData(String),
    /// An adapter or checkpoint on disk cannot be used.
    #[error("{}: {message}", path.display())]
    InvalidCheckpoint {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// Asked to stop before it was done.
    #[error("stopped before it was done")]
    Stopped,
    /// The loss or the gradients are no longer finite numbers.
    #[error("training diverged at step {step}: {message}")]
    Diverged {
        /// The optimizer step, from 1.
        step: u64,
        /// What was seen.
        message: String,
    },
}

impl EngineError {
    /// An [`EngineError::Io`], made where a system call failed.
    pub fn io(action: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Io {
            action,
            path: path.into(),
            source,
        }
    }
}
