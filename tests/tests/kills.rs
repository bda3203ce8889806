//! kill -9 at random moments (given case G043): what was acknowledged is there afterwards, files are whole, nothing
//! stays without an owner, and every restart works.
//!
//! `KILL_RUNS=1000` runs more of them, `KILL_SEED=n` picks the same moments again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use trainyard_tests::model::TINY_MODEL_ID;
use trainyard_tests::scripted_worker::{Identity, job_with_status};
use trainyard_tests::seeded::number;
use trainyard_tests::socket::Received;
use trainyard_tests::{
    Client, DEADLINE, Platform, ScriptedWorker, Seeded, Socket, TinyModel, Worker, dataset,
    eventually,
};
use uuid::Uuid;

/// Kills of the platform; the worker is killed a quarter as often.
const RUNS: u64 = 80;

fn runs() -> u64 {
    number("KILL_RUNS").unwrap_or(RUNS)
}

/// What the platform has confirmed so far.
#[derive(Default)]
struct Confirmed {
    /// Data sets, by id: their digest.
    datasets: BTreeMap<i64, String>,
    jobs: BTreeSet<i64>,
    /// Acknowledged messages: job, type and step.
    messages: Vec<(i64, String, u64)>,
}

/// A worker that plays one job after another, and says again what was not acknowledged.
struct Player {
    identity: Identity,
    /// The job that it plays, and what it has yet to say about it, in order.
    job: Option<i64>,
    unsaid: Vec<Value>,
}

impl Player {
    fn take(&mut self, start: &Value) {
        let job = start["job_id"].as_i64().expect("a job has an id");
        let attempt = &start["attempt"];
        let message = |kind: &str, data: Value| {
            json!({
                "type": kind, "job_id": job, "attempt": attempt,
                "message_id": Uuid::new_v4().to_string(), "data": data
            })
        };
        let checkpoint = |step: u64| {
            let path = format!("checkpoints/job-{job}/step-{step}/");
            message(
                "checkpoint_saved",
                json!({"step": step, "path": path, "metrics": {}}),
            )
        };
        if self.job != Some(job) {
            self.job = Some(job);
            self.unsaid = vec![
                message("job_started", json!({"total_steps": 4})),
                checkpoint(2),
                checkpoint(4),
                message(
                    "job_completed",
                    json!({"total_steps": 4, "final_loss": 0.5}),
                ),
            ];
        }
    }

    /// Plays until the connection breaks, or for ever.
    async fn play(&mut self, platform: &str, confirmed: &mut Confirmed) {
        let path = format!("/ws/worker?worker_uuid={}", self.identity.uuid);
        let Some(mut socket) = Socket::try_open(platform, &path).await else {
            return;
        };
        let uuid = &self.identity.uuid;
        let hello =
            json!({"type": "authenticate", "api_key": self.identity.key, "worker_uuid": uuid});
        if !socket.try_send(hello).await {
            return;
        }
        while let Some(Received::Json(message)) = socket.next_within(DEADLINE).await {
            let mut answers = Vec::new();
            match message["type"].as_str().unwrap_or_default() {
                "authenticated" => {
                    answers
                        .push(json!({"type": "worker_register", "data": {"worker_type": "both"}}));
                    answers.push(json!({
                        "type": "heartbeat", "status": if self.job.is_some() { "training" } else { "idle" },
                        "current_job_id": self.job
                    }));
                    answers.extend(self.unsaid.first().cloned());
                }
                "ping" => answers.push(json!({
                    "type": "pong", "busy": self.job.is_some(), "current_job_id": self.job
                })),
                "start_training" => {
                    self.take(&message);
                    answers.extend(self.unsaid.first().cloned());
                }
                "ack" => {
                    assert_eq!(
                        message["message_id"], self.unsaid[0]["message_id"],
                        "{message}"
                    );
                    let said = self.unsaid.remove(0);
                    let kind = said["type"].as_str().expect("a type").to_owned();
                    let step = said["data"]["step"].as_u64().unwrap_or(0);
                    let job = said["job_id"].as_i64().expect("a job");
                    confirmed.messages.push((job, kind, step));
                    if self.unsaid.is_empty() {
                        self.job = None;
                        answers.push(json!({"type": "heartbeat", "status": "idle"}));
                    }
                    answers.extend(self.unsaid.first().cloned());
                }
                "error" => panic!("refused: {message}"),
                _ => {}
            }
            for answer in answers {
                if !socket.try_send(answer).await {
                    return;
                }
            }
        }
    }
}

