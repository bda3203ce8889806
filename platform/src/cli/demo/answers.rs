//! The three questions, put to the model as any chat would be, and its likeliest answers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use trainyard_shared::dataset::{Role, Turn};
use trainyard_shared::message::BaseModel;
use trainyard_worker::engine::EngineError;
use trainyard_worker::engine::adapter;
use trainyard_worker::engine::generate::{Generator, Next, SamplingOptions};
use trainyard_worker::engine::model::Llama;
use trainyard_worker::engine::weights::ModelFiles;
use trainyard_worker::tasks::base_model::ModelSource;

use super::chats::QUESTIONS;
use crate::cli::error::CliError;
use crate::cli::output::remark;

/// An answer is cut off here.
const MAX_TOKENS: usize = 48;

/// One answer for each of [`QUESTIONS`], in their order.
pub type Answers = Vec<String>;

/// Asks the base model, with the adapter in `adapter` where there is one. Ends early when it is dropped.
pub async fn ask(
    models: &ModelSource,
    model: &str,
    adapter: Option<&Path>,
) -> Result<Answers, CliError> {
    let path = find(models, model).await?;
    let adapter = adapter.map(Path::to_owned);
    let waiting = Waiting::default();
    let abandoned = waiting.abandoned.clone();
    let answering = tokio::task::spawn_blocking(move || {
        answer(&path, adapter.as_deref(), &|| {
            abandoned.load(Ordering::Relaxed)
        })
    });
    match answering.await {
        Ok(answers) => answers.map_err(|error| CliError::Input(error.to_string())),
        Err(panicked) => Err(CliError::Input(panicked.to_string())),
    }
}

/// The model's folder or file on this machine; it is fetched first where it is not there.
async fn find(models: &ModelSource, model: &str) -> Result<PathBuf, CliError> {
    let model = BaseModel {
        huggingface_id: model.to_owned(),
        download_urls: Vec::new(),
    };
    let mut told = String::new();
    let found = models.find(&model, |fetched| {
        if told != fetched.file {
            told = fetched.file.to_owned();
            remark(&format!("fetching {told}"));
        }
    });
    found
        .await
        .map_err(|error| CliError::Input(error.to_string()))
}

/// Tells the answering thread when nobody waits for it any more.
#[derive(Default)]
struct Waiting {
    abandoned: Arc<AtomicBool>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }
}

fn answer(
    path: &Path,
    adapter: Option<&Path>,
    abandoned: &dyn Fn() -> bool,
) -> Result<Answers, EngineError> {
    let files = ModelFiles::open(path)?;
    let chat = files.chat(chrono::Local::now())?;
    let options = SamplingOptions {
        max_tokens: MAX_TOKENS,
        temperature: 0.0,
        stop_ids: files.stop_token_ids(&chat)?,
        ..SamplingOptions::default()
    };
    let adapter = adapter
        .map(|folder| adapter::load(folder, &files.config))
        .transpose()?;
    let model = Arc::new(Llama::load(&files)?);
    let mut generator = Generator::new(model, adapter.as_ref().map(|(adapter, _)| adapter))?;
    let one = |question: &str| {
        let turn = Turn {
            role: Role::User,
            content: question.to_owned(),
        };
        let prompt = chat.encode_prompt(&[turn])?;
        let generated = generator.generate(&prompt, &options, abandoned, &mut |_| Next::GoOn)?;
        Ok(chat.tokenizer().decode(&generated.ids)?.trim().to_owned())
    };
    QUESTIONS.into_iter().map(one).collect()
}
