//! Dashboards: how they get in and what they subscribe to (source: Dashboard WebSocket).

use serde_json::{Value, json};

use super::line::Line;
use super::rest::WsToken;
use super::yard::Yard;
use super::{Check, check};
use crate::conformance::report::{Outcome, Problem, expect, needed};
use crate::conformance::socket::{NotOpened, Received};

pub const CHECKS: &[Check] = &[
    check!(required "dashboard.token_lets_in": "/ws/user/{user_id}?token={websocket_token} opens with a fresh token", token_lets_in),
    check!(required "dashboard.wrong_token": "a token that does not exist opens nothing", wrong_token),
    check!(required "dashboard.no_token": "without a token nothing opens", no_token),
    check!(recommended "dashboard.refused_401": "a wrong token is answered by HTTP 401 at the upgrade", refused_at_upgrade),
    check!(recommended "dashboard.token_once": "a token opens one connection only", token_once),
    check!(recommended "dashboard.token_bound": "a token opens the connection of its own user only", token_bound),
    check!(required "dashboard.subscribe": "a dashboard that has subscribed to a job gets its job_update", subscribed),
    check!(required "dashboard.not_subscribed": "a dashboard that has not subscribed to a job gets no job_update of it", not_subscribed),
    check!(required "dashboard.unsubscribe": "after unsubscribe_job there is no job_update of it any more", unsubscribed),
    check!(recommended "dashboard.state_at_once": "subscribe_job is answered at once by a job_update with the present state", state_at_once),
    check!(recommended "dashboard.unknown_job": "subscribing to a job that does not exist is answered by error not_found", unknown_job),
    check!(recommended "dashboard.unknown_type": "a type that is not known is answered by error unknown_type, and the connection stays", unknown_type),
    check!(recommended "dashboard.malformed": "a frame that is no JSON is answered by error invalid_message, and the connection stays", malformed),
];

async fn token_lets_in(yard: &mut Yard) -> Outcome {
    yard.dashboard().await.map(drop)
}

/// Whether a try to open a dashboard got nowhere: refused at the upgrade, or closed before anything was said.
pub async fn shut_out(yard: &Yard, opened: Result<Line, NotOpened>) -> Outcome {
    let expected = "a refused upgrade, or a close before any message";
    let Ok(mut line) = opened else { return Ok(()) };
    match line.next_within(yard.within()).await {
        Some(Received::Closed(_)) => Ok(()),
        Some(other) => Err(Problem::broken(expected, other.describe())),
        None => Err(Problem::broken(expected, "a connection that stays open")),
    }
}

async fn made_up(yard: &Yard) -> Outcome<WsToken> {
    let fresh = yard.rest.ws_token().await?;
    Ok(WsToken {
        token: "x".repeat(fresh.token.len()),
        user: fresh.user,
    })
}

async fn wrong_token(yard: &mut Yard) -> Outcome {
    let token = made_up(yard).await?;
    shut_out(yard, yard.dashboard_with(&token).await).await
}

async fn no_token(yard: &mut Yard) -> Outcome {
    let user = yard.rest.ws_token().await?.user;
    shut_out(yard, yard.open(&format!("ws/user/{user}"), &[]).await).await
}

async fn refused_at_upgrade(yard: &mut Yard) -> Outcome {
    let token = made_up(yard).await?;
    let refused = yard.dashboard_with(&token).await.err();
    expect(
        refused.as_ref().and_then(|refused| refused.status) == Some(401),
        "HTTP 401 at the upgrade",
        || refused.map_or_else(|| "an upgrade".to_owned(), |refused| refused.text),
    )
}

async fn token_once(yard: &mut Yard) -> Outcome {
    let token = yard.rest.ws_token().await?;
    let first = yard.dashboard_with(&token).await;
    let _first = first.map_err(|refused| Problem::Blocked(refused.text))?;
    shut_out(yard, yard.dashboard_with(&token).await).await
}

async fn token_bound(yard: &mut Yard) -> Outcome {
    let mut token = yard.rest.ws_token().await?;
    token.user += 1;
    shut_out(yard, yard.dashboard_with(&token).await).await
}

fn is_update_of(message: &Value, job: i64) -> bool {
    message["type"] == "job_update" && message["job_id"] == job
}

