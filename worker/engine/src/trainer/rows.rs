//! The rows of a run: a data set's, as tokens of the base model.

use chrono::{DateTime, FixedOffset};
use trainyard_shared::training::TrainingConfig;

use super::LogLevel;
use crate::EngineError;
use crate::data::{DataFile, DatasetReport, Examples, RowEncoder, TokenCache, read_examples};
use crate::weights::ModelFiles;

/// A data set that is trained on, and how its rows become tokens.
#[derive(Debug)]
pub struct RowSource<'a> {
    /// The base model.
    pub model: &'a ModelFiles,
    /// The data set.
    pub dataset: &'a DataFile,
    /// How to train.
    pub config: &'a TrainingConfig,
    /// Bad rows that may be skipped.
    pub max_bad_rows: u64,
    /// Where tokenised data sets are kept.
    pub token_cache: &'a TokenCache,
    /// What chat templates are told to be the time.
    pub chat_time: DateTime<FixedOffset>,
}

impl RowSource<'_> {
    /// Reads and tokenises the rows.
    ///
    /// # Errors
    /// As [`read_examples`].
    pub(super) fn read(
        &self,
        is_stopped: &(dyn Fn() -> bool + Sync),
        log: &mut dyn FnMut(LogLevel, String),
    ) -> Result<(Examples, DatasetReport), EngineError> {
        let chat = self.model.chat(self.chat_time)?;
        if !chat.has_own_template() {
            log(
                LogLevel::Info,
                "the model has no chat template: chats are rendered as ChatML".into(),
            );
        }
        let encoder = RowEncoder {
            chat: &chat,
            train_on: self.config.train_on,
            max_length: self.config.max_length as usize,
            vocab_size: self.model.config.vocab_size,
        };
        read_examples(
            self.dataset,
            &encoder,
            self.max_bad_rows,
            self.token_cache,
            is_stopped,
        )
    }
}
