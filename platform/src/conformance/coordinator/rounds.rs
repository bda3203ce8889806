//! How a round closes and the next one opens (source: Round lifecycle; What the coordinator must do, 2 to 4).
//!
//! Most of these rules look at one round that the judge closes for all of them.

use std::rc::Rc;

use super::adapter::Adapter;
use super::line::Answer;
use super::session::{Labels, Part, Reply, Session, digest_in};
use super::turns::{Closed, Now};
use super::{Check, Outcome, Problem, check};
use crate::conformance::report::{expect, needed};

pub const CHECKS: &[Check] = &[
    check!(required "round.closes": "a round closes once it has enough results", closes),
    check!(required "round.next": "the round after it is one higher", next),
    check!(required "round.goes_on": "who waited is given the next round", goes_on),
    check!(required "round.weights": "the next round has other weights, with their own SHA-256", weights),
    check!(required "round.published": "/agirlik serves the weights of the next round, with its X-Tur", published),
    check!(required "round.layout": "keys, shapes and dtypes stay, and all values are finite", layout),
    check!(required "round.swap": "while a round closes, the body, X-Sha256 and X-Tur of /agirlik always belong together", swap),
    check!(recommended "round.moves": "the weights move towards the results", moves),
    check!(recommended "round.outlier": "one result that is far off does not carry the weights away", outlier),
    check!(required "round.timeout": "a round with too few results, but at least one, closes at its timeout", timeout),
];

/// A result that lies so many times as far off as the others.
const FAR: f64 = 1e4;
/// How far a merge may go, as a multiple of a result's way; with momentum that can be some.
const FURTHEST: f64 = 100.0;

/// A round that was closed, and what there was before and after.
pub struct Closing {
    /// A volunteer whose result was in before, where the session waits for two or more.
    waited: Option<String>,
    before: Part,
    labels_before: Labels,
    closed: Closed,
    glimpses: Vec<Labels>,
    /// The reply to who waited.
    reply: Option<Reply>,
    /// The next round's, where there is one.
    after: Option<(Part, Answer)>,
}

impl Session {
    /// Closes a round, the first time that it is asked for.
    async fn closing(&mut self) -> Outcome<Rc<Closing>> {
        if let Some(closing) = &self.closing {
            return Ok(closing.clone());
        }
        let surprises = self.surprises();
        let waited = match self.room(1).await {
            Ok(()) => {
                let part = self.newcomer_with_part().await?;
                self.good_upload(&part).await?;
                Some(part.worker)
            }
            Err(_) => None,
        };
        let before = self.newcomer_with_part().await?;
        let labels_before = Labels::of(&needed(self.weights()).await?);
        let (closed, glimpses) = self.close_round_watching().await?;
        let reply = match &waited {
            Some(worker) => Some(needed(self.reply(&worker.clone())).await?),
            None => None,
        };
        let after = match closed.then {
            Now::Finished => None,
            _ => {
                let part = self.newcomer_with_part().await?;
                Some((part, needed(self.weights()).await?))
            }
        };
        let closing = Rc::new(Closing {
            waited,
            before,
            labels_before,
            closed,
            glimpses,
            reply,
            after,
        });
        if self.surprises() == surprises {
            self.closing = Some(closing.clone());
        }
        Ok(closing)
    }
}

impl Closing {
    /// A volunteer's part of the round that was closed.
    pub fn part(&self) -> &Part {
        &self.before
    }

    fn after(&self) -> Outcome<&(Part, Answer)> {
        let last = || Problem::Blocked("the round that was closed was the last one".to_owned());
        self.after.as_ref().ok_or_else(last)
    }
}

async fn closes(session: &mut Session) -> Outcome {
    match session.stuck() {
        Some(why) => Err(Problem::broken("the round to close", why)),
        None => session.closing().await.map(drop),
    }
}

async fn next(session: &mut Session) -> Outcome {
    let closing = needed(session.closing()).await?;
    let (after, _) = closing.after()?;
    let before = closing.closed.round;
    expect(
        after.round == before + 1,
        format!("tur {}", before + 1),
        || format!("tur {} after tur {before}", after.round),
    )
}

async fn goes_on(session: &mut Session) -> Outcome {
    let closing = needed(session.closing()).await?;
    let (after, _) = closing.after()?;
    let (Some(waited), Some(reply)) = (&closing.waited, &closing.reply) else {
        let why = "one result closes a round of this session: this takes en_az of 2 or more";
        return Err(Problem::Blocked(why.to_owned()));
    };
    let fits = matches!(reply, Reply::Task(task) if task["tur"] == after.round);
    let expected = format!("a task of tur {} for {waited}", after.round);
    expect(fits, expected, || reply.describe())
}

