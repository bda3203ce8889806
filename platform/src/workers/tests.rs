//! Workers' connections over real sockets.

use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;
use uuid::Uuid;

use crate::testing::Platform;
use crate::testing::sockets::{Came, DEADLINE, SHORT, Socket, TestWorker, authenticate};

mod first_message;
mod keys;

const CALM: &[(&str, &str)] = &[("WORKER_HEARTBEAT_TIMEOUT", "60")];

fn statuses(updates: &[Value]) -> Vec<&str> {
    updates
        .iter()
        .filter(|update| update["type"] == "worker_update")
        .filter_map(|update| update["data"]["status"].as_str())
        .collect()
}

#[actix_web::test]
async fn g001_the_late_end_of_a_replaced_connection_changes_nothing() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut dashboard = admin.dashboard().await;
    let first = TestWorker::ready(&admin).await;
    let mut second = first.again(&platform).await;
    second.register().await;
    first.socket.reset();

    let job = admin.job(json!({"worker_id": second.id})).await;
    assert_eq!(second.take_job().await, job);
    second
        .say_acked("job_completed", job, json!({"final_loss": 0.5}))
        .await;
    let sent = second.everything_sent().await;
    assert!(
        !sent
            .iter()
            .any(|message| message["type"] == "start_training"),
        "{sent:?}"
    );
    let updates = dashboard
        .collect_until(|message| message["type"] == "job_completed")
        .await;
    assert!(!statuses(&updates).contains(&"offline"), "{updates:?}");
    let (_, worker) = admin.get(&format!("/api/workers/{}", second.id)).await;
    assert_eq!(worker["online"], true);
}

#[actix_web::test]
async fn g002_of_two_connections_of_one_identity_the_newer_is_the_only_one() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut first = TestWorker::ready(&admin).await;
    let mut second = first.again(&platform).await;
    assert_eq!(first.socket.closed().await, Some(4409));
    second.register().await;
    let job = admin.job(json!({})).await;
    let start = second.receive_job().await;
    assert_eq!(
        (start["job_id"].as_i64(), start["attempt"].as_i64()),
        (Some(job), Some(1))
    );
    let kinds = admin.event_kinds(job).await;
    assert_eq!(kinds.iter().filter(|kind| *kind == "assigned").count(), 1);
}

#[actix_web::test]
async fn g003_a_newcomer_is_let_in_while_the_old_link_is_silently_dead() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    // Nobody reads or writes it any more, and nothing closes it.
    let dead = TestWorker::ready(&admin).await;
    let mut second = dead.again(&platform).await;
    second.register().await;
    let job = admin.job(json!({})).await;
    assert_eq!(second.receive_job().await["job_id"], job);
}

#[actix_web::test]
async fn a_worker_may_register_again_on_its_connection() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    worker.register().await;
    let job = admin.job(json!({})).await;
    assert_eq!(worker.take_job().await, job);
}

#[actix_web::test]
async fn g005_a_worker_that_has_not_registered_is_shown_as_such_and_given_nothing() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::enrol(&admin).await;
    admin.wait_for_worker(worker.id, "online").await;
    let job = admin.job(json!({})).await;
    let (_, shown) = admin.get(&format!("/api/jobs/{job}")).await;
    assert_eq!(shown["status"], "queued");
    assert!(shown["waiting_because"].is_string(), "{shown}");
    assert_eq!(worker.everything_sent().await, Vec::<Value>::new());
    worker.register().await;
    assert_eq!(worker.receive_job().await["job_id"], job);
}

#[actix_web::test]
async fn g007_pong_frames_are_no_sign_of_life() {
    let platform = Platform::start(SHORT).await;
    let admin = platform.admin().await;
    let mut dashboard = admin.dashboard().await;
    let mut worker = TestWorker::ready(&admin).await;
    // Reading makes the client answer every ping of the WebSocket layer.
    worker.socket.receive("ping").await;
    let updates = dashboard
        .collect_until(|update| update["data"]["status"] == "offline")
        .await;
    assert_eq!(
        statuses(&updates)
            .iter()
            .filter(|status| **status == "offline")
            .count(),
        1
    );
    assert_eq!(worker.socket.closed().await, Some(4408));
    admin.wait_for_worker(worker.id, "offline").await;
}

#[actix_web::test]
async fn a_worker_that_answers_the_ping_is_not_lost() {
    let platform = Platform::start(SHORT).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    for _ in 0..3 {
        worker.socket.receive("ping").await;
        worker.pong(None).await;
    }
    let (_, shown) = admin.get(&format!("/api/workers/{}", worker.id)).await;
    assert_eq!(shown["status"], "idle");
}

