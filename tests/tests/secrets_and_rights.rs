//! Keys, tokens and rights, from outside (given cases G022, G023, G024, G026, G027, G028).

use std::time::Duration;

use serde_json::json;
use trainyard_tests::model::TINY_MODEL_ID;
use trainyard_tests::scripted_worker::{self, job_with_status};
use trainyard_tests::{Client, Platform, ScriptedWorker, Socket, TinyModel, Worker, dataset};
use uuid::Uuid;

/// How soon a socket whose right has gone must be closed.
const REVOCATION: Duration = Duration::from_secs(5);

async fn job_of(user: &Client) -> i64 {
    let dataset_id = user.dataset("chats", &dataset::chats(4)).await;
    let job = json!({
        "dataset_id": dataset_id,
        "base_model": {"huggingface_id": TINY_MODEL_ID},
        "config": {"epochs": 1}
    });
    user.job(job).await
}

/// Promise P5.
#[tokio::test]
async fn g022_no_secret_is_ever_logged_not_even_at_trace_level() {
    let platform = Platform::start_with(&[("LOG", "trace")]).await;
    let admin = platform.admin().await;
    let enrollment_key = admin.enrollment_key(json!({"max_uses": 2})).await;
    let models = TinyModel::create();
    let worker = Worker::start(&platform, &models, &enrollment_key);
    worker.ready(&admin).await;
    let identity = std::fs::read_dir(worker.state_dir())
        .expect("the state folder is there")
        .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok())
        .collect::<String>();
    let at = identity.find("wkr_").expect("the worker keeps its key");
    let worker_key = &identity[at..at + "wkr_".len() + 43];

    let (user_id, token) = admin.ws_token().await;
    let path = format!("/ws/user/{user_id}?token={token}");
    Socket::open(platform.address(), &path)
        .await
        .expect("a fresh token opens");
    Socket::open(platform.address(), &path)
        .await
        .err()
        .expect("a used token does not");
    let job_id = job_of(&admin).await;
    job_with_status(&admin, job_id, "completed").await;
    let artifact = format!("/api/jobs/{job_id}/artifacts/adapter_config.json");
    admin.download(&artifact).await;
    let metrics = admin
        .request(reqwest::Method::GET, "/metrics")
        .send()
        .await
        .expect("an answer")
        .text()
        .await
        .expect("text");

    let secrets = [
        token.as_str(),
        worker_key,
        &enrollment_key,
        "correct horse",
        "signature=",
    ];
    for (source, text) in [
        ("the platform's output", platform.output()),
        ("the worker's output", worker.process.output()),
        ("/metrics", metrics),
    ] {
        for secret in secrets {
            let line = text.lines().find(|line| line.contains(secret));
            assert!(line.is_none(), "{source} holds a secret: {line:?}");
        }
    }
}

#[tokio::test]
async fn g023_ws_token_opens_one_socket_of_its_own_user_and_nothing_else() {
    let platform = Platform::start().await;
    let admin = platform.admin().await;
    let (member_id, member) = admin.user("member@example.org", "member").await;
    let address = platform.address();
    let open = async |user_id: i64, token: &str| {
        Socket::open(address, &format!("/ws/user/{user_id}?token={token}"))
            .await
            .map(drop)
    };

    let (admin_id, token) = admin.ws_token().await;
    assert_eq!(open(admin_id, &token).await, Ok(()));
    assert_eq!(open(admin_id, &token).await, Err(401), "a replay");

    let (_, token) = member.ws_token().await;
    assert_eq!(
        open(admin_id, &token).await,
        Err(401),
        "another user's socket"
    );
    assert_eq!(
        open(member_id, &token).await,
        Err(401),
        "the wrong try used the token up"
    );

    assert_eq!(open(admin_id, "not-a-token").await, Err(401));
    let without = Socket::open(address, &format!("/ws/user/{admin_id}")).await;
    assert_eq!(without.map(drop), Err(401));
}

