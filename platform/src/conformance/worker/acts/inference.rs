//! Chats to answer and models to evaluate.

use std::time::Duration;

use serde_json::{Value, json};

use super::{SHORT_JOB, Stage};
use crate::conformance::worker::files::ROWS;
use crate::conformance::worker::story::Act;

/// The chat of [`Act::Chat`].
pub const CHAT: &str = "infer-201";
/// The chat of [`Act::LongChat`].
pub const LONG_CHAT: &str = "infer-202";
/// The chat of [`Act::BadChat`].
pub const BAD_CHAT: &str = "infer-203";
/// The evaluation of [`Act::Evaluation`].
pub const EVALUATION: i64 = 301;
/// The evaluation of [`Act::BadEvaluation`].
pub const BAD_EVALUATION: i64 = 302;

/// Tokens of the short answer.
const SOME_TOKENS: u64 = 24;
/// Tokens of an answer that is to be stopped before its end.
const MANY_TOKENS: u64 = 1_000_000;

impl Stage<'_> {
    pub(super) async fn chats(&self) {
        let from = self.begin(Act::Chat);
        self.host.say(self.start_inference(CHAT, SOME_TOKENS));
        self.answered(from, CHAT, self.pace.train_within).await;
        // What comes after the end would come at once.
        self.pinged().await;
        self.end(Act::Chat);

        let from = self.begin(Act::LongChat);
        self.host.say(self.start_inference(LONG_CHAT, MANY_TOKENS));
        let story = &self.host.story;
        story
            .until_heard(from, self.pace.train_within, |message| {
                message["inference_id"] == LONG_CHAT
            })
            .await;
        self.host
            .say(json!({"type": "stop_inference", "inference_id": LONG_CHAT}));
        self.answered(from, LONG_CHAT, self.pace.answer_within)
            .await;
        self.end(Act::LongChat);

        let from = self.begin(Act::BadChat);
        let mut start = self.start_inference(BAD_CHAT, SOME_TOKENS);
        if let Some(data) = start["data"].as_object_mut() {
            data.remove("messages");
        }
        self.host.say(start);
        self.answered(from, BAD_CHAT, self.pace.answer_within).await;
        self.end(Act::BadChat);
    }

    /// A chat as the source document spells it: with the adapter of the short job, where the worker stored that.
    fn start_inference(&self, id: &str, max_tokens: u64) -> Value {
        let adapter = self.adapter();
        json!({
            "type": "start_inference",
            "inference_id": id,
            "data": {
                "model_path": adapter.as_ref().map(|(path, _)| path),
                "huggingface_id": self.model,
                "download_urls": adapter.map_or_else(Vec::new, |(_, files)| files),
                "messages": [{"role": "user", "content": "load car 1"}],
                "system_prompt": "Speak as a yard foreman.",
                "temperature": 0.7,
                "max_tokens": max_tokens,
                "stream": true
            }
        })
    }

    /// Where the adapter of the short job lies, and its files.
    fn adapter(&self) -> Option<(String, Vec<Value>)> {
        let files = ["adapter_config.json", "adapter_model.safetensors"];
        let stored = self.host.files.stored();
        let job = format!("job-{SHORT_JOB}/");
        let folder = stored
            .iter()
            .filter(|key| key.contains(&job) && !key.starts_with("checkpoints/"))
            .find_map(|key| key.strip_suffix(files[0]))?;
        let urls = files.map(|name| {
            let url = self.host.files.url(&format!("{folder}{name}"));
            json!({"key": name, "url": url})
        });
        Some((folder.to_owned(), urls.to_vec()))
    }

    async fn answered(&self, from: usize, id: &str, within: Duration) {
        let story = &self.host.story;
        story
            .until_heard(from, within, |message| {
                let kind = &message["type"];
                let ends = kind == "inference_completed" || kind == "inference_failed";
                ends && message["inference_id"] == id
            })
            .await;
    }

    pub(super) async fn evaluations(&self) {
        let from = self.begin(Act::Evaluation);
        self.host
            .say(self.start_evaluation(EVALUATION, "perplexity"));
        self.evaluated(from, EVALUATION).await;
        self.end(Act::Evaluation);

        let from = self.begin(Act::BadEvaluation);
        self.host
            .say(self.start_evaluation(BAD_EVALUATION, "beauty"));
        self.evaluated(from, BAD_EVALUATION).await;
        self.end(Act::BadEvaluation);
    }

    /// An evaluation as the source document spells it, with the additions of ours that say where everything is.
    fn start_evaluation(&self, id: i64, metric: &str) -> Value {
        let adapter = self.adapter();
        let path = adapter.as_ref().map(|(path, _)| path);
        json!({
            "type": "start_evaluation",
            "evaluation_id": id,
            "data": {
                "model_url": path.map_or(self.model, String::as_str),
                "dataset_url": format!("datasets/42/{ROWS}"),
                "metrics": [metric],
                "base_model": {"huggingface_id": self.model},
                "download_urls": adapter.as_ref().map_or(&[][..], |(_, files)| files),
                "dataset": self.dataset(ROWS)
            }
        })
    }

    async fn evaluated(&self, from: usize, id: i64) {
        let story = &self.host.story;
        story
            .until_heard(from, self.pace.train_within, |message| {
                let kind = &message["type"];
                let ends = kind == "evaluation_completed" || kind == "evaluation_failed";
                ends && message["evaluation_id"] == id
            })
            .await;
    }
}