async fn weights(session: &mut Session) -> Outcome {
    let closing = needed(session.closing()).await?;
    let (after, _) = closing.after()?;
    let digest = |task| digest_in(task, "agirlik_sha256");
    let (old, new) = (digest(&closing.before.task), digest(&after.task));
    expect(old != new, "another agirlik_sha256", || {
        format!("{new} again")
    })
}

async fn published(session: &mut Session) -> Outcome {
    let closing = needed(session.closing()).await?;
    let (after, answer) = closing.after()?;
    let (before, labels) = (&closing.labels_before, Labels::of(answer));
    let digest = |task| digest_in(task, "agirlik_sha256");
    let stay = digest(&closing.before.task) == digest(&after.task);
    let fits = labels.round != before.round && (stay || labels.sha256 != before.sha256);
    expect(
        fits,
        format!("another X-Tur and other weights than {before:?}"),
        || format!("{labels:?}"),
    )
}

/// The adapters before and after, where both can be read.
fn adapters(closing: &Closing) -> Outcome<(Rc<Adapter>, Adapter)> {
    let (_, answer) = closing.after()?;
    let after = Adapter::read(answer.body.to_vec()).map_err(Problem::Blocked)?;
    Ok((closing.before.adapter.clone(), after))
}

async fn layout(session: &mut Session) -> Outcome {
    let closing = needed(session.closing()).await?;
    let (before, after) = adapters(&closing)?;
    expect(
        after.layout() == before.layout(),
        format!("{:?}", before.layout()),
        || format!("{:?}", after.layout()),
    )?;
    match after.not_finite() {
        None => Ok(()),
        Some(key) => Err(Problem::broken(
            "finite values",
            format!("{key} is not finite"),
        )),
    }
}

async fn swap(session: &mut Session) -> Outcome {
    let closing = needed(session.closing()).await?;
    let (_, answer) = closing.after()?;
    let (before, after) = (&closing.labels_before, Labels::of(answer));
    let fits = |seen: &Labels| {
        let is_new = seen.sha256 == after.sha256;
        let old = seen.round == before.round && (!is_new || before.sha256 == after.sha256);
        let new = seen.round == after.round && is_new;
        (old || new) && seen.is_true() == before.is_true()
    };
    match closing.glimpses.iter().find(|seen| !fits(seen)) {
        None => Ok(()),
        Some(torn) => Err(Problem::broken(
            format!("the labels of before or after, {before:?} or {after:?}"),
            format!("{torn:?}"),
        )),
    }
}

async fn moves(session: &mut Session) -> Outcome {
    let closing = needed(session.closing()).await?;
    let (before, after) = adapters(&closing)?;
    if *before == after {
        let why = "the weights stay as they were";
        return Err(Problem::Blocked(why.to_owned()));
    }
    let way = before.way_to(&after);
    expect(way.is_forward, "a step towards the results", || {
        format!("{way:?}")
    })
}

async fn outlier(session: &mut Session) -> Outcome {
    // Of two results nobody can say which one is far off.
    session.missing(3).await?;
    let part = session.newcomer_with_part().await?;
    let far = part.adapter.far_away(FAR, session.volunteers());
    // It may be refused at once as well.
    needed(session.upload(&part.worker, part.round, far)).await?;
    needed(session.close_round()).await?;
    let after = session.newcomer_with_part().await?;
    let way = part.adapter.way_to(&after.adapter);
    let expected = format!("a step of at most {FURTHEST} times that of a result");
    expect(way.steps < FURTHEST, expected, || {
        format!("one of {:.0} times", way.steps)
    })
}

async fn timeout(session: &mut Session) -> Outcome {
    let within = session.pace.timeout_within;
    if within.is_zero() {
        let why = "slow: only with --wait-seconds, longer than the session's round timeout";
        return Err(Problem::Blocked(why.to_owned()));
    }
    session.room(1).await?;
    let part = session.newcomer_with_part().await?;
    session.good_upload(&part).await?;
    let then = session.waits_out(part.round, within).await?;
    expect(then.is_some(), "the next round", || {
        format!("tur {} goes on {within:?} with one result", part.round)
    })
}
