//! The shared key (source: General rules).

use super::line::{Ask, Shown};
use super::raw::Length;
use super::session::{Session, result_of};
use super::{Check, Outcome, Problem, check};
use crate::conformance::report::expect;

pub const CHECKS: &[Check] = &[
    check!(required "key.right": "the shared key is taken", right),
    check!(required "key.missing": "without the shared key a request is answered 401", missing),
    check!(required "key.wrong": "a wrong key is answered 401", wrong),
    check!(required "key.bilgi": "GET /bilgi is answered without the key", bilgi),
    check!(recommended "key.before_body": "a wrong key is answered before the result's body comes", before_body),
    check!(recommended "key.ignored": "where there is no shared key, one that is sent is ignored", ignored),
];

/// Blocked where the session has no key.
fn with_key(session: &Session) -> Outcome {
    match session.line.has_key() {
        true => Ok(()),
        false => {
            let why = "no shared key was given (--anahtar)";
            Err(Problem::Blocked(why.to_owned()))
        }
    }
}

async fn right(session: &mut Session) -> Outcome {
    with_key(session)?;
    let worker = session.newcomer();
    let ask = Ask::get("gorev", format!("isci={worker}"));
    let answer = session.line.ask(ask).await?;
    expect(answer.status != 401, "another status than 401", || {
        answer.describe()
    })
}

/// Every request that wants the key shows something else.
async fn refused(session: &mut Session, shown: Shown) -> Outcome {
    with_key(session)?;
    let worker = session.newcomer();
    let asks = [
        Ask::get("gorev", format!("isci={worker}")),
        Ask::get("agirlik", ""),
        Ask::get("veri", "parca=0"),
        result_of(&worker, 0, b"no result".to_vec()),
    ];
    for ask in asks {
        let answer = session.line.ask(ask.showing(shown)).await?;
        answer.expect_status(401)?;
    }
    Ok(())
}

async fn missing(session: &mut Session) -> Outcome {
    refused(session, Shown::Nothing).await
}

async fn wrong(session: &mut Session) -> Outcome {
    refused(session, Shown::WrongKey).await
}

async fn bilgi(session: &mut Session) -> Outcome {
    session.info().await.map(drop)
}

async fn before_body(session: &mut Session) -> Outcome {
    with_key(session)?;
    let worker = session.newcomer();
    let ask = result_of(&worker, 0, Vec::new()).showing(Shown::WrongKey);
    let answer = session.line.ask_raw(&ask, Length::Bytes(1 << 10)).await?;
    answer.expect_status(401)
}

async fn ignored(session: &mut Session) -> Outcome {
    if session.line.has_key() {
        let why = "there is a shared key";
        return Err(Problem::Blocked(why.to_owned()));
    }
    let (worker, _) = session.newcomer_with_task().await?;
    let ask = Ask::get("gorev", format!("isci={worker}")).showing(Shown::WrongKey);
    session.line.ask(ask).await?.expect_status(200)
}
