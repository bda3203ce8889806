//! Tasks and what is told of a session (source: GET /gorev, and what it says of /bilgi).

use std::collections::BTreeSet;

use serde_json::Value;

use super::line::{Ask, Shown};
use super::session::Session;
use super::{Check, Outcome, Problem, check};
use crate::conformance::report::{expect, needed};

pub const CHECKS: &[Check] = &[
    check!(required "gorev.fields": "a task carries tur, toplam_tur, parca, n_parca, ic_adim, bs, seq, lr and tohum, each a number as it should be", fields),
    check!(required "gorev.digest": "a task's agirlik_sha256 is 64 lower-case hex digits", digest),
    check!(required "gorev.ranges": "tur is below toplam_tur, and parca below n_parca", ranges),
    check!(required "gorev.mod": "mod, where a task has it, is cpt or sft", mode),
    check!(recommended "gorev.same": "a worker that asks again in a round gets the same task", same),
    check!(recommended "gorev.spread": "new workers are spread over the shards", spread),
    check!(required "bilgi.answered": "GET /bilgi is answered with a JSON object", answered),
    check!(recommended "bilgi.fields": "bilgi says protokol 1, ad, en_az, gelen, isciler, bitti, kilitli, model and adaptor", info_fields),
    check!(recommended "bilgi.agrees": "bilgi and the tasks agree", agrees),
    check!(recommended "bilgi.gelen": "gelen grows by one with a result", received),
    check!(recommended "bilgi.kilitli": "kilitli says whether a key is needed", locked),
];

/// Counts of a task, each with the least that it can be.
const COUNTS: [(&str, u64); 8] = [
    ("tur", 0),
    ("toplam_tur", 1),
    ("parca", 0),
    ("n_parca", 1),
    ("ic_adim", 1),
    ("bs", 1),
    ("seq", 1),
    ("tohum", 0),
];

async fn task(session: &mut Session) -> Outcome<Value> {
    session.newcomer_with_task().await.map(|(_, task)| task)
}

async fn fields(session: &mut Session) -> Outcome {
    let worker = session.newcomer();
    let task = session.task(&worker).await?;
    for (field, least) in COUNTS {
        let fits = task[field].as_u64().is_some_and(|count| count >= least);
        let expected = format!("{field}, an integer from {least}");
        expect(fits, expected, || task.to_string())?;
    }
    let rate = task["lr"].as_f64();
    let fits = rate.is_some_and(|rate| rate > 0.0);
    expect(fits, "lr, a number above 0", || task.to_string())
}

async fn digest(session: &mut Session) -> Outcome {
    let task = task(session).await?;
    is_digest(&task, "agirlik_sha256")
}

/// Broken unless a field is a digest as the source writes them.
pub fn is_digest(task: &Value, field: &str) -> Outcome {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let text = task[field].as_str().unwrap_or_default();
    let fits = text.len() == 64 && text.bytes().all(digit);
    let expected = format!("{field}, 64 lower-case hex digits");
    expect(fits, expected, || task.to_string())
}

async fn ranges(session: &mut Session) -> Outcome {
    let task = task(session).await?;
    for (field, limit) in [("tur", "toplam_tur"), ("parca", "n_parca")] {
        let (Some(value), Some(below)) = (task[field].as_u64(), task[limit].as_u64()) else {
            let why = format!("there is no {field} or no {limit}");
            return Err(Problem::Blocked(why));
        };
        let expected = format!("{field} below {limit}");
        expect(value < below, expected, || task.to_string())?;
    }
    Ok(())
}

async fn mode(session: &mut Session) -> Outcome {
    let task = task(session).await?;
    let fits = match &task["mod"] {
        Value::Null => true,
        mode => mode == "cpt" || mode == "sft",
    };
    expect(fits, "mod cpt or sft, or none", || task.to_string())
}

async fn same(session: &mut Session) -> Outcome {
    let (worker, first) = session.newcomer_with_task().await?;
    for _ in 0..4 {
        let again = session.task(&worker).await?;
        expect(again == first, first.to_string(), || again.to_string())?;
    }
    Ok(())
}

