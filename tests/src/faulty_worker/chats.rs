//! Its answers to chats and its evaluations.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Fault, FaultyWorker, Stream, say};

/// Between two batches of tokens.
pub(super) const BATCH_INTERVAL: Duration = Duration::from_millis(50);
/// Tokens in a batch.
const BATCH: u64 = 5;

/// An answer that it streams.
#[derive(Debug, Clone)]
pub(super) struct Chat {
    id: String,
    tokens_sent: u64,
    max_tokens: u64,
}

impl FaultyWorker {
    async fn about_chat(&self, stream: &mut Stream, kind: &str, id: &Value, data: Value) {
        say(
            stream,
            json!({"type": kind, "inference_id": id, "data": data}),
        )
        .await;
    }

    pub(super) async fn start_chat(&mut self, stream: &mut Stream, message: &Value) {
        let id = &message["inference_id"];
        if !message["data"]["messages"].is_array() {
            if !self.has(Fault::IgnoresBadChat) {
                let error = json!({"error": "data.messages is missing"});
                self.about_chat(stream, "inference_failed", id, error).await;
            }
            return;
        }
        self.chat = Some(Chat {
            id: id.as_str().expect("an inference has an id").to_owned(),
            tokens_sent: 0,
            max_tokens: message["data"]["max_tokens"].as_u64().unwrap_or(100),
        });
    }

    pub(super) async fn answer(&mut self, stream: &mut Stream) {
        let Some(chat) = &mut self.chat else { return };
        let batch = match self.fault {
            Fault::OneBatch => 20,
            _ => BATCH,
        };
        let count = batch.min(chat.max_tokens - chat.tokens_sent);
        chat.tokens_sent += count;
        let (id, is_last) = (json!(chat.id), chat.tokens_sent == chat.max_tokens);
        let tokens = json!({"tokens": (0..count).map(|_| " aye").collect::<Vec<_>>()});
        self.about_chat(stream, "inference_tokens", &id, tokens.clone())
            .await;
        if is_last {
            self.end_chat(stream).await;
            if self.has(Fault::TokensAfterEnd) {
                self.about_chat(stream, "inference_tokens", &id, tokens)
                    .await;
            }
        }
    }

    pub(super) async fn end_chat(&mut self, stream: &mut Stream) {
        let Some(chat) = self.chat.take() else { return };
        let text = match self.fault {
            Fault::OtherText => "aye aye".to_owned(),
            _ => " aye".repeat(usize::try_from(chat.tokens_sent).expect("a short answer")),
        };
        let mut data = json!({
            "tokens_generated": chat.tokens_sent, "text": text,
            "metrics": {"ttft_ms": 1.5, "tps": 100.0, "total_time_ms": 240.0}
        });
        if self.has(Fault::CompletedWithoutMetrics) {
            data.as_object_mut().expect("it is one").remove("metrics");
        }
        self.about_chat(stream, "inference_completed", &json!(chat.id), data)
            .await;
    }

    pub(super) async fn evaluate(&self, stream: &mut Stream, message: &Value) {
        let known = message["data"]["metrics"] == json!(["perplexity"]);
        let (kind, data) = match (known, self.fault) {
            (false, Fault::IgnoresBadEvaluation) => return,
            (false, _) => ("evaluation_failed", json!({"error": "no such metric"})),
            (true, Fault::NoPerplexity) => ("evaluation_completed", json!({"metrics": {}})),
            (true, _) => (
                "evaluation_completed",
                json!({"metrics": {"perplexity": 12.5}}),
            ),
        };
        let id = &message["evaluation_id"];
        say(
            stream,
            json!({"type": kind, "evaluation_id": id, "data": data}),
        )
        .await;
    }
}
