//! What is played to the worker, part after part. Nothing is judged here: whatever comes is in the story.

pub mod inference;

use std::time::Duration;

use serde_json::{Value, json};

use super::files::{MISSING, ROWS};
use super::host::Host;
use super::story::{Act, Event};
use super::{Pace, Timings};

/// Optimizer steps between two checkpoints of the short job.
pub const SAVE_STEPS: u64 = 2;
/// So many in jobs in which no checkpoint is wanted before they are stopped.
const NEVER: u64 = 1_000_000;
/// The job of [`Act::ShortJob`].
pub const SHORT_JOB: i64 = 101;
/// The job of [`Act::LongJob`].
pub const LONG_JOB: i64 = 102;
/// The job of [`Act::LostData`].
pub const LOST_DATA: i64 = 103;
/// The job of [`Act::BadJob`].
pub const BAD_JOB: i64 = 104;
/// The job of [`Act::BusyCut`].
pub const CUT_JOB: i64 = 105;
/// How often the worker is turned away in [`Act::Refusals`].
pub const REFUSALS: usize = 4;

/// Epochs of a job that is to be stopped before its end.
const MANY_EPOCHS: u64 = 20_000;
/// Steps that are waited for before something happens to a running job.
const SOME_STEPS: u64 = 3;

/// Plays everything.
pub struct Stage<'a> {
    /// The played platform.
    pub host: &'a Host,
    /// The base model of jobs.
    pub model: &'a str,
    /// How long is waited.
    pub pace: &'a Pace,
}

