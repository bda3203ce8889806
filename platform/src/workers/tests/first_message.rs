//! What a connection hears whose first message is not the one that comes first.

use super::*;

async fn fresh(platform: &Platform) -> (String, Socket) {
    let uuid = Uuid::new_v4().to_string();
    let path = format!("/ws/worker?worker_uuid={uuid}");
    let socket = Socket::open(platform, &path).await.unwrap();
    (uuid, socket)
}

#[actix_web::test]
async fn an_authenticate_that_lacks_something_fails_like_every_other() {
    let platform = Platform::start(CALM).await;
    let key = format!("wkr_{}", "A".repeat(43));
    for message in [
        json!({"type": "authenticate", "api_key": key}),
        json!({"type": "authenticate", "api_key": key, "worker_uuid": 7}),
        json!({"type": "authenticate", "api_key": key, "worker_uuid": null}),
        json!({"type": "authenticate", "worker_uuid": Uuid::new_v4()}),
        json!({"type": "authenticate", "api_key": [key], "worker_uuid": Uuid::new_v4()}),
        json!({"type": "authenticate"}),
    ] {
        let (_, mut socket) = fresh(&platform).await;
        socket.send(message.clone()).await;
        let failed = socket.receive("auth_failed").await;
        let reason = failed["reason"].as_str().unwrap();
        assert!(!reason.contains(&key), "{reason}");
        assert_eq!(socket.closed().await, Some(4401), "{message}");
    }
}

#[actix_web::test]
async fn before_authenticate_everything_else_that_is_spoken_is_out_of_state() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let (_, mut socket) = fresh(&platform).await;
    for (message, code) in [
        (
            json!({"type": "subscribe_job", "job_id": 1}),
            "not_authenticated",
        ),
        (
            json!({"type": "heartbeat", "status": 5}),
            "not_authenticated",
        ),
        (json!({"type": "job_completed"}), "not_authenticated"),
        (json!({"type": "start_training"}), "not_authenticated"),
        (json!({"type": "sing"}), "unknown_type"),
    ] {
        socket.send(message.clone()).await;
        let error = socket.receive("error").await;
        assert_eq!(error["code"], code, "{message}");
        assert_eq!(error["in_reply_to"], message["type"]);
    }
    TestWorker::ready(&admin).await;
}
