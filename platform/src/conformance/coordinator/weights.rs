//! The global adapter (source: GET /agirlik).

use reqwest::Method;

use super::adapter::Adapter;
use super::line::Ask;
use super::session::{Labels, Session, digest_in};
use super::{Check, Outcome, Problem, check};
use crate::conformance::report::{expect, needed};

pub const CHECKS: &[Check] = &[
    check!(required "agirlik.type": "the global adapter comes as application/octet-stream", media_type),
    check!(required "agirlik.safetensors": "it is safetensors with finite floats", safetensors),
    check!(required "agirlik.sha256": "X-Sha256 is the SHA-256 of the body", sha256),
    check!(required "agirlik.task": "agirlik_sha256 of a task is the SHA-256 of the weights", of_the_task),
    check!(required "agirlik.tur": "X-Tur is the round of the task with those weights", round),
    check!(required "agirlik.within_round": "the weights stay the same within a round", within_round),
    check!(recommended "agirlik.head": "HEAD gives the same headers", head),
    check!(recommended "agirlik.range": "a Range gives a part of the file", range),
];

async fn media_type(session: &mut Session) -> Outcome {
    let answer = session.weights().await?;
    let found = answer.header("content-type").unwrap_or("none");
    let expected = "Content-Type application/octet-stream";
    expect(found == "application/octet-stream", expected, || {
        found.to_owned()
    })
}

async fn safetensors(session: &mut Session) -> Outcome {
    let answer = session.weights().await?;
    let expected = "safetensors with finite floats";
    let adapter = Adapter::read(answer.body.to_vec());
    let adapter = adapter.map_err(|why| Problem::broken(expected, why))?;
    match adapter.not_finite() {
        None => Ok(()),
        Some(key) => Err(Problem::broken(expected, format!("{key} is not finite"))),
    }
}

async fn sha256(session: &mut Session) -> Outcome {
    let answer = needed(session.weights()).await?;
    same_digest(&answer)
}

/// Broken unless `X-Sha256` is the digest of the body.
pub fn same_digest(answer: &super::line::Answer) -> Outcome {
    let found = answer.header("x-sha256");
    let own = answer.sha256();
    expect(
        found == Some(own.as_str()),
        format!("X-Sha256 {own}"),
        || format!("X-Sha256 {}", found.unwrap_or("missing")),
    )
}

async fn of_the_task(session: &mut Session) -> Outcome {
    let (_, task) = session.newcomer_with_task().await?;
    let own = needed(session.weights()).await?.sha256();
    let expected = format!("agirlik_sha256 {own}");
    expect(digest_in(&task, "agirlik_sha256") == own, expected, || {
        task.to_string()
    })
}

async fn round(session: &mut Session) -> Outcome {
    let (_, task) = session.newcomer_with_task().await?;
    let answer = needed(session.weights()).await?;
    let found = answer.header("x-tur").unwrap_or("missing");
    let (expected, found) = (format!("X-Tur {}", task["tur"]), format!("X-Tur {found}"));
    expect(expected == found, expected, || found)
}

async fn within_round(session: &mut Session) -> Outcome {
    session.room(1).await?;
    let (_, first) = session.newcomer_with_task().await?;
    let before = Labels::of(&needed(session.weights()).await?);
    let part = session.newcomer_with_part().await?;
    session.good_upload(&part).await?;
    let (_, second) = session.newcomer_with_task().await?;
    let after = Labels::of(&needed(session.weights()).await?);
    let same = first["agirlik_sha256"] == second["agirlik_sha256"] && before == after;
    let expected = format!("the weights {} until the round closes", before.sha256);
    expect(same, expected, || {
        format!(
            "{} and agirlik_sha256 {} after a result",
            after.sha256, second["agirlik_sha256"]
        )
    })
}

async fn head(session: &mut Session) -> Outcome {
    let whole = needed(session.weights()).await?;
    let head = session
        .line
        .ask(Ask::get("agirlik", "").by(Method::HEAD))
        .await?;
    head.expect_status(200)?;
    for name in ["x-sha256", "x-tur", "content-length"] {
        let expected = format!("{name} {}", whole.header(name).unwrap_or("missing"));
        expect(head.header(name) == whole.header(name), expected, || {
            head.header(name).unwrap_or("missing").to_owned()
        })?;
    }
    Ok(())
}

async fn range(session: &mut Session) -> Outcome {
    let whole = needed(session.weights()).await?;
    let ask = Ask::get("agirlik", "").with("Range", "bytes=8-23");
    let part = session.line.ask(ask).await?;
    part.expect_status(206)?;
    let expected = "the bytes 8 to 23 of the file";
    expect(
        whole.body.get(8..24) == Some(&part.body[..]),
        expected,
        || format!("{} other bytes", part.body.len()),
    )
}