#[tokio::test]
async fn g024_deleted_worker_is_closed_and_cannot_return_and_its_job_fails_as_lost() {
    let platform = Platform::start().await;
    let admin = platform.admin().await;
    let mut worker = ScriptedWorker::enrol(&platform, &admin).await;
    let job_id = job_of(&admin).await;
    worker.take_job().await;
    job_with_status(&admin, job_id, "running").await;

    let answer = admin
        .delete(&format!("/api/workers/{}", worker.identity.id))
        .await;
    assert_eq!(answer.status.as_u16(), 204, "{}", answer.body);
    assert_eq!(worker.socket.closed_within(REVOCATION).await, Some(4403));
    let job = job_with_status(&admin, job_id, "failed").await;
    assert_eq!(job["failure_kind"], "worker_lost", "{job}");

    let identity = &worker.identity;
    let revoked = scripted_worker::refused_reason(&platform, &identity.uuid, &identity.key).await;
    let unknown_key = format!("wkr_{}", "A".repeat(43));
    let unknown = scripted_worker::refused_reason(&platform, &identity.uuid, &unknown_key).await;
    assert_eq!(
        revoked, unknown,
        "the answer never says whether a key exists"
    );
}

#[tokio::test]
async fn g024_rotated_key_closes_the_socket_and_only_the_new_key_returns() {
    let platform = Platform::start().await;
    let admin = platform.admin().await;
    let mut worker = ScriptedWorker::enrol(&platform, &admin).await;
    let path = format!("/api/workers/{}/rotate-key", worker.identity.id);
    let rotated = admin.post(&path, json!({})).await.ok();
    assert_eq!(worker.socket.closed_within(REVOCATION).await, Some(4401));

    let mut identity = worker.identity;
    scripted_worker::refused_reason(&platform, &identity.uuid, &identity.key).await;
    identity.key = rotated["key"].as_str().expect("shown once").to_owned();
    ScriptedWorker::connect(&platform, &identity).await;
}

#[tokio::test]
async fn g024_deleted_user_loses_the_open_dashboard_and_the_login() {
    let platform = Platform::start().await;
    let admin = platform.admin().await;
    let (member_id, member) = admin.user("member@example.org", "member").await;
    let mut dashboard = platform.dashboard(&member).await;
    let answer = admin.delete(&format!("/api/users/{member_id}")).await;
    assert_eq!(answer.status.as_u16(), 204, "{}", answer.body);
    assert_eq!(dashboard.closed_within(REVOCATION).await, Some(4403));
    member.get("/api/me").await.refused(401);
}

#[tokio::test]
async fn g026_two_machines_that_enrol_with_one_key_become_two_workers() {
    let platform = Platform::start().await;
    let admin = platform.admin().await;
    let key = admin
        .enrollment_key(json!({"max_uses": 2, "name_prefix": "gpu-box"}))
        .await;
    let uuid = || Uuid::new_v4().to_string();
    let mut first = ScriptedWorker::enrol_with(&platform, &uuid(), &key).await;
    first.register(&admin).await;
    let second = ScriptedWorker::enrol_with(&platform, &uuid(), &key).await;
    assert_ne!(first.identity.id, second.identity.id);
    assert_ne!(first.identity.name, second.identity.name);
    assert!(
        second.identity.name.starts_with("gpu-box"),
        "{}",
        second.identity.name
    );
    first.shown_as(&admin, "idle").await;

    let third = uuid();
    scripted_worker::refused_reason(&platform, &third, &key).await;
}

