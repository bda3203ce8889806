//! Dashboards over real sockets.

use serde_json::{Value, json};

use crate::testing::Platform;
use crate::testing::sockets::{Socket, TestWorker};

const CALM: &[(&str, &str)] = &[("WORKER_HEARTBEAT_TIMEOUT", "60")];

#[actix_web::test]
async fn g023_a_token_opens_one_connection_of_its_own_user() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let member = platform.user("member@example.org", "member").await;
    let open = async |user: i64, token: &str| {
        Socket::open(&platform, &format!("/ws/user/{user}?token={token}"))
            .await
            .map(drop)
    };
    let (admin_id, token) = admin.ws_token().await;
    assert_eq!(open(admin_id, &token).await, Ok(()));
    assert_eq!(open(admin_id, &token).await, Err(401), "a replay");
    let (member_id, token) = member.ws_token().await;
    assert_eq!(open(admin_id, &token).await, Err(401), "another's");
    assert_eq!(
        open(member_id, &token).await,
        Err(401),
        "the wrong try used it up"
    );
    let without = Socket::open(&platform, &format!("/ws/user/{admin_id}")).await;
    assert_eq!(without.map(drop), Err(401));
}

#[actix_web::test]
async fn g028_a_job_that_may_not_be_seen_looks_like_one_that_there_is_not() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let owner = platform.user("owner@example.org", "member").await;
    let other = platform.user("other@example.org", "member").await;
    let mut worker = TestWorker::ready(&admin).await;
    let job = owner.job(json!({})).await;
    worker.take_job().await;
    let mut own = owner.dashboard().await;
    let mut nosy = other.dashboard().await;
    own.send(json!({"type": "subscribe_job", "job_id": job}))
        .await;
    assert_eq!(own.receive("job_update").await["data"]["status"], "running");
    let mut answers = Vec::new();
    for asked in [job, 999_999, 9_007_199_254_740_993] {
        nosy.send(json!({"type": "subscribe_job", "job_id": asked}))
            .await;
        let error = nosy.receive("error").await;
        assert_eq!(
            (error["code"].as_str(), error["job_id"].as_i64()),
            (Some("not_found"), Some(asked))
        );
        answers.push(
            error["message"]
                .as_str()
                .unwrap()
                .replace(&asked.to_string(), "N"),
        );
    }
    assert!(
        answers.iter().all(|answer| *answer == answers[0]),
        "{answers:?}"
    );
    nosy.send(json!({"type": "unsubscribe_job", "job_id": job}))
        .await;

    worker
        .say("training_progress", job, json!({"step": 3, "loss": 0.5}))
        .await;
    let path = format!("checkpoints/job-{job}/step-3/");
    worker
        .say_acked("checkpoint_saved", job, json!({"step": 3, "path": path}))
        .await;
    worker
        .say_acked("job_completed", job, json!({"final_loss": 0.5}))
        .await;
    own.receive_where(|update| update["data"]["step"] == 3)
        .await;
    own.receive("checkpoint_saved").await;
    own.receive("job_completed").await;
    // What comes to the other now is its own.
    let marker = other.job(json!({})).await;
    nosy.send(json!({"type": "subscribe_job", "job_id": marker}))
        .await;
    let seen = nosy
        .collect_until(|message| message["job_id"] == marker)
        .await;
    assert!(
        !seen.iter().any(|message| message["job_id"] == job),
        "{seen:?}"
    );
}

#[actix_web::test]
async fn no_updates_come_after_unsubscribing() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let job = admin.job(json!({})).await;
    worker.take_job().await;
    let mut dashboard = admin.dashboard().await;
    let subscribe = json!({"type": "subscribe_job", "job_id": job});
    dashboard.send(subscribe.clone()).await;
    dashboard.receive("job_update").await;
    dashboard
        .send(json!({"type": "unsubscribe_job", "job_id": job}))
        .await;
    // Refused, and answered in order: the line above has been taken by then.
    dashboard.send(json!({"type": "what"})).await;
    assert_eq!(dashboard.receive("error").await["code"], "unknown_type");
    worker
        .say("training_progress", job, json!({"step": 3}))
        .await;
    worker.everything_sent().await;
    dashboard.send(subscribe).await;
    let seen = dashboard
        .collect_until(|update| update["type"] == "job_update")
        .await;
    assert_eq!(seen.last().unwrap()["data"]["step"], 3);
    let updates: Vec<&Value> = seen
        .iter()
        .filter(|update| update["type"] == "job_update")
        .collect();
    assert_eq!(updates.len(), 1);
}

