//! Memory and service while peers flood or do not read.

use serde_json::json;
use std::time::{Duration, Instant};
use trainyard_tests::scripted_worker::open;
use trainyard_tests::{Platform, ScriptedWorker, Socket, dataset, eventually};
use uuid::Uuid;

const WORKERS: usize = 4;
const DASHBOARDS: usize = 40;
const UPDATES: u64 = 3_000;
const STRANGERS: usize = 200;
/// Were all updates kept for all dashboards, it would be some 200 MiB.
const MAX_GROWTH_MIB: u64 = 96;

async fn subscribed(platform: &Platform, admin: &trainyard_tests::Client, jobs: &[i64]) -> Socket {
    let mut dashboard = platform.dashboard(admin).await;
    for job_id in jobs {
        dashboard
            .send(json!({"type": "subscribe_job", "job_id": job_id}))
            .await;
    }
    dashboard
}

/// Promise P6.
#[tokio::test]
async fn g032_memory_stays_bounded_while_dashboards_do_not_read_and_updates_pour_in() {
    let platform =
        Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "60"), ("LOG", "warn")]).await;
    let admin = platform.admin().await;
    let dataset_id = admin.dataset("chats", &dataset::chats(4)).await;
    let (mut workers, mut jobs) = (Vec::new(), Vec::new());
    for _ in 0..WORKERS {
        let mut worker = ScriptedWorker::enrol(&platform, &admin).await;
        let job = json!({
            "dataset_id": dataset_id, "base_model": {"huggingface_id": "yard/tiny"},
            "config": {}, "worker_id": worker.identity.id
        });
        jobs.push(admin.job(job).await);
        worker.take_job().await;
        workers.push(worker);
    }
    let mut reading = subscribed(&platform, &admin, &jobs).await;
    let mut strangers = Vec::new();
    for _ in 0..STRANGERS {
        strangers.push(open(&platform, &Uuid::new_v4().to_string()).await);
    }
    let before = platform.process().peak_memory_mib();
    let mut asleep = Vec::new();
    for _ in 0..DASHBOARDS {
        asleep.push(subscribed(&platform, &admin, &jobs).await);
    }

    for step in 1..=UPDATES {
        for (worker, job_id) in workers.iter_mut().zip(&jobs) {
            let data = json!({
                "epoch": 1, "step": step, "total_steps": UPDATES, "loss": 1.0 / step as f64,
                "learning_rate": 0.0001, "grad_norm": 1.5, "throughput": 3.25, "token_throughput": 812.5
            });
            worker.say("training_progress", *job_id, data).await;
        }
    }
    let sent_at = Instant::now();
    for job_id in &jobs {
        eventually("the last step to be shown", async || {
            let job = admin.get(&format!("/api/jobs/{job_id}")).await.ok();
            (job["progress"]["step"] == UPDATES).then_some(())
        })
        .await;
    }
    let growth = platform.process().peak_memory_mib().saturating_sub(before);
    assert!(growth < MAX_GROWTH_MIB, "{growth} MiB more than before");

    // Whoever reads is told the newest state, whatever the others do.
    let mut left = jobs.clone();
    while !left.is_empty() {
        let (update, _) = reading
            .receive_until(|message| message["data"]["step"] == UPDATES)
            .await;
        left.retain(|job_id| update["job_id"] != *job_id);
    }
    assert!(
        sent_at.elapsed() < Duration::from_secs(60),
        "the flood held up the others for {:?}",
        sent_at.elapsed()
    );
    for worker in &mut workers {
        worker.heartbeat("training").await;
    }
    drop((asleep, strangers));
}
