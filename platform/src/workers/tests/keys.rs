//! Keys that are wrong, lost, replaced or void.

use super::*;

#[actix_web::test]
async fn ten_failures_in_a_minute_are_answered_with_429_for_that_worker_only() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let uuid = Uuid::new_v4().to_string();
    let key = format!("wkr_{}", "A".repeat(43));
    let mut reasons = Vec::new();
    for _ in 0..10 {
        let (_, answer) = authenticate(&platform, &uuid, &key).await;
        reasons.push(answer["reason"].as_str().unwrap().to_owned());
    }
    assert!(
        reasons.iter().all(|reason| reason == "Invalid API key"),
        "{reasons:?}"
    );
    let path = format!("/ws/worker?worker_uuid={uuid}");
    assert_eq!(Socket::open(&platform, &path).await.err(), Some(429));
    let request = platform.request(Method::GET, &path);
    let refused = request.send().await.unwrap();
    assert!(refused.headers().contains_key("retry-after"));
    TestWorker::ready(&admin).await;
}

#[actix_web::test]
async fn g024_a_deleted_worker_is_closed_with_4403_and_its_job_is_lost() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let job = admin.job(json!({})).await;
    worker.take_job().await;
    let path = format!("/api/workers/{}", worker.id);
    assert_eq!(admin.delete(&path).await.0, 204);
    assert_eq!(worker.socket.closed().await, Some(4403));
    assert_eq!(
        admin.wait_for_job(job, "failed").await["failure_kind"],
        "worker_lost"
    );
    assert_eq!(admin.get(&path).await.0, 404);
    let (_, revoked) = authenticate(&platform, &worker.uuid, &worker.key).await;
    let unknown_key = format!("wkr_{}", "A".repeat(43));
    let (_, unknown) = authenticate(&platform, &worker.uuid, &unknown_key).await;
    assert_eq!(revoked["reason"], unknown["reason"]);
}

#[actix_web::test]
async fn g024_a_rotated_key_closes_with_4401_and_can_be_delivered() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let path = format!("/api/workers/{}/rotate-key", worker.id);
    let (_, rotated) = admin.post(&path, json!({})).await;
    assert_eq!(worker.socket.closed().await, Some(4401));
    let (_, refused) = authenticate(&platform, &worker.uuid, &worker.key).await;
    assert_eq!(refused["type"], "auth_failed");
    worker.key = rotated["key"].as_str().unwrap().to_owned();
    let (status, refused) = admin.post(&path, json!({"deliver": true})).await;
    assert_eq!(status, 409, "{refused}");

    let mut worker = worker.again(&platform).await;
    worker.register().await;
    let (_, delivered) = admin.post(&path, json!({"deliver": true})).await;
    assert_eq!(delivered, json!({}));
    let complete = worker.socket.receive("enrollment_complete").await;
    assert_eq!(complete["data"]["worker_id"], worker.id);
    assert_eq!(worker.socket.closed().await, Some(4401));
    worker.key = complete["data"]["api_key"].as_str().unwrap().to_owned();
    worker.again(&platform).await;
}

#[actix_web::test]
async fn g027_a_lost_answer_to_an_enrolment_is_given_again_with_a_new_key() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let (_, made) = admin
        .post("/api/enrollment-keys", json!({"max_uses": 1}))
        .await;
    let enrollment_key = made["key"].as_str().unwrap();
    let uuid = Uuid::new_v4().to_string();
    let (lost, first) = authenticate(&platform, &uuid, enrollment_key).await;
    lost.reset();
    let (mut socket, second) = authenticate(&platform, &uuid, enrollment_key).await;
    assert_eq!(first["data"]["worker_id"], second["data"]["worker_id"]);
    let void = first["data"]["api_key"].as_str().unwrap();
    let (_, refused) = authenticate(&platform, &uuid, void).await;
    assert_eq!(refused["type"], "auth_failed");
    socket.receive("authenticated").await;
    socket
        .send(json!({"type": "worker_register", "data": {"gpu_available": false}}))
        .await;
    let id = second["data"]["worker_id"].as_i64().unwrap();
    admin.wait_for_worker(id, "idle").await;
    // It has gone on with its key: the enrolment key takes it over no more.
    let (_, refused) = authenticate(&platform, &uuid, enrollment_key).await;
    assert_eq!(refused["type"], "auth_failed");
    let (_, workers) = admin.get("/api/workers").await;
    assert_eq!(workers["items"].as_array().unwrap().len(), 1);
}