#[tokio::test]
async fn g027_lost_enrolment_answer_is_repeated_with_a_new_key_for_the_same_worker() {
    let platform = Platform::start().await;
    let admin = platform.admin().await;
    let key = admin.enrollment_key(json!({"max_uses": 1})).await;
    let uuid = Uuid::new_v4().to_string();
    let mut lost = scripted_worker::open(&platform, &uuid).await;
    let complete = scripted_worker::authenticate(&mut lost, &uuid, &key).await;
    let void_key = complete["data"]["api_key"]
        .as_str()
        .expect("a key")
        .to_owned();
    lost.reset();

    let again = ScriptedWorker::enrol_with(&platform, &uuid, &key).await;
    assert_eq!(complete["data"]["worker_id"], again.identity.id);
    assert_ne!(void_key, again.identity.key);
    scripted_worker::refused_reason(&platform, &uuid, &void_key).await;
    let mut connected = ScriptedWorker::connect(&platform, &again.identity).await;
    connected.register(&admin).await;
    let workers = admin.get("/api/workers").await.ok();
    assert_eq!(
        workers["items"].as_array().unwrap().len(),
        1,
        "no ghost: {workers}"
    );

    // The issued key has been used by now: a leaked enrolment key takes nobody over.
    let mut late = scripted_worker::open(&platform, &uuid).await;
    let answer = scripted_worker::authenticate(&mut late, &uuid, &key).await;
    assert_eq!(answer["type"], "auth_failed", "{answer}");
    connected.shown_as(&admin, "idle").await;
}

#[tokio::test]
async fn g027_single_use_key_enrols_exactly_one_of_twenty_at_once() {
    let platform = Platform::start().await;
    let admin = platform.admin().await;
    let key = admin.enrollment_key(json!({"max_uses": 1})).await;
    let tries = (0..20).map(|_| async {
        let uuid = Uuid::new_v4().to_string();
        let mut socket = scripted_worker::open(&platform, &uuid).await;
        let answer = scripted_worker::authenticate(&mut socket, &uuid, &key).await;
        answer["type"] == "enrollment_complete"
    });
    let enrolled = futures_util::future::join_all(tries).await;
    assert_eq!(enrolled.into_iter().filter(|enrolled| *enrolled).count(), 1);
}

#[tokio::test]
async fn g028_dashboard_sees_nothing_of_a_job_that_is_not_its_users() {
    let platform = Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "60")]).await;
    let admin = platform.admin().await;
    let (_, owner) = admin.user("owner@example.org", "member").await;
    let (_, other) = admin.user("other@example.org", "member").await;
    let mut worker = ScriptedWorker::enrol(&platform, &admin).await;
    let job_id = job_of(&owner).await;
    worker.take_job().await;
    let mut nosy = platform.dashboard(&other).await;
    let mut own = platform.dashboard(&owner).await;
    own.send(json!({"type": "subscribe_job", "job_id": job_id}))
        .await;

    let mut answers = Vec::new();
    for asked in [job_id, 999_999] {
        nosy.send(json!({"type": "subscribe_job", "job_id": asked}))
            .await;
        let mut error = nosy.receive_type("error").await;
        assert_eq!(error["code"], "not_found");
        let fields = error.as_object_mut().expect("an object");
        fields.remove("timestamp");
        fields.remove("job_id");
        answers.push(error.to_string().replace(&asked.to_string(), "N"));
    }
    assert_eq!(
        answers[0], answers[1],
        "a hidden job and a missing one look alike"
    );
    nosy.send(json!({"type": "unsubscribe_job", "job_id": job_id}))
        .await;
    other.get(&format!("/api/jobs/{job_id}")).await.refused(404);
    other
        .get(&format!("/api/jobs/{job_id}/metrics"))
        .await
        .refused(404);
    other.get("/api/users").await.refused(403);

    worker
        .say(
            "training_progress",
            job_id,
            json!({"step": 3, "total_steps": 10, "loss": 0.5}),
        )
        .await;
    own.receive_until(|message| message["data"]["step"] == 3)
        .await;
    // The other user's socket is still usable, and what it is asked now comes before anything about the job.
    let own_job = job_of(&other).await;
    nosy.send(json!({"type": "subscribe_job", "job_id": own_job}))
        .await;
    let (_, passed) = nosy
        .receive_until(|message| message["job_id"] == own_job)
        .await;
    let leaked = passed.iter().find(|message| message["job_id"] == job_id);
    assert!(leaked.is_none(), "{leaked:?}");
}
