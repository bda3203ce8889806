//! What holds for all answers (source: General rules); looked at last, in all that was heard.

use reqwest::Method;

use super::line::{Ask, is_loopback};
use super::session::Session;
use super::{Check, Outcome, Problem, check};

pub const CHECKS: &[Check] = &[
    check!(required "agirlik.readable": "the weights of every round are safetensors", readable),
    check!(recommended "errors.method": "a method that a path does not take is answered 405", method),
    check!(required "errors.hata": "every error is {\"hata\": \"…\"}", errors),
    check!(required "json.objects": "every answer but files is a JSON object in UTF-8", objects),
    check!(recommended "json.type": "JSON comes as application/json", media_type),
    check!(required "http.version": "answers are HTTP/1.1", version),
    check!(required "http.secure": "the address is https, or http on this machine", secure),
];

async fn method(session: &mut Session) -> Outcome {
    let worker = session.newcomer();
    let asks = [
        Ask::get("gorev", format!("isci={worker}")).by(Method::POST),
        Ask::get("sonuc", format!("isci={worker}&tur=0")),
    ];
    for ask in asks {
        session.line.ask(ask).await?.expect_status(405)?;
    }
    Ok(())
}

/// The first that stood out among so many.
fn heard(count: u64, what: &str, expected: &str, found: &Option<String>) -> Outcome {
    match found {
        Some(found) => Err(Problem::broken(expected, found)),
        None if count == 0 => Err(Problem::Blocked(format!("{what} was seen"))),
        None => Ok(()),
    }
}

async fn readable(session: &mut Session) -> Outcome {
    let (count, found) = (session.weights_read, session.unreadable.clone());
    heard(count, "no weights of a task", "safetensors", &found)
}

async fn errors(session: &mut Session) -> Outcome {
    let heard_of = &session.line.heard;
    let expected = "{\"hata\": \"…\"}";
    heard(
        heard_of.refusals,
        "no error",
        expected,
        &heard_of.without_reason,
    )
}

async fn objects(session: &mut Session) -> Outcome {
    let heard_of = &session.line.heard;
    let expected = "a JSON object in UTF-8";
    heard(heard_of.objects, "no answer", expected, &heard_of.no_object)
}

async fn media_type(session: &mut Session) -> Outcome {
    let heard_of = &session.line.heard;
    let expected = "application/json";
    heard(
        heard_of.objects,
        "no answer",
        expected,
        &heard_of.other_type,
    )
}

async fn version(session: &mut Session) -> Outcome {
    let heard_of = &session.line.heard;
    let count = heard_of.objects + heard_of.refusals;
    heard(count, "no answer", "HTTP/1.1", &heard_of.other_version)
}

async fn secure(session: &mut Session) -> Outcome {
    let url = session.line.base();
    match url.scheme() == "https" || is_loopback(url) {
        true => Ok(()),
        false => Err(Problem::broken("https", url.to_string())),
    }
}