impl Stage<'_> {
    /// Plays all parts in order, as far as the worker comes.
    pub async fn play(&self) {
        if !self.join().await {
            return;
        }
        self.idle().await;
        self.ping().await;
        self.nonsense().await;
        self.short_job().await;
        self.long_job().await;
        self.lost_data().await;
        self.bad_job().await;
        self.chats().await;
        self.evaluations().await;
        self.cut_while_idle().await;
        self.cut_while_busy().await;
        self.refuse().await;
    }

    fn begin(&self, act: Act) -> usize {
        self.host.story.note(Event::Began(act));
        self.host.story.now()
    }

    fn end(&self, act: Act) {
        self.host.story.note(Event::Ended(act));
    }

    async fn heard(&self, from: usize, wanted: impl Fn(&Value) -> bool) -> Option<Value> {
        let within = self.pace.answer_within;
        self.host.story.until_heard(from, within, wanted).await
    }

    async fn join(&self) -> bool {
        let from = self.begin(Act::Join);
        let story = &self.host.story;
        let joined = story
            .until_heard(from, self.pace.connect_within, |message| {
                message["type"] == "worker_register"
            })
            .await
            .is_some();
        if joined {
            let timings = &self.pace.timings;
            let within = timings.heartbeat_interval.max(timings.metrics_interval) * 2;
            let within = within + self.pace.answer_within;
            for kind in ["heartbeat", "worker_metrics"] {
                story
                    .until_heard(from, within, |message| message["type"] == kind)
                    .await;
            }
        }
        self.end(Act::Join);
        joined
    }

    async fn idle(&self) {
        if self.pace.slow {
            self.begin(Act::Idle);
            tokio::time::sleep(self.pace.timings.some_heartbeats()).await;
            self.end(Act::Idle);
        }
    }

    /// Sends a `ping` and waits for the `pong`.
    async fn pinged(&self) {
        let from = self.host.story.now();
        let id = format!("ping-{from}");
        self.host.say(json!({"type": "ping", "ping_id": id}));
        self.heard(from, |message| message["type"] == "pong").await;
    }

    async fn ping(&self) {
        self.begin(Act::Ping);
        self.pinged().await;
        self.end(Act::Ping);
    }

    /// What cannot be understood, each followed by a ping which shows that the worker is still there.
    async fn nonsense(&self) {
        self.begin(Act::UnknownType);
        self.host
            .say(json!({"type": "of_a_later_version", "data": {"x": 1}}));
        self.pinged().await;
        self.end(Act::UnknownType);

        self.begin(Act::Malformed);
        self.host.say_text("{\"type\": \"ping\", ");
        self.pinged().await;
        self.end(Act::Malformed);

        let from = self.begin(Act::UnknownField);
        self.host
            .say(json!({"type": "ping", "of_a_later_version": [1, 2]}));
        self.heard(from, |message| message["type"] == "pong").await;
        self.end(Act::UnknownField);
    }

    /// A data set as the source document spells it.
    fn dataset(&self, file: &str) -> Value {
        json!({
            "storage_path": format!("datasets/42/{file}"),
            "download_url": self.host.files.url(file),
            "format": "jsonl",
            "id": 42
        })
    }

    /// A job as the source document spells it.
    fn start_training(&self, job: i64, file: &str, (epochs, save_steps): (u64, u64)) -> Value {
        json!({
            "type": "start_training",
            "job_id": job,
            "attempt": 1,
            "data": {
                "dataset": self.dataset(file),
                "base_model": {"huggingface_id": self.model},
                "config": {
                    "epochs": epochs, "batch_size": 2, "learning_rate": 0.0002, "max_length": 64,
                    "mixed_precision": "bf16", "use_peft": true, "lora_r": 4,
                    "save_steps": save_steps, "logging_steps": 1
                },
                "output_path": format!("models/job-{job}/")
            }
        })
    }

    /// Waits for the end of a job.
    async fn ended(&self, from: usize, job: i64, within: Duration) {
        let story = &self.host.story;
        story
            .until_heard(from, within, |message| is_end(message, job))
            .await;
    }

    /// Waits until a job has reported some steps. False where it has not.
    async fn under_way(&self, from: usize, job: i64) -> bool {
        let story = &self.host.story;
        let is_step = |message: &Value| {
            message["type"] == "training_progress"
                && message["job_id"] == job
                && message["data"]["step"].as_u64() >= Some(SOME_STEPS)
                || is_end(message, job)
        };
        let heard = story
            .until_heard(from, self.pace.train_within, is_step)
            .await;
        heard.is_some_and(|message| !is_end(&message, job))
    }

    async fn short_job(&self) {
        let from = self.begin(Act::ShortJob);
        self.host
            .say(self.start_training(SHORT_JOB, ROWS, (3, SAVE_STEPS)));
        self.ended(from, SHORT_JOB, self.pace.train_within).await;
        // What comes after the end would come at once.
        self.pinged().await;
        self.end(Act::ShortJob);
    }

    async fn long_job(&self) {
        let from = self.begin(Act::LongJob);
        let start = self.start_training(LONG_JOB, ROWS, (MANY_EPOCHS, NEVER));
        self.host.say(start.clone());
        self.host.say(start);
        if self.under_way(from, LONG_JOB).await {
            self.pinged().await;
            if self.pace.slow {
                tokio::time::sleep(self.pace.timings.some_heartbeats()).await;
            }
            self.stop(LONG_JOB).await;
            self.pinged().await;
        }
        self.end(Act::LongJob);
    }

    async fn stop(&self, job: i64) {
        let from = self.host.story.now();
        self.host
            .say(json!({"type": "stop_training", "job_id": job}));
        self.ended(from, job, self.pace.train_within).await;
    }

    async fn lost_data(&self) {
        let from = self.begin(Act::LostData);
        self.host
            .say(self.start_training(LOST_DATA, MISSING, (1, SAVE_STEPS)));
        self.ended(from, LOST_DATA, self.pace.train_within).await;
        self.end(Act::LostData);
    }

    async fn bad_job(&self) {
        let from = self.begin(Act::BadJob);
        let mut start = self.start_training(BAD_JOB, ROWS, (1, SAVE_STEPS));
        if let Some(data) = start["data"].as_object_mut() {
            data.remove("dataset");
        }
        self.host.say(start);
        self.ended(from, BAD_JOB, self.pace.answer_within).await;
        self.end(Act::BadJob);
    }

    /// Cuts the connection and waits until the worker has registered again. False where it does not.
    async fn back_after_cut(&self) -> bool {
        let from = self.host.story.now();
        self.host.cut();
        self.back_since(from, Duration::ZERO).await
    }

    async fn back_since(&self, from: usize, longer: Duration) -> bool {
        let within = self.pace.timings.reconnect_delay * 2 + longer + self.pace.answer_within;
        let registered = |message: &Value| message["type"] == "worker_register";
        let story = &self.host.story;
        story.until_heard(from, within, registered).await.is_some()
    }

    async fn cut_while_idle(&self) {
        self.begin(Act::IdleCut);
        self.back_after_cut().await;
        self.end(Act::IdleCut);
    }

    async fn cut_while_busy(&self) {
        let from = self.begin(Act::BusyCut);
        self.host
            .say(self.start_training(CUT_JOB, ROWS, (MANY_EPOCHS, NEVER)));
        if self.under_way(from, CUT_JOB).await && self.back_after_cut().await {
            // The platform asks what became of the job.
            self.pinged().await;
            self.heard(self.host.story.now(), |message| {
                message["type"] == "training_progress"
            })
            .await;
            self.stop(CUT_JOB).await;
        }
        self.end(Act::BusyCut);
    }

    async fn refuse(&self) {
        if !self.pace.slow {
            return;
        }
        self.begin(Act::Refusals);
        self.host.refuse(true);
        let mut from = self.host.story.now();
        self.host.cut();
        for refusal in 0..REFUSALS {
            let within = self.pace.timings.delay_before(refusal) * 2 + self.pace.answer_within;
            let tried = |event: &Event| *event == Event::Tried;
            if self.host.story.until(from, within, tried).await.is_none() {
                break;
            }
            from = self.host.story.now();
        }
        self.host.refuse(false);
        let longest = self.pace.timings.delay_before(REFUSALS);
        if self.back_since(from, longest * 2).await {
            // The delay has to be the first one again.
            self.back_after_cut().await;
        }
        self.end(Act::Refusals);
    }
}

/// Whether a message ends a job.
pub fn is_end(message: &Value, job: i64) -> bool {
    let ends = ["job_completed", "job_failed", "job_stopped"];
    message["job_id"] == job
        && message["type"]
            .as_str()
            .is_some_and(|kind| ends.contains(&kind))
}

impl Timings {
    /// Long enough that a missing heartbeat is noticed.
    fn some_heartbeats(&self) -> Duration {
        self.heartbeat_interval * 3 + self.tolerance * 2
    }

    /// The delay before the try that comes after so many failures, without jitter.
    pub fn delay_before(&self, failures: usize) -> Duration {
        let doublings = u32::try_from(failures).unwrap_or(u32::MAX).min(16);
        (self.reconnect_delay * 2_u32.pow(doublings)).min(self.longest_reconnect_delay)
    }
}