#[actix_web::test]
async fn g009_a_worker_s_own_clock_decides_nothing() {
    let platform = Platform::start(SHORT).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let job = admin.job(json!({})).await;
    worker.take_job().await;
    for timestamp in ["2099-01-01T00:00:00Z", "1999-01-01T00:00:00Z", "not-a-date"] {
        worker
            .socket
            .send(json!({"type": "heartbeat", "status": "training", "timestamp": timestamp}))
            .await;
        worker
            .socket
            .send(json!({
                "type": "training_progress", "job_id": job, "timestamp": timestamp, "data": {"step": 1}
            }))
            .await;
    }
    admin
        .wait(&format!("/api/jobs/{job}"), |job| {
            job["progress"]["step"] == 1
        })
        .await;
    // The heartbeats of the future do not keep it alive.
    admin.wait_for_job(job, "failed").await;
}

#[actix_web::test]
async fn out_of_state_and_wrongly_named_messages_are_refused_and_change_nothing() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::enrol(&admin).await;
    let mut fresh = Socket::open(
        &platform,
        &format!("/ws/worker?worker_uuid={}", Uuid::new_v4()),
    )
    .await
    .unwrap();
    fresh
        .send(json!({"type": "heartbeat", "status": "idle"}))
        .await;
    let error = fresh.receive("error").await;
    assert_eq!(
        (error["code"].as_str(), error["in_reply_to"].as_str()),
        (Some("not_authenticated"), Some("heartbeat"))
    );
    worker.heartbeat("idle").await;
    assert_eq!(
        worker.socket.receive("error").await["code"],
        "not_registered"
    );
    worker.register().await;
    let named = json!({"type": "heartbeat", "status": "idle", "worker_id": Uuid::new_v4()});
    worker.socket.send(named).await;
    assert_eq!(worker.socket.receive("error").await["code"], "wrong_worker");
    let short = json!({"type": "heartbeat", "status": "idle", "worker_id": &worker.uuid[..8]});
    worker.socket.send(short).await;
    worker.socket.send(json!({"type": "no_such_thing"})).await;
    assert_eq!(worker.socket.receive("error").await["code"], "unknown_type");
    assert_eq!(worker.everything_sent().await, Vec::<Value>::new());
}

#[actix_web::test]
async fn twenty_refused_messages_within_a_minute_close_the_connection() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    for number in 0..20 {
        worker.socket.send_text("{").await;
        assert_eq!(
            worker.socket.receive("error").await["code"],
            "invalid_message",
            "{number}"
        );
    }
    assert_eq!(worker.socket.closed().await, Some(4400));
}

#[actix_web::test]
async fn frames_that_are_not_spoken_close_with_their_code() {
    use tokio_tungstenite::tungstenite::Message;
    use tokio_tungstenite::tungstenite::protocol::frame::Frame;
    use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let large = "x".repeat((1 << 20) + 1);
    let not_utf8 = Frame::message(vec![0xff, 0xfe], OpCode::Data(Data::Text), true);
    for (message, code) in [
        (Message::binary(vec![1, 2]), 1003),
        (Message::text(large), 1009),
        (Message::Frame(not_utf8), 1007),
    ] {
        let mut worker = TestWorker::ready(&admin).await;
        // The platform may have closed before all of it is sent.
        let _ = futures_util::SinkExt::send(&mut worker.socket.stream, message).await;
        assert_eq!(worker.socket.closed().await, Some(code));
    }
}

#[actix_web::test]
async fn g031_a_message_just_under_the_limit_is_taken() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let job = admin.job(json!({})).await;
    worker.take_job().await;
    let error = "y".repeat(100_000);
    worker
        .say_acked("job_failed", job, json!({"error": error}))
        .await;
    assert_eq!(
        admin.wait_for_job(job, "failed").await["error"],
        error.as_str()
    );
    let padding = "z".repeat(1_000_000);
    worker
        .socket
        .send(json!({"type": "heartbeat", "status": "idle", "padding": padding}))
        .await;
    assert_eq!(worker.everything_sent().await, Vec::<Value>::new());
}

#[actix_web::test]
async fn the_address_must_name_a_uuid_and_the_message_the_same() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    for path in [
        "/ws/worker",
        "/ws/worker?worker_uuid=",
        "/ws/worker?worker_uuid=abc",
    ] {
        assert_eq!(
            Socket::open(&platform, path).await.err(),
            Some(400),
            "{path}"
        );
    }
    let (status, _) = admin
        .get(&format!("/ws/worker?worker_uuid={}", Uuid::new_v4()))
        .await;
    assert_eq!(status, 400, "no upgrade");
    let worker = TestWorker::ready(&admin).await;
    let path = format!("/ws/worker?worker_uuid={}", Uuid::new_v4());
    let mut socket = Socket::open(&platform, &path).await.unwrap();
    socket
        .send(json!({"type": "authenticate", "api_key": worker.key, "worker_uuid": worker.uuid}))
        .await;
    socket.receive("auth_failed").await;
    assert_eq!(socket.closed().await, Some(4401));
    // A key that is no string fails likewise, and so does one of another worker.
    for (key, uuid) in [
        (json!(5), worker.uuid.clone()),
        (json!(worker.key), Uuid::new_v4().to_string()),
    ] {
        let path = format!("/ws/worker?worker_uuid={uuid}");
        let mut socket = Socket::open(&platform, &path).await.unwrap();
        socket
            .send(json!({"type": "authenticate", "api_key": key, "worker_uuid": uuid}))
            .await;
        socket.receive("auth_failed").await;
        assert_eq!(socket.closed().await, Some(4401));
    }
}

