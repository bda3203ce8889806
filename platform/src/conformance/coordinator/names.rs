//! Names of volunteers and other parts of a query (source: General rules).

use super::line::Ask;
use super::session::{Reply, Session};
use super::{Check, Outcome, Problem, check};
use crate::conformance::report::expect;

pub const CHECKS: &[Check] = &[
    check!(required "isci.accepted": "names of up to 60 letters, digits, _, . and - are taken", accepted),
    check!(required "isci.percent_decoded": "a percent-encoded name is the same worker", percent_decoded),
    check!(recommended "isci.characters": "a name with other characters is answered 400", characters),
    check!(recommended "isci.length": "an empty name and one of 61 characters are answered 400", length),
    check!(recommended "isci.missing": "a request without a name is answered 400", missing),
    check!(recommended "isci.decoded_once": "a name is decoded once only", decoded_once),
    check!(recommended "query.unknown": "parameters that are not known are ignored", unknown),
];

async fn accepted(session: &mut Session) -> Outcome {
    let (own, _) = session.newcomer_with_task().await?;
    let long = format!("{own}_Az.09-{}", "x".repeat(60));
    for name in [&own[own.len() - 1..], &long[..60]] {
        session.task(name).await?;
    }
    Ok(())
}

async fn percent_decoded(session: &mut Session) -> Outcome {
    session.room(1).await?;
    let part = session.newcomer_with_part().await?;
    session.good_upload(&part).await?;
    if !matches!(session.reply(&part.worker).await?, Reply::Wait(_)) {
        let why = "who has sent a result is not answered bekle";
        return Err(Problem::Blocked(why.to_owned()));
    }
    let encoded = part.worker.replace('-', "%2D");
    let reply = session.reply(&encoded).await?;
    let expected = format!(
        "bekle for {encoded}, whose result was sent as {}",
        part.worker
    );
    expect(matches!(reply, Reply::Wait(_)), expected, || {
        reply.describe()
    })
}

/// Names that must be answered 400.
async fn refused(session: &mut Session, names: &[String]) -> Outcome {
    session.newcomer_with_task().await?;
    for name in names {
        let ask = Ask::get("gorev", format!("isci={name}"));
        session.line.ask(ask).await?.expect_status(400)?;
    }
    Ok(())
}

async fn characters(session: &mut Session) -> Outcome {
    let own = session.newcomer();
    let others = [
        "%20", "+", "%2B", "%C3%A7", "%2F", "%5C", "%00", "%0A", "%3A", "%FF",
    ];
    let names = others.map(|other| format!("{own}{other}x"));
    refused(session, &names).await
}

async fn length(session: &mut Session) -> Outcome {
    refused(session, &[String::new(), "x".repeat(61)]).await
}

async fn missing(session: &mut Session) -> Outcome {
    session.newcomer_with_task().await?;
    let answer = session.line.ask(Ask::get("gorev", "")).await?;
    answer.expect_status(400)
}

async fn decoded_once(session: &mut Session) -> Outcome {
    let own = session.newcomer();
    refused(session, &[format!("{own}%252Dx")]).await
}

async fn unknown(session: &mut Session) -> Outcome {
    let (worker, _) = session.newcomer_with_task().await?;
    let ask = Ask::get("gorev", format!("surum=7&isci={worker}&renk"));
    session.line.ask(ask).await?.expect_status(200)
}
