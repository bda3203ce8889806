//! Results of the open round, of closed ones and of those to come (source: Round lifecycle; where it is silent, ours).

use super::adapter::Hostile;
use super::line::{Answer, Ask};
use super::session::{Part, Reply, Session, result_of};
use super::{Check, Outcome, Problem, check};
use crate::conformance::report::{expect, needed};

pub const CHECKS: &[Check] = &[
    check!(required "sonuc.accepted": "a good result is answered 200 with tamam true and its tur", accepted),
    check!(required "sonuc.wait": "who has sent a result is answered bekle with tur until the round closes", wait),
    check!(required "sonuc.counted_once": "a worker counts once in a round", counted_once),
    check!(recommended "sonuc.second": "another result of the same worker in the round is answered 409", second),
    check!(recommended "sonuc.repeat": "the same result sent again is answered as the first time", repeat),
    check!(recommended "sonuc.repeat_late": "also after the round has closed", repeat_late),
    check!(recommended "sonuc.late": "a result for a closed round is answered 409", late),
    check!(recommended "sonuc.early": "a result for a round to come is answered 409", early),
    check!(recommended "sonuc.tur": "a tur that is missing, doubled or no number is answered 400", round_number),
    check!(recommended "sonuc.isci": "a name that may not be is answered 400 here too", worker_name),
    check!(recommended "sonuc.corrected": "after a result that was refused the worker may send a good one", corrected),
];

async fn accepted(session: &mut Session) -> Outcome {
    let part = session.newcomer_with_part().await?;
    let result = part.adapter.moved(session.volunteers());
    let answer = session.upload(&part.worker, part.round, result).await?;
    let object = answer.object().unwrap_or_default();
    let fits = answer.status == 200 && object["tamam"] == true && object["tur"] == part.round;
    let expected = format!("HTTP 200 {{\"tamam\": true, \"tur\": {}}}", part.round);
    expect(fits, expected, || answer.describe())
}

/// A volunteer whose result is in.
struct Sent {
    part: Part,
    result: Vec<u8>,
    answer: Answer,
}

/// A volunteer whose result is in, in any round.
async fn sent(session: &mut Session) -> Outcome<Sent> {
    let part = session.newcomer_with_part().await?;
    let result = part.adapter.moved(session.volunteers());
    let answer = session.good_upload(&part).await?;
    Ok(Sent {
        part,
        result,
        answer,
    })
}

/// The same in a round that goes on.
async fn waiting(session: &mut Session) -> Outcome<Sent> {
    session.room(1).await?;
    sent(session).await
}

/// Sends the same again, which must be answered as before.
async fn send_again(session: &mut Session, sent: Sent) -> Outcome {
    let Sent {
        part,
        result,
        answer: first,
    } = sent;
    let answer = session.upload(&part.worker, part.round, result).await?;
    let same = answer.status == first.status && answer.object() == first.object();
    expect(same, first.describe(), || answer.describe())
}

async fn wait(session: &mut Session) -> Outcome {
    let part = waiting(session).await?.part;
    let reply = session.reply(&part.worker).await?;
    let fits = matches!(reply, Reply::Wait(Some(round)) if round == part.round);
    let expected = format!("bekle, tur {}", part.round);
    expect(fits, expected, || reply.describe())
}

async fn counted_once(session: &mut Session) -> Outcome {
    session.missing(2).await?;
    let part = session.newcomer_with_part().await?;
    session.good_upload(&part).await?;
    let other = part.adapter.moved(session.volunteers() + 1);
    needed(session.upload(&part.worker, part.round, other)).await?;
    let quiet = session.pace.quiet_for;
    let then = session.gives_way_within(part.round, quiet).await?;
    expect(then.is_none(), "one more result to be waited for", || {
        "the round closed with two results of one worker".to_owned()
    })
}

async fn second(session: &mut Session) -> Outcome {
    let part = waiting(session).await?.part;
    let other = part.adapter.moved(session.volunteers() + 1);
    let answer = session.upload(&part.worker, part.round, other).await?;
    answer.expect_status(409)
}

async fn repeat(session: &mut Session) -> Outcome {
    let sent = waiting(session).await?;
    send_again(session, sent).await
}

async fn repeat_late(session: &mut Session) -> Outcome {
    let sent = sent(session).await?;
    needed(session.leave(sent.part.round)).await?;
    send_again(session, sent).await
}

async fn late(session: &mut Session) -> Outcome {
    let part = session.newcomer_with_part().await?;
    needed(session.leave(part.round)).await?;
    let result = part.adapter.moved(session.volunteers());
    let answer = session.upload(&part.worker, part.round, result).await?;
    answer.expect_status(409)
}

async fn early(session: &mut Session) -> Outcome {
    let part = session.newcomer_with_part().await?;
    let result = part.adapter.moved(session.volunteers());
    let answer = session.upload(&part.worker, part.round + 1, result).await?;
    answer.expect_status(409)
}

async fn round_number(session: &mut Session) -> Outcome {
    let part = session.newcomer_with_part().await?;
    let round = part.round;
    for tur in [
        String::new(),
        "&tur=".to_owned(),
        format!("&tur=-{round}"),
        format!("&tur={round}.0"),
        "&tur=x".to_owned(),
        format!("&tur={round}&tur={round}"),
    ] {
        let worker = session.newcomer();
        let result = part.adapter.moved(session.volunteers());
        let ask = Ask::result(format!("isci={worker}{tur}"), result);
        let answer = session.upload_as(ask, &worker, round).await?;
        answer.expect_status(400)?;
    }
    Ok(())
}

async fn worker_name(session: &mut Session) -> Outcome {
    let part = session.newcomer_with_part().await?;
    for worker in ["", "a%20b", "..%2Fx"] {
        let result = part.adapter.moved(session.volunteers());
        let ask = result_of(worker, part.round, result);
        let answer = session.upload_as(ask, worker, part.round).await?;
        answer.expect_status(400)?;
    }
    Ok(())
}

async fn corrected(session: &mut Session) -> Outcome {
    let part = session.newcomer_with_part().await?;
    let spoilt = part.adapter.hostile(Hostile::Nan, session.volunteers());
    let answer = needed(session.upload(&part.worker, part.round, spoilt)).await?;
    if !answer.is_refusal() {
        let why = format!("a result with NaN was not refused: {}", answer.describe());
        return Err(Problem::Blocked(why));
    }
    let result = part.adapter.moved(session.volunteers());
    let answer = session.upload(&part.worker, part.round, result).await?;
    answer.expect_status(200)
}