/// Uploads data sets and submits jobs until the platform is gone.
async fn use_platform(client: &Client, mark: &str, confirmed: &mut Confirmed) {
    for count in 0.. {
        let lines = dataset::chats(3 + count % 5);
        let name = format!("{mark}-{count}");
        let path = format!("/api/datasets?format=jsonl&name={name}");
        let upload = client.request(Method::POST, &path).body(lines.clone());
        let Some(answer) = client.try_send(upload).await else {
            return;
        };
        let dataset_id = answer.ok()["id"].as_i64().expect("a data set has an id");
        let digest = hex::encode(Sha256::digest(&lines));
        confirmed.datasets.insert(dataset_id, digest);
        let job = json!({
            "dataset_id": dataset_id, "base_model": {"huggingface_id": TINY_MODEL_ID},
            "config": {"epochs": 1}
        });
        let submit = client.request(Method::POST, "/api/jobs").json(&job);
        let Some(answer) = client.try_send(submit).await else {
            return;
        };
        confirmed
            .jobs
            .insert(answer.ok()["id"].as_i64().expect("a job has an id"));
    }
}

/// The digests of all files that are stored.
fn stored_digests(folder: &Path, digests: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() {
            stored_digests(&path, digests);
        } else {
            let content = std::fs::read(&path).expect("the file can be read");
            digests.insert(hex::encode(Sha256::digest(content)));
        }
    }
}

/// All items of a list that may have several pages.
async fn all(client: &Client, path: &str) -> Vec<Value> {
    let mut items = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = client.get(&format!("{path}?limit=200{cursor}")).await.ok();
        items.extend(page["items"].as_array().expect("a list").iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return items,
        }
    }
}

/// Whatever was confirmed is there, and whatever is there is whole.
async fn check(platform: &Platform, client: &Client, confirmed: &Confirmed) {
    let mut digests = BTreeSet::new();
    stored_digests(&platform.data_dir().join("storage"), &mut digests);
    let datasets = all(client, "/api/datasets").await;
    for dataset in &datasets {
        let digest = dataset["sha256"].as_str().expect("a digest");
        assert!(
            digests.contains(digest),
            "listed, and not stored whole: {dataset}"
        );
    }
    for (id, digest) in &confirmed.datasets {
        let there = datasets
            .iter()
            .any(|d| d["id"] == *id && d["sha256"] == digest.as_str());
        assert!(there, "data set {id} was confirmed and is not there");
    }
    let jobs = all(client, "/api/jobs").await;
    for id in &confirmed.jobs {
        assert!(
            jobs.iter().any(|job| job["id"] == *id),
            "job {id} was confirmed and is not there"
        );
    }
}

/// Every acknowledged message has left its mark.
async fn check_messages(client: &Client, messages: &[(i64, String, u64)]) {
    for (job, kind, step) in messages {
        let status = client.get(&format!("/api/jobs/{job}")).await.ok()["status"].clone();
        match kind.as_str() {
            "job_started" => assert!(
                status == "running" || status == "completed",
                "job {job}: {status}"
            ),
            "job_completed" => assert_eq!(status, "completed", "job {job}"),
            _ => {
                let listed = client
                    .get(&format!("/api/jobs/{job}/checkpoints"))
                    .await
                    .ok();
                let mut items = listed["items"].as_array().expect("a list").iter();
                assert!(
                    items.any(|item| item["step"] == *step),
                    "job {job}, step {step}: {listed}"
                );
            }
        }
    }
}

#[tokio::test]
async fn g043_platform_killed_at_any_moment_keeps_what_it_confirmed_and_starts_again() {
    let mut random = Seeded::from_environment("KILL_SEED");
    let mut platform = Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "60")]).await;
    let admin = platform.admin().await;
    let enrolled = ScriptedWorker::enrol(&platform, &admin).await;
    let mut player = Player {
        identity: enrolled.identity.clone(),
        job: None,
        unsaid: Vec::new(),
    };
    enrolled.socket.close().await;
    let mut confirmed = Confirmed::default();
    for run in 0..runs() {
        let first_new = confirmed.messages.len();
        let moment = random.moment(Duration::from_millis(250));
        let (mut by_player, mut by_user) = (Confirmed::default(), Confirmed::default());
        let address = platform.address().to_owned();
        let mark = format!("run-{run}");
        let life = async {
            tokio::join!(
                player.play(&address, &mut by_player),
                use_platform(&admin, &mark, &mut by_user),
            )
        };
        let death = async {
            // The moment is what is being tested; nothing is waited for.
            tokio::time::sleep(moment).await;
            platform.crash().await;
        };
        tokio::join!(life, death);
        confirmed.messages.extend(by_player.messages);
        confirmed.datasets.extend(by_user.datasets);
        confirmed.jobs.extend(by_user.jobs);

        platform.restart().await;
        check(&platform, &admin, &confirmed).await;
        check_messages(&admin, &confirmed.messages[first_new..]).await;
    }

    // And then everything comes to its end.
    let address = platform.address().to_owned();
    let mut by_player = Confirmed::default();
    let ended = eventually("all jobs to be completed", || async {
        let jobs = all(&admin, "/api/jobs").await;
        jobs.iter()
            .all(|job| job["status"] == "completed")
            .then_some(jobs.len())
    });
    let count = tokio::select! {
        count = ended => count,
        () = player.play(&address, &mut by_player) => panic!("the connection broke without a kill"),
    };
    assert!(count >= confirmed.jobs.len());
    check_messages(&admin, &confirmed.messages).await;
}