async fn spread(session: &mut Session) -> Outcome {
    const MOST_WORKERS: u64 = 32;
    let mut shards = BTreeSet::new();
    let first = task(session).await?;
    let count = first["n_parca"].as_u64().unwrap_or(1);
    if count < 2 {
        let why = "there is only one shard";
        return Err(Problem::Blocked(why.to_owned()));
    }
    let workers = (4 * count).min(MOST_WORKERS);
    for _ in 0..workers {
        shards.insert(task(session).await?["parca"].to_string());
        if shards.len() > 1 {
            return Ok(());
        }
    }
    let got = format!("parca {shards:?} for all of {workers} new workers");
    Err(Problem::broken("more than one parca", got))
}

async fn answered(session: &mut Session) -> Outcome {
    session.info().await.map(drop)
}

async fn info_fields(session: &mut Session) -> Outcome {
    let info = needed(session.info()).await?;
    let text = |at: &str| info.pointer(at).is_some_and(Value::is_string);
    let count = |at: &str| info.pointer(at).is_some_and(Value::is_u64);
    let flag = |at: &str| info.pointer(at).is_some_and(Value::is_boolean);
    let fits = [
        ("protokol 1", info["protokol"] == 1),
        ("ad, text", text("/ad")),
        ("en_az, a count", count("/en_az")),
        ("gelen, a count", count("/gelen")),
        ("isciler, a count", count("/isciler")),
        ("bitti, true or false", flag("/bitti")),
        ("kilitli, true or false", flag("/kilitli")),
        ("model.huggingface_id, text", text("/model/huggingface_id")),
        (
            "adaptor.bicim safetensors",
            info["adaptor"]["bicim"] == "safetensors",
        ),
        ("adaptor.r, a count", count("/adaptor/r")),
        (
            "adaptor.alpha, a number",
            info["adaptor"]["alpha"].is_number(),
        ),
        (
            "adaptor.hedefler, a list",
            info["adaptor"]["hedefler"].is_array(),
        ),
    ];
    let missing: Vec<_> = fits.iter().filter(|(_, fits)| !fits).collect();
    let names: Vec<_> = missing.iter().map(|(name, _)| *name).collect();
    expect(missing.is_empty(), names.join("; "), || info.to_string())
}

async fn agrees(session: &mut Session) -> Outcome {
    let info = needed(session.info()).await?;
    let task = task(session).await?;
    let after = needed(session.info()).await?;
    for field in [
        "tur",
        "toplam_tur",
        "n_parca",
        "ic_adim",
        "bs",
        "seq",
        "lr",
        "agirlik_sha256",
        "mod",
    ] {
        // Missing means cpt.
        let of = |object: &Value| match (field, &object[field]) {
            ("mod", Value::Null) => Value::from("cpt"),
            (_, value) => value.clone(),
        };
        let same = of(&info) == of(&task) || of(&after) == of(&task);
        let expected = format!("{field} {} as the task says", task[field]);
        expect(same, expected, || info.to_string())?;
    }
    Ok(())
}

async fn received(session: &mut Session) -> Outcome {
    session.room(1).await?;
    let before = needed(session.info()).await?["gelen"].as_u64();
    let Some(before) = before else {
        let why = "bilgi does not say gelen";
        return Err(Problem::Blocked(why.to_owned()));
    };
    let part = session.newcomer_with_part().await?;
    session.good_upload(&part).await?;
    let after = session.info().await?;
    let expected = format!("gelen {}", before + 1);
    expect(after["gelen"] == before + 1, expected, || after.to_string())
}

async fn locked(session: &mut Session) -> Outcome {
    let info = needed(session.info()).await?;
    let worker = session.newcomer();
    let ask = Ask::get("gorev", format!("isci={worker}")).showing(Shown::Nothing);
    let is_locked = needed(session.line.ask(ask)).await?.status == 401;
    let expected = format!("kilitli {is_locked}");
    expect(info["kilitli"] == is_locked, expected, || info.to_string())
}
