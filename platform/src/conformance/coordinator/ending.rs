//! The end of the session (source: Round lifecycle), which is brought about only on request.

use super::session::{Reply, Session};
use super::turns::Now;
use super::{Check, Outcome, Problem, check};
use crate::conformance::report::{expect, needed};

pub const CHECKS: &[Check] = &[
    check!(required "end.bitti": "when all rounds are over, every worker is answered bitti", finished),
    check!(recommended "end.refuses": "a result after the end is refused", refuses),
    check!(recommended "end.agirlik": "/agirlik serves the final weights", weights),
    check!(recommended "end.bilgi": "bilgi says bitti", info),
];

/// Plays the session to its end.
async fn end(session: &mut Session) -> Outcome {
    if needed(session.now()).await? == Now::Finished {
        return Ok(());
    }
    if !session.pace.to_the_end {
        let why = "only with --to-the-end, which uses the session up";
        return Err(Problem::Blocked(why.to_owned()));
    }
    loop {
        if let Some(why) = session.stuck() {
            return Err(Problem::Blocked(format!("rounds do not close: {why}")));
        }
        let (_, task) = session.newcomer_with_task().await?;
        let is_last = task["tur"].as_u64().map(|round| round + 1) >= task["toplam_tur"].as_u64();
        match session.close_round().await {
            Ok(closed) if closed.then == Now::Finished => return Ok(()),
            Ok(closed) if is_last => {
                let got = format!("{:?} after the last round", closed.then);
                return Err(Problem::broken("bitti", got));
            }
            Err(problem) if !is_last => return Err(problem.in_the_way()),
            closed => closed.map(drop)?,
        }
    }
}

async fn finished(session: &mut Session) -> Outcome {
    end(session).await?;
    let worker = session.newcomer();
    let reply = session.reply(&worker).await?;
    expect(matches!(reply, Reply::Finished), "bitti true", || {
        reply.describe()
    })
}

async fn refuses(session: &mut Session) -> Outcome {
    needed(end(session)).await?;
    let closing = session.closing.clone();
    let Some(part) = closing.as_ref().map(|closing| closing.part()) else {
        let why = "no adapter was seen before the end";
        return Err(Problem::Blocked(why.to_owned()));
    };
    for round in [part.round, u64::from(u32::MAX)] {
        let worker = session.newcomer();
        let result = part.adapter.moved(session.volunteers());
        let answer = session.upload(&worker, round, result).await?;
        expect(answer.is_refusal(), "a refusal", || answer.describe())?;
    }
    Ok(())
}

async fn weights(session: &mut Session) -> Outcome {
    needed(end(session)).await?;
    session.weights().await.map(drop)
}

async fn info(session: &mut Session) -> Outcome {
    needed(end(session)).await?;
    let info = needed(session.info()).await?;
    expect(info["bitti"] == true, "bitti true", || info.to_string())
}