#[tokio::test]
async fn worker_killed_at_any_moment_goes_on_from_its_checkpoints_to_the_end() {
    let mut random = Seeded::from_environment("KILL_SEED");
    let platform = Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "60")]).await;
    let admin = platform.admin().await;
    let models = TinyModel::create();
    let key = admin.enrollment_key(json!({"max_uses": 1})).await;
    let mut worker = Worker::start(&platform, &models, &key);
    worker.ready(&admin).await;
    let dataset_id = admin.dataset("chats", &dataset::chats(2_000)).await;
    let job_id = admin
        .job(json!({
            "dataset_id": dataset_id, "base_model": {"huggingface_id": TINY_MODEL_ID}, "max_retries": 10,
            "config": {"epochs": 1, "batch_size": 4, "packing": false, "save_steps": 5}
        }))
        .await;
    let path = format!("/api/jobs/{job_id}");
    for _ in 0..runs() / 4 {
        let job = eventually("the job to be with the worker", || async {
            let job = admin.get(&path).await.ok();
            let status = job["status"].as_str().expect("a status").to_owned();
            if status == "failed" {
                // Its retries are used up: a person lets it go on.
                admin.post(&format!("{path}/resume"), json!({})).await.ok();
            }
            (status == "running" || status == "completed").then_some(job)
        })
        .await;
        if job["status"] == "completed" {
            break;
        }
        tokio::time::sleep(random.moment(Duration::from_millis(1_500))).await;
        worker.crash_and_restart().await;
    }
    eventually(
        "the job to be with the worker again or at its end",
        || async {
            let job = admin.get(&path).await.ok();
            if job["status"] == "failed" {
                admin.post(&format!("{path}/resume"), json!({})).await.ok();
            }
            (job["status"] == "running" || job["status"] == "completed").then_some(())
        },
    )
    .await;
    admin.post(&format!("{path}/stop"), json!({})).await;
    let job = eventually("the job to end", || async {
        let job = admin.get(&path).await.ok();
        let status = job["status"].as_str().expect("a status").to_owned();
        (["stopped", "completed"].contains(&status.as_str())).then_some(job)
    })
    .await;

    // One failure for each attempt that a kill ended, and every checkpoint that is listed as whole is whole.
    let events = all(&admin, &format!("{path}/events")).await;
    let mut ended = BTreeSet::new();
    for event in &events {
        let kind = event["kind"].as_str().expect("a kind");
        if ["failed", "retried", "stopped", "completed"].contains(&kind) {
            let attempt = event["attempt"].as_i64().expect("an attempt");
            assert!(
                ended.insert(attempt),
                "attempt {attempt} ended twice: {events:?}"
            );
        }
    }
    assert!(
        ended.contains(&job["attempt"].as_i64().expect("an attempt")),
        "{job}"
    );
    let mut digests = BTreeSet::new();
    stored_digests(&platform.data_dir().join("storage"), &mut digests);
    let files = admin.get(&format!("{path}/artifacts")).await.ok();
    for file in files["items"].as_array().expect("a list") {
        let digest = file["sha256"].as_str().expect("our worker names its files");
        assert!(digests.contains(digest), "{file}");
    }
    worker.ready(&admin).await;
    let again = admin.dataset("few", &dataset::chats(4)).await;
    let short = json!({
        "dataset_id": again, "base_model": {"huggingface_id": TINY_MODEL_ID}, "config": {"epochs": 1}
    });
    let short_id = admin.job(short).await;
    job_with_status(&admin, short_id, "completed").await;
}
