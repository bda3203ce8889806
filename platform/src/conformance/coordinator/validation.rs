//! Results that are not valid (source: What the coordinator must do, 1).

use super::adapter::Hostile;
use super::line::Answer;
use super::session::{Part, Session};
use super::{Check, Outcome, Problem, check};
use crate::conformance::report::{expect, needed};

pub const CHECKS: &[Check] = &[
    check!(required "validate.missing_key": "a result without one of the keys is refused", missing_key),
    check!(required "validate.extra_key": "a result with a key too many is refused", extra_key),
    check!(required "validate.shape": "a result with another shape is refused", shape),
    check!(required "validate.dtype": "a result with another dtype is refused", dtype),
    check!(required "validate.nan": "a result with NaN is refused", nan),
    check!(required "validate.infinity": "a result with an infinity is refused", infinity),
    check!(required "validate.truncated": "a result whose data ends early is refused", truncated),
    check!(required "validate.trailing": "a result with more data than its header says is refused", trailing),
    check!(required "validate.header_length": "a result whose header claims to be larger than the file is refused", header_length),
    check!(required "validate.tensor_size": "a result with a tensor that claims to be larger than the file is refused", tensor_size),
    check!(required "validate.empty": "an empty result is refused", empty),
    check!(required "validate.pickle": "a pickle is refused", pickle),
    check!(recommended "validate.status": "results that are not valid are answered 400", status),
    check!(recommended "validate.names_key": "the reason names the key that is at fault", names_key),
];

macro_rules! refused {
    ($($name:ident: $hostile:ident),* $(,)?) => {
        $(async fn $name(session: &mut Session) -> Outcome {
            refused(session, stringify!($name), Hostile::$hostile).await
        })*
    };
}

refused! {
    missing_key: MissingKey,
    extra_key: ExtraKey,
    shape: Shape,
    dtype: Dtype,
    nan: Nan,
    infinity: Infinity,
    truncated: Truncated,
    trailing: Trailing,
    header_length: HeaderLength,
    tensor_size: TensorSize,
    empty: Empty,
    pickle: Pickle,
}

async fn answer_to(session: &mut Session, what: Hostile) -> Outcome<(Part, Answer)> {
    let part = session.newcomer_with_part().await?;
    let result = part.adapter.hostile(what, session.volunteers());
    let answer = session.upload(&part.worker, part.round, result).await?;
    Ok((part, answer))
}

async fn refused(session: &mut Session, name: &'static str, what: Hostile) -> Outcome {
    let (_, answer) = answer_to(session, what).await?;
    // 409: not looked at, since the round was over.
    let fits = answer.is_refusal() && answer.status != 409;
    expect(fits, "a refusal (HTTP 400)", || answer.describe())?;
    session.refused_with.push((name, answer.status));
    Ok(())
}

async fn status(session: &mut Session) -> Outcome {
    if session.refused_with.is_empty() {
        let why = "no such result was refused";
        return Err(Problem::Blocked(why.to_owned()));
    }
    let others: Vec<String> = session
        .refused_with
        .iter()
        .filter(|(_, status)| *status != 400)
        .map(|(name, status)| format!("{name}: {status}"))
        .collect();
    expect(others.is_empty(), "400 for each", || others.join(", "))
}

async fn names_key(session: &mut Session) -> Outcome {
    let (part, answer) = needed(answer_to(session, Hostile::Nan)).await?;
    let reason = answer.object().unwrap_or_default();
    let (true, Some(reason)) = (answer.is_refusal(), reason["hata"].as_str()) else {
        let why = format!("no refusal with a reason: {}", answer.describe());
        return Err(Problem::Blocked(why));
    };
    let key = part.adapter.last_key();
    expect(
        reason.contains(key),
        format!("a reason that names {key}"),
        || reason.to_owned(),
    )
}
