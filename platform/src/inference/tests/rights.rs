//! Who may have an answer, and until when.

use reqwest::Method;
use serde_json::json;

use super::{QUIET, asked, shown_as};
use crate::testing::serving::{ask, events};
use crate::testing::sockets::TestWorker;
use crate::testing::{Platform, Session, answer};

/// How a credential is made void, from which the test makes its own.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Deleted,
    Demoted,
    TokenRevoked,
    LoggedOut,
}

async fn lose(admin: &Session<'_>, member: &Session<'_>, token: i64, loss: Loss) {
    let user = format!("/api/users/{}", member.ws_token().await.0);
    let (status, answer) = match loss {
        Loss::Deleted => admin.delete(&user).await,
        Loss::Demoted => {
            let role = json!({"role": "viewer"});
            admin.send(Method::PATCH, &user, Some(role)).await
        }
        Loss::TokenRevoked => member.delete(&format!("/api/api-tokens/{token}")).await,
        Loss::LoggedOut => member.post("/api/auth/logout", json!({})).await,
    };
    assert!(status.is_success(), "{loss:?}: {answer}");
}

#[actix_web::test]
async fn a_stream_ends_with_the_right_of_who_asked() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    for loss in [
        Loss::Deleted,
        Loss::Demoted,
        Loss::TokenRevoked,
        Loss::LoggedOut,
    ] {
        let email = format!("{loss:?}@example.org").to_lowercase();
        let member = platform.user(&email, "member").await;
        let (_, made) = member.post("/api/api-tokens", json!({"name": "t"})).await;
        let by_token = Session {
            platform: &platform,
            token: made["token"].as_str().unwrap().to_owned(),
        };
        let asking = match loss {
            Loss::TokenRevoked => &by_token,
            _ => &member,
        };
        let request = asking
            .request(Method::POST, "/api/inference")
            .json(&ask(json!({"stream": true})));
        let (response, id) = tokio::join!(request.send(), worker.take_inference());
        let other = asked(&admin, json!({})).await;
        assert_eq!(worker.take_inference().await, other);

        lose(&admin, &member, made["id"].as_i64().unwrap(), loss).await;
        let stop = worker.socket.receive("stop_inference").await;
        assert_eq!(stop["inference_id"], id.as_str(), "{loss:?}");
        let events = events(&response.unwrap().text().await.unwrap());
        let (name, end) = events.last().unwrap();
        assert_eq!(name, "inference_completed", "{loss:?}");
        assert_eq!(end["data"]["finish_reason"], "cancelled");
        // Others' requests go on.
        worker.complete(&other, json!({"text": "x"})).await;
        shown_as(&admin, &other, "completed").await;
    }
}

#[actix_web::test]
async fn a_waiting_call_ends_with_the_token_it_came_with() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::enrol(&admin).await;
    worker.register_as("both").await;
    admin.wait_for_worker(worker.id, "idle").await;
    let (_, made) = admin.post("/api/api-tokens", json!({"name": "t"})).await;
    let request = platform
        .request(Method::POST, "/v1/chat/completions")
        .bearer_auth(made["token"].as_str().unwrap())
        .json(&ask(json!({})));
    let revoking = async {
        let id = worker.take_inference().await;
        let token = format!("/api/api-tokens/{}", made["id"]);
        assert_eq!(admin.delete(&token).await.0, 204);
        let stop = worker.socket.receive("stop_inference").await;
        assert_eq!(stop["inference_id"], id.as_str());
    };
    let (response, ()) = tokio::join!(request.send(), revoking);
    let (status, body) = answer(response.unwrap()).await;
    assert_eq!(status, 409, "{body}");
}

#[actix_web::test]
async fn a_request_that_nobody_waits_for_outlives_the_session_but_not_the_user() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let member = platform.user("member@example.org", "member").await;
    let (user, _) = member.ws_token().await;
    let mut worker = TestWorker::ready(&admin).await;
    let ids = [
        asked(&member, json!({})).await,
        asked(&member, json!({})).await,
    ];
    for id in &ids {
        assert_eq!(&worker.take_inference().await, id);
    }
    assert!(
        member
            .post("/api/auth/logout", json!({}))
            .await
            .0
            .is_success()
    );
    worker.complete(&ids[0], json!({"text": "x"})).await;
    shown_as(&admin, &ids[0], "completed").await;
    let path = format!("/api/users/{user}");
    assert_eq!(admin.delete(&path).await.0, 204);
    let stop = worker.socket.receive("stop_inference").await;
    assert_eq!(stop["inference_id"], ids[1].as_str());
    shown_as(&admin, &ids[1], "cancelled").await;
}

#[actix_web::test]
async fn a_number_that_no_job_can_have_is_a_job_that_there_is_not() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let _worker = TestWorker::ready(&admin).await;
    for name in ["job-7", "job-0", "job-9999999999999999999999"] {
        let asked = ask(json!({ "model": name }));
        let (status, answer) = admin.post("/api/inference", asked).await;
        assert_eq!(status, 404, "{name}: {answer}");
        assert_eq!(answer["error"]["code"], "not_found");
    }
}
