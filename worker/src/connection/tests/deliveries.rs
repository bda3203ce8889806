//! What must not be lost reaches the platform, in order, with its files, once it can.

use super::*;

#[actix_rt::test]
async fn g012_what_ended_offline_is_delivered_in_order_after_registering() {
    let (platform, _state, worker) = started().await;
    worker.reports.keep(job_started(), Vec::new()).unwrap();
    worker.reports.send(progress(1));
    worker.reports.send(progress(2));
    worker
        .reports
        .keep(job_completed(Vec::new()), Vec::new())
        .unwrap();
    let (mut session, _) = platform.registered().await;
    let first = session.next().await.unwrap();
    assert_eq!(
        (&first["type"], &first["current_job_id"]),
        (&json!("heartbeat"), &json!(123))
    );
    let kinds = session.kinds_up_to("job_completed").await;
    assert_eq!(
        kinds,
        [
            "job_started",
            "training_progress",
            "training_progress",
            "job_completed"
        ]
    );
}

#[actix_rt::test]
async fn g012_an_unacknowledged_message_comes_again_after_a_restart_and_an_acknowledged_one_does_not()
 {
    let (platform, state, worker) = started().await;
    let (mut session, _) = platform.registered().await;
    worker.reports.keep(job_started(), Vec::new()).unwrap();
    worker
        .reports
        .keep(job_completed(Vec::new()), Vec::new())
        .unwrap();
    let started = session.receive("job_started").await;
    session.ack(&started).await;
    let completed = session.receive("job_completed").await;
    let started_id = serde_json::from_value(started["message_id"].clone()).unwrap();
    within("the ack to be heeded", async {
        while worker.outbox.find(started_id).is_some() {
            session.receive("heartbeat").await;
        }
    })
    .await;
    drop(session);
    worker.connection.send(Leave).await.unwrap();

    let restarted = start(config(&platform, state.path()));
    let (mut session, _) = platform.registered().await;
    assert_eq!(
        session.kinds_up_to("job_completed").await,
        ["job_completed"]
    );
    session.ack(&completed).await;
    within("an empty outbox", restarted.outbox.emptied()).await;
    let beat = session.beat_with_job(Value::Null).await;
    assert_eq!(beat["status"], "idle");
}

#[actix_rt::test]
async fn a_refused_message_is_dropped_unless_it_may_be_taken_later() {
    let (platform, _state, worker) = started().await;
    let (mut session, _) = platform.registered().await;
    worker.reports.keep(job_started(), Vec::new()).unwrap();
    let message = session.receive("job_started").await;
    let error = |code: &str| {
        json!({"type": "error", "code": code, "message": "no", "in_reply_to": "job_started",
               "message_id": message["message_id"]})
    };
    session.send(error("try_again")).await;
    let again = session.receive("job_started").await;
    assert_eq!(again["message_id"], message["message_id"]);
    session.send(error("wrong_worker")).await;
    within("an empty outbox", worker.outbox.emptied()).await;
}

/// The two routes of an upload: leave for one, and the PUT itself.
fn storage(request: &Request, put_status: u16) -> Reply {
    match (request.method.as_str(), request.target.as_str()) {
        ("POST", "/api/worker/uploads") => {
            let host = &request.headers["host"];
            Reply::new(
                200,
                json!({"url": format!("http://{host}/put"), "headers": {}}).to_string(),
            )
        }
        ("PUT", "/put") => Reply::new(put_status, ""),
        _ => Reply::new(404, ""),
    }
}

fn result_file(folder: &Path) -> (ArtifactFile, PathBuf) {
    let path = folder.join("adapter_model.safetensors");
    std::fs::write(&path, b"weights").unwrap();
    let artifact = ArtifactFile {
        key: "models/job-123/final/adapter_model.safetensors".to_owned(),
        size_bytes: 7,
        sha256: "9a".repeat(32),
    };
    (artifact, path)
}

#[actix_rt::test]
async fn files_are_stored_before_the_message_that_names_them() {
    let platform = FakePlatform::start().await;
    let server = TestServer::start(|_, request| storage(request, 200)).await;
    let state = tempfile::tempdir().unwrap();
    let worker = start_with_files_at(&server.url(""), config(&platform, state.path()));
    let (artifact, path) = result_file(state.path());
    let message = job_completed(vec![artifact.clone()]);
    worker
        .reports
        .keep(message, vec![(artifact, path.clone())])
        .unwrap();
    std::fs::remove_file(path).unwrap();
    let (mut session, _) = platform.registered().await;
    let completed = session.receive("job_completed").await;
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    let asked: Value = serde_json::from_slice(&requests[0].body).unwrap();
    assert_eq!(
        asked,
        json!({"job_id": 123, "key": "models/job-123/final/adapter_model.safetensors",
               "size": 7, "sha256": "9a".repeat(32)})
    );
    assert_eq!(requests[0].headers["authorization"], "Bearer enroll_first");
    assert_eq!(requests[1].body, b"weights");

    session
        .send(
            json!({"type": "error", "code": "artifact_missing", "message": "gone",
                     "message_id": completed["message_id"]}),
        )
        .await;
    session.receive("job_completed").await;
    assert_eq!(server.requests().len(), 4, "the file is stored once more");
}

#[actix_rt::test]
async fn storage_that_is_away_for_a_while_delays_the_message_and_nothing_else() {
    let platform = FakePlatform::start().await;
    let away = Arc::new(AtomicBool::new(true));
    let is_away = away.clone();
    let server = TestServer::start(move |_, request| {
        let status = if is_away.load(Ordering::SeqCst) {
            503
        } else {
            200
        };
        storage(request, status)
    })
    .await;
    let state = tempfile::tempdir().unwrap();
    let worker = start_with_files_at(&server.url(""), config(&platform, state.path()));
    let (mut session, _) = platform.registered().await;
    let (artifact, path) = result_file(state.path());
    let message = job_completed(vec![artifact.clone()]);
    worker
        .reports
        .keep(message, vec![(artifact, path)])
        .unwrap();
    // The job is not over while its result is not stored.
    session.beat_with_job(json!(123)).await;
    away.store(false, Ordering::SeqCst);
    session.receive("job_completed").await;
}

#[actix_rt::test]
async fn a_result_that_is_refused_for_good_becomes_the_jobs_failure() {
    let platform = FakePlatform::start().await;
    let server = TestServer::start(|_, request| storage(request, 413)).await;
    let state = tempfile::tempdir().unwrap();
    let worker = start_with_files_at(&server.url(""), config(&platform, state.path()));
    let (mut session, _) = platform.registered().await;
    let (artifact, path) = result_file(state.path());
    let message = job_completed(vec![artifact.clone()]);
    worker
        .reports
        .keep(message, vec![(artifact, path)])
        .unwrap();
    let failed = session.receive("job_failed").await;
    assert_eq!(failed["data"]["failure_kind"], "storage");
    assert!(
        failed["data"]["error"].as_str().unwrap().contains("413"),
        "{failed}"
    );
}