#[actix_web::test]
async fn workers_are_renamed_and_drained_by_administrators_only() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let member = platform.user("member@example.org", "member").await;
    let mut worker = TestWorker::ready(&admin).await;
    let path = format!("/api/workers/{}", worker.id);
    let name = Some(json!({"name": "east-worker-3"}));
    assert_eq!(member.send(Method::PATCH, &path, name.clone()).await.0, 403);
    let (_, renamed) = admin.send(Method::PATCH, &path, name).await;
    assert_eq!(renamed["name"], "east-worker-3");
    let (_, drained) = admin.post(&format!("{path}/drain"), json!({})).await;
    assert_eq!(
        (drained["status"].as_str(), drained["draining"].as_bool()),
        (Some("draining"), Some(true))
    );
    let job = admin.job(json!({})).await;
    let (_, shown) = admin.get(&format!("/api/jobs/{job}")).await;
    assert_eq!(shown["waiting_because"], "worker east-worker-3 is draining");
    assert_eq!(worker.everything_sent().await, Vec::<Value>::new());
    admin.post(&format!("{path}/resume"), json!({})).await;
    assert_eq!(worker.receive_job().await["job_id"], job);
}

#[actix_web::test]
async fn what_a_worker_says_of_itself_is_shown() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut dashboard = admin.dashboard().await;
    let mut worker = TestWorker::enrol(&admin).await;
    let register = json!({
        "type": "worker_register",
        "data": {
            "gpu_available": true, "gpu_name": "NVIDIA A100-SXM4-80GB", "gpu_memory_gb": 80.0,
            "worker_type": "training", "benchmark": {"gpu_score": 95.2, "is_estimated": false}
        }
    });
    worker.socket.send(register).await;
    let metrics = json!({"cpu_utilization": 22.5, "ram_used": 8.5, "status": "idle"});
    worker
        .socket
        .send(json!({"type": "worker_metrics", "data": metrics}))
        .await;
    let update = dashboard
        .receive_where(|update| update["data"]["cpu_utilization"] == 22.5)
        .await;
    assert_eq!(update["type"], "worker_update");
    assert_eq!(update["worker_id"], worker.uuid.as_str());
    let (_, shown) = admin.get(&format!("/api/workers/{}", worker.id)).await;
    assert_eq!(shown["hardware"]["gpu_name"], "NVIDIA A100-SXM4-80GB");
    assert_eq!(shown["benchmark"]["gpu_score"], 95.2);
    assert_eq!(shown["worker_type"], "training");
    assert_eq!(shown["status"], "idle");
    assert!(shown["last_seen_at"].is_string());
}

#[actix_web::test]
async fn a_platform_that_stops_closes_its_sockets_with_1001() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let mut dashboard = admin.dashboard().await;
    dashboard.receive("worker_update").await;
    drop(admin);
    let begun = tokio::time::Instant::now();
    platform.stop().await;
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(worker.socket.closed().await, Some(1001));
    assert_eq!(dashboard.closed().await, Some(1001));
}

#[actix_web::test]
async fn g034_a_flood_of_pings_is_answered_without_piling_up() {
    use futures_util::{SinkExt, StreamExt};
    use tokio_tungstenite::tungstenite::Message;
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    for _ in 0..20_000 {
        worker
            .socket
            .stream
            .feed(Message::Ping(vec![b'p'; 125].into()))
            .await
            .unwrap();
    }
    worker
        .socket
        .stream
        .feed(Message::Ping(b"last".to_vec().into()))
        .await
        .unwrap();
    worker.socket.stream.flush().await.unwrap();
    let last = async {
        loop {
            if let Some(Ok(Message::Pong(payload))) = worker.socket.stream.next().await
                && payload.as_ref() == b"last"
            {
                return;
            }
        }
    };
    tokio::time::timeout(DEADLINE, last).await.unwrap();
    worker.heartbeat("idle").await;
    assert_eq!(worker.everything_sent().await, Vec::<Value>::new());
    assert_ne!(
        worker.socket.next_within(Duration::from_millis(1)).await,
        Some(Came::Closed(None))
    );
}
