//! How results come over the wire (source: nothing but that a result is validated; the rest is ours).

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::line::Ask;
use super::raw::Length;
use super::session::{Session, result_of};
use super::{Check, Outcome, check};

pub const CHECKS: &[Check] = &[
    check!(required "upload.cut": "a result that breaks off is not counted and can be sent again", cut),
    check!(recommended "upload.sha256": "X-Sha256, where a result has it, must be that of the body", sha256),
    check!(recommended "upload.too_large": "a result far larger than the adapter is answered 413 before it comes", too_large),
    check!(recommended "upload.length": "a result without Content-Length is answered 411", length),
];

async fn cut(session: &mut Session) -> Outcome {
    let part = session.newcomer_with_part().await?;
    let result = Bytes::from(part.adapter.moved(session.volunteers()));
    let half = result.slice(..result.len() / 2);
    let ask = result_of(&part.worker, part.round, Vec::new());
    let broken_off = Ask {
        body: Some(half),
        ..ask
    };
    session
        .line
        .break_off(&broken_off, Length::Bytes(result.len()))
        .await?;
    let answer = session
        .upload(&part.worker, part.round, result.to_vec())
        .await?;
    answer.expect_status(200)
}

async fn sha256(session: &mut Session) -> Outcome {
    let part = session.newcomer_with_part().await?;
    let result = part.adapter.moved(session.volunteers());
    let ask = result_of(&part.worker, part.round, result);
    let own = sha256_of(&ask);
    for (said, status) in [("0".repeat(64), 400), (own, 200)] {
        let ask = ask.clone().with("X-Sha256", said);
        let answer = session.upload_as(ask, &part.worker, part.round).await?;
        answer.expect_status(status)?;
    }
    Ok(())
}

fn sha256_of(ask: &Ask) -> String {
    hex::encode(Sha256::digest(ask.body.as_deref().unwrap_or_default()))
}

async fn too_large(session: &mut Session) -> Outcome {
    let part = session.newcomer_with_part().await?;
    let ask = result_of(&part.worker, part.round, Vec::new());
    let bytes = 2 * part.adapter.size_bytes() + (1 << 20);
    let answer = session.line.ask_raw(&ask, Length::Bytes(bytes)).await?;
    answer.expect_status(413)
}

async fn length(session: &mut Session) -> Outcome {
    let part = session.newcomer_with_part().await?;
    let result = part.adapter.moved(session.volunteers());
    let ask = result_of(&part.worker, part.round, result);
    let answer = session.line.ask_raw(&ask, Length::Chunked).await?;
    if answer.is_success() {
        session.turns.count(&part.worker, part.round);
    }
    answer.expect_status(411)
}
