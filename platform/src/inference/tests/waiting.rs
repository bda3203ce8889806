//! Requests that wait for a worker, and what waits for workers that answer.

use super::*;

#[actix_web::test]
async fn g093_requests_cancelled_while_they_wait_are_never_started() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let mut running = Vec::new();
    for _ in 0..SLOTS {
        running.push(asked(&admin, json!({})).await);
        assert_eq!(&worker.take_inference().await, running.last().unwrap());
    }
    let mut waiting = Vec::new();
    for _ in 0..5 {
        waiting.push(asked(&admin, json!({})).await);
    }
    let shown = admin
        .wait(&format!("/api/inference/{}", waiting[4]), |shown| {
            !shown["waiting_because"].is_null()
        })
        .await;
    assert_eq!(shown["status"], "waiting");
    for id in &waiting[..3] {
        let path = format!("/api/inference/{id}");
        assert_eq!(admin.delete(&path).await.0, 204);
        assert_eq!(admin.get(&path).await.1["status"], "cancelled");
        assert_eq!(admin.delete(&path).await.0, 204, "twice");
    }
    for id in &running {
        // Without waiting for an ack, which would pass over what comes before it.
        let data = json!({"text": "done"});
        worker
            .socket
            .send(json!({"type": "inference_completed", "inference_id": id, "data": data}))
            .await;
    }
    assert_eq!(worker.take_inference().await, waiting[3]);
    assert_eq!(worker.take_inference().await, waiting[4]);
    let path = format!("/api/inference/{}", running[0]);
    assert_eq!(admin.delete(&path).await.0, 204, "after completion");
    assert_eq!(admin.get(&path).await.1["status"], "completed");
    let sent = worker.everything_sent().await;
    assert!(
        sent.iter()
            .all(|message| message["type"] != "start_inference"),
        "{sent:#?}"
    );
}

#[actix_web::test]
async fn without_a_worker_that_could_ever_answer_the_request_fails_at_once_and_says_why() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let body = ask(json!({"stream": true}));
    let (status, answer) = admin.post("/api/inference", body.clone()).await;
    assert_eq!(status, 503, "{answer}");
    assert_eq!(answer["error"]["code"], "no_worker");
    let mut worker = TestWorker::enrol(&admin).await;
    worker.register_as("training").await;
    admin.wait_for_worker(worker.id, "idle").await;
    let (status, answer) = admin.post("/api/inference", body).await;
    assert_eq!(status, 503);
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("WORKER_TYPE"),
        "{answer}"
    );
}

#[actix_web::test]
async fn waiting_for_a_full_worker_has_a_limit() {
    let settings = [
        ("WORKER_HEARTBEAT_TIMEOUT", "60"),
        ("INFERENCE_QUEUE_TIMEOUT", "0.3"),
    ];
    let platform = Platform::start(&settings).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    for _ in 0..SLOTS {
        asked(&admin, json!({})).await;
        worker.take_inference().await;
    }
    let id = asked(&admin, json!({})).await;
    let shown = shown_as(&admin, &id, "failed").await;
    assert!(shown["error"].as_str().unwrap().contains("full"), "{shown}");
}

#[actix_web::test]
async fn a_job_waits_for_a_worker_that_answers() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let id = asked(&admin, json!({})).await;
    worker.take_inference().await;
    let job = admin.job(json!({})).await;
    assert!(
        worker
            .everything_sent()
            .await
            .iter()
            .all(|message| message["type"] != "start_training")
    );
    worker.complete(&id, json!({"text": "done"})).await;
    assert_eq!(worker.receive_job().await["job_id"], job);
    // A worker that trains takes a chat when there is no other.
    worker
        .say_acked("job_started", job, json!({"total_steps": 10}))
        .await;
    let id = asked(&admin, json!({})).await;
    assert_eq!(worker.take_inference().await, id);
}

#[actix_web::test]
async fn a_queue_that_nobody_reads_is_left_by_clients_that_go_away() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let mut running = Vec::new();
    for _ in 0..SLOTS {
        running.push(asked(&admin, json!({})).await);
        worker.take_inference().await;
    }
    let request = admin
        .request(Method::POST, "/api/inference")
        .json(&ask(json!({"stream": true})));
    let response = request.send().await.unwrap();
    let id = response.headers()["x-inference-id"]
        .to_str()
        .unwrap()
        .to_owned();
    drop(response);
    shown_as(&admin, &id, "cancelled").await;
    worker.complete(&running[0], json!({"text": "done"})).await;
    let sent = worker.everything_sent().await;
    assert!(
        sent.iter()
            .all(|message| message["type"] != "start_inference"),
        "{sent:#?}"
    );
}
