//! Memory and service while peers flood or do not read.

use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
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

/// Those who send a message in fragments without end.
const SENDERS: usize = 8;
const MAX_GROWTH_OF_FRAGMENTS_MIB: u64 = 10;
/// Who may send for so long may send for ever.
const NO_END: Duration = Duration::from_secs(60);

/// A message in empty fragments without end costs no memory, and its sender the connection.
#[tokio::test]
async fn g030_memory_stays_flat_under_fragments_without_end() {
    let platform = Platform::start_with(&[("LOG", "warn")]).await;
    let admin = platform.admin().await;
    // What a connection needs is there before.
    send_fragments(platform.address());
    let before = platform.process().peak_memory_mib();
    let senders: Vec<_> = (0..SENDERS)
        .map(|_| {
            let address = platform.address().to_owned();
            std::thread::spawn(move || send_fragments(&address))
        })
        .collect();
    for sender in senders {
        sender.join().expect("the sender is cut off");
    }
    let growth = platform.process().peak_memory_mib().saturating_sub(before);
    assert!(
        growth < MAX_GROWTH_OF_FRAGMENTS_MIB,
        "{growth} MiB more than before"
    );
    admin.get("/api/me").await.ok();
}

/// Sends a message in empty fragments until the connection ends.
fn send_fragments(address: &str) {
    let mut socket = TcpStream::connect(address).expect("the platform is there");
    let head = format!(
        "GET /ws/worker?worker_uuid={} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        Uuid::new_v4()
    );
    socket.write_all(head.as_bytes()).expect("it is taken");
    let mut answer = [0; 12];
    socket.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 101");
    // Text, not the last fragment, one byte; then continuations of none. All are masked with zeros.
    let begun = socket.write_all(&[0x01, 0x81, 0, 0, 0, 0, b'x']);
    begun.expect("it is taken");
    let many = [0x00, 0x80, 0, 0, 0, 0].repeat(1_000);
    let begun = Instant::now();
    while socket.write_all(&many).is_ok() {
        assert!(begun.elapsed() < NO_END, "fragments are read on and on");
    }
}