async fn subscribed(yard: &mut Yard) -> Outcome {
    let (job, mut dashboard) = yard.running().await?;
    job.progress(10, json!(0.5));
    let id = job.id;
    let expected = format!("job_update with job_id {id}");
    let came = dashboard.wait_for(&expected, yard.within(), |message| {
        is_update_of(message, id)
    });
    came.await?;
    yard.finish(job);
    Ok(())
}

async fn not_subscribed(yard: &mut Yard) -> Outcome {
    let (job, mut watching) = yard.running().await?;
    let mut other = needed(yard.dashboard()).await?;
    let id = job.id;
    job.progress(10, json!(0.5));
    needed(watching.wait_for("job_update", yard.within(), |message| {
        is_update_of(message, id)
    }))
    .await?;
    let expected = "no job_update without subscribe_job";
    let quiet = yard.pace.quiet_for;
    other
        .stays_quiet(expected, quiet, |message| is_update_of(message, id))
        .await?;
    yard.finish(job);
    Ok(())
}

async fn unsubscribed(yard: &mut Yard) -> Outcome {
    let (job, mut watching) = yard.running().await?;
    let (id, within) = (job.id, yard.within());
    let mut leaving = needed(yard.watching(id)).await?;
    job.progress(10, json!(0.5));
    let at = |step: u64| {
        move |message: &Value| is_update_of(message, id) && message["data"]["step"] == step
    };
    needed(leaving.wait_for("job_update at step 10", within, at(10))).await?;
    leaving.say(&json!({"type": "unsubscribe_job", "job_id": id}));
    // What was on its way when it was taken may still come.
    settle(&mut leaving, yard).await?;
    job.progress(20, json!(0.5));
    needed(watching.wait_for("job_update at step 20", within, at(20))).await?;
    let expected = "no job_update after unsubscribe_job";
    leaving
        .stays_quiet(expected, yard.pace.quiet_for, |message| {
            is_update_of(message, id)
        })
        .await?;
    yard.finish(job);
    Ok(())
}

/// Reads on until nothing comes for a while.
async fn settle(line: &mut Line, yard: &Yard) -> Outcome {
    loop {
        match line.next_within(yard.pace.quiet_for).await {
            None => return Ok(()),
            Some(closed @ Received::Closed(_)) => return Err(Problem::Blocked(closed.describe())),
            Some(_) => {}
        }
    }
}

async fn state_at_once(yard: &mut Yard) -> Outcome {
    let (job, mut watching) = yard.running().await?;
    let (id, within) = (job.id, yard.within());
    job.progress(10, json!(0.5));
    let at_ten = |message: &Value| is_update_of(message, id) && message["data"]["step"] == 10;
    needed(watching.wait_for("job_update at step 10", within, at_ten)).await?;
    let mut late = needed(yard.watching(id)).await?;
    late.wait_for("job_update at step 10 after subscribe_job", within, at_ten)
        .await?;
    yard.finish(job);
    Ok(())
}

async fn error_with(line: &mut Line, yard: &Yard, code: &str) -> Outcome {
    let expected = format!("error with code {code}");
    let error = line
        .wait_for(&expected, yard.within(), |message| {
            message["type"] == "error"
        })
        .await?;
    expect(error["code"] == code, expected, || error.to_string())
}

async fn unknown_job(yard: &mut Yard) -> Outcome {
    let mut dashboard = needed(yard.dashboard()).await?;
    dashboard.say(&json!({"type": "subscribe_job", "job_id": 9_007_199_254_740_991_i64}));
    error_with(&mut dashboard, yard, "not_found").await
}

async fn unknown_type(yard: &mut Yard) -> Outcome {
    let mut dashboard = needed(yard.dashboard()).await?;
    dashboard.say(&json!({"type": "of_a_later_version"}));
    error_with(&mut dashboard, yard, "unknown_type").await?;
    still_serves(&mut dashboard, yard).await
}

async fn malformed(yard: &mut Yard) -> Outcome {
    let mut dashboard = needed(yard.dashboard()).await?;
    dashboard.say_text("{\"type\": \"subscribe_job\", ");
    error_with(&mut dashboard, yard, "invalid_message").await?;
    still_serves(&mut dashboard, yard).await
}

/// The connection is not closed.
async fn still_serves(line: &mut Line, yard: &Yard) -> Outcome {
    line.stays_quiet("a connection that stays open", yard.pace.quiet_for, |_| {
        false
    })
    .await
}