#[actix_web::test]
async fn g024_whoever_loses_the_right_loses_the_connection() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let member = platform.user("member@example.org", "member").await;
    let mut dashboard = member.dashboard().await;
    let mut other = admin.dashboard().await;
    assert_eq!(member.post("/api/auth/logout", json!({})).await.0, 204);
    assert_eq!(dashboard.closed().await, Some(4401));
    let again = platform.login("member@example.org", "user-password").await;
    let mut dashboard = again.dashboard().await;
    let (id, _) = again.ws_token().await;
    assert_eq!(admin.delete(&format!("/api/users/{id}")).await.0, 204);
    assert_eq!(dashboard.closed().await, Some(4403));
    other
        .send(json!({"type": "subscribe_job", "job_id": 1}))
        .await;
    other.receive("error").await;
}

#[actix_web::test]
async fn g035_subscriptions_to_jobs_that_there_are_not_end_in_a_close() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut dashboard = admin.dashboard().await;
    for job in 1000..1020 {
        dashboard
            .send(json!({"type": "subscribe_job", "job_id": job}))
            .await;
        dashboard.receive("error").await;
    }
    assert_eq!(dashboard.closed().await, Some(4400));
}

#[actix_web::test]
async fn a_dashboard_that_floods_is_closed_with_4429_and_others_go_on() {
    use futures_util::SinkExt;
    use tokio_tungstenite::tungstenite::Message;
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut calm = admin.dashboard().await;
    let mut flooding = admin.dashboard().await;
    for job in 1..30_000 {
        let frame = json!({"type": "unsubscribe_job", "job_id": job}).to_string();
        // The platform closes long before all of them have come.
        if flooding.stream.send(Message::text(frame)).await.is_err() {
            break;
        }
    }
    assert!(matches!(flooding.closed().await, Some(4429) | None));
    let job = admin.job(json!({})).await;
    calm.send(json!({"type": "subscribe_job", "job_id": job}))
        .await;
    calm.receive("job_update").await;
}

#[actix_web::test]
async fn g038_a_job_id_of_another_type_is_refused_by_name() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut dashboard = admin.dashboard().await;
    for wrong in [
        "\"123\"", "123.0", "1.23e2", "-1", "0", "true", "null", "[123]",
    ] {
        let frame = format!(r#"{{"type":"subscribe_job","job_id":{wrong}}}"#);
        dashboard.send_text(&frame).await;
        let error = dashboard.receive("error").await;
        assert_eq!(error["code"], "invalid_message", "{wrong}");
        assert!(
            error["message"].as_str().unwrap().contains("job_id"),
            "{wrong}: {error}"
        );
    }
}

#[actix_web::test]
async fn g035_a_dashboard_watches_so_many_jobs_and_no_more_and_leaves_nothing_behind() {
    use super::hub::{
        Dashboards, GetSize, Join, Leave, MAX_SUBSCRIPTIONS, Subscribe, Subscribed, Unsubscribe,
    };
    use crate::auth::{Credential, Role};
    use crate::sockets::outgoing::Outgoing;
    use actix::Actor;
    use trainyard_shared::ids::{JobId, UserId};
    let hub = Dashboards::default().start();
    let (outgoing, _frames) = Outgoing::new(1 << 20, 10_000);
    let join = Join {
        user: UserId(1),
        role: Role::Admin,
        credential: Credential::Session(1),
        outgoing,
    };
    let session = hub.send(join).await.unwrap();
    let subscribe = async |job: i64| {
        let (job, current) = (JobId(job), "{}".into());
        let subscribe = Subscribe {
            session,
            job,
            current,
        };
        hub.send(subscribe).await.unwrap()
    };
    for job in 1..=MAX_SUBSCRIPTIONS as i64 {
        assert_eq!(subscribe(job).await, Subscribed::Yes);
    }
    assert_eq!(
        subscribe(5).await,
        Subscribed::Yes,
        "it watches that already"
    );
    assert_eq!(subscribe(5_000).await, Subscribed::TooMany);
    let job = JobId(7);
    hub.send(Unsubscribe { session, job }).await.unwrap();
    assert_eq!(subscribe(5_000).await, Subscribed::Yes);
    assert_eq!(hub.send(GetSize).await.unwrap(), (1, MAX_SUBSCRIPTIONS));
    hub.send(Leave(session)).await.unwrap();
    assert_eq!(hub.send(GetSize).await.unwrap(), (0, 0));
}

#[actix_web::test]
async fn a_queued_job_is_shown_with_the_reason_why_it_waits() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let job = admin.job(json!({})).await;
    let mut dashboard = admin.dashboard().await;
    dashboard
        .send(json!({"type": "subscribe_job", "job_id": job}))
        .await;
    let update = dashboard.receive("job_update").await;
    assert_eq!(update["data"]["status"], "queued");
    assert_eq!(update["data"]["waiting_because"], "no worker is connected");
}
