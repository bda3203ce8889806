//! Shards of the data, where the coordinator serves them (source: GET /veri).

use safetensors::tensor::{Dtype, SafeTensors};

use super::line::Ask;
use super::session::{Session, digest_in};
use super::tasks::is_digest;
use super::weights::same_digest;
use super::{Check, Outcome, Problem, check};
use crate::conformance::report::{expect, needed};

pub const CHECKS: &[Check] = &[
    check!(required "veri.task": "a task tells veri_sha256 (64 lower-case hex digits) and veri_belirtec together", task),
    check!(required "veri.served": "the shard of a task is served", served),
    check!(required "veri.bilgi": "bilgi shows veri with bicim safetensors-ids-v1 and the number of shards", info),
    check!(required "veri.sha256": "X-Sha256 is the SHA-256 of the shard", sha256),
    check!(required "veri.task_digest": "veri_sha256 of the task is the SHA-256 of its shard", task_digest),
    check!(required "veri.ids": "a shard is safetensors with ids, one sequence of int32", ids),
    check!(required "veri.etiket": "etiket, where a shard has it, is int32 and as long as ids, token ids or -100", labels),
    check!(required "veri.belirtec": "veri_belirtec is the number of ids", tokens),
    check!(recommended "veri.sft_etiket": "in mode sft a shard has etiket", sft_labels),
    check!(required "veri.out_of_range": "a parca that is out of range is answered 400", out_of_range),
    check!(recommended "veri.not_a_number": "a parca that is missing or no number is answered 400", not_a_number),
    check!(required "veri.none": "a coordinator that serves no data answers 404", none),
];

async fn task(session: &mut Session) -> Outcome {
    let (_, task) = session.newcomer_with_task().await?;
    if task["veri_sha256"].is_null() && task["veri_belirtec"].is_null() {
        return no_data();
    }
    is_digest(&task, "veri_sha256")?;
    let fits = task["veri_belirtec"]
        .as_u64()
        .is_some_and(|count| count > 0);
    expect(fits, "veri_belirtec, a count", || task.to_string())
}

fn no_data<T>() -> Outcome<T> {
    let why = "the coordinator serves no data";
    Err(Problem::Blocked(why.to_owned()))
}

async fn info(session: &mut Session) -> Outcome {
    let (_, task) = session.newcomer_with_task().await?;
    let info = needed(session.info()).await?;
    if task["veri_sha256"].is_null() {
        return no_data();
    }
    let shown = &info["veri"];
    let fits = shown["bicim"] == "safetensors-ids-v1" && shown["parca"] == task["n_parca"];
    let expected = format!(
        "veri with bicim safetensors-ids-v1 and parca {}",
        task["n_parca"]
    );
    expect(fits, expected, || info.to_string())
}

async fn served(session: &mut Session) -> Outcome {
    session.shard().await.map(drop)
}

async fn sha256(session: &mut Session) -> Outcome {
    let shard = needed(session.shard()).await?;
    same_digest(&shard.answer)
}

async fn task_digest(session: &mut Session) -> Outcome {
    let shard = needed(session.shard()).await?;
    let own = shard.answer.sha256();
    let expected = format!("veri_sha256 {own}");
    expect(
        digest_in(&shard.task, "veri_sha256") == own,
        expected,
        || shard.task.to_string(),
    )
}

/// A tensor of 32-bit integers: its values and its shape. None where there is no such tensor.
fn integers(file: &[u8], name: &str) -> Outcome<Option<(Vec<i32>, Vec<usize>)>> {
    let expected = "safetensors";
    let read = SafeTensors::deserialize(file);
    let read = read.map_err(|why| Problem::broken(expected, why.to_string()))?;
    let Ok(tensor) = read.tensor(name) else {
        return Ok(None);
    };
    if tensor.dtype() != Dtype::I32 {
        let got = format!("{:?}", tensor.dtype());
        return Err(Problem::broken(format!("{name} of int32"), got));
    }
    let values = tensor.data().chunks_exact(4);
    let values = values.map(|bytes| i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    Ok(Some((values.collect(), tensor.shape().to_vec())))
}

/// The ids of a shard, for rules about something else.
async fn known_ids(session: &mut Session) -> Outcome<Vec<i32>> {
    needed(async {
        let shard = session.shard().await?;
        let ids = integers(&shard.answer.body, "ids")?;
        let missing = || Problem::Blocked("the shard has no ids".to_owned());
        ids.map(|(values, _)| values).ok_or_else(missing)
    })
    .await
}

async fn ids(session: &mut Session) -> Outcome {
    let shard = needed(session.shard()).await?;
    let expected = "ids, one sequence of token ids";
    let Some((values, shape)) = integers(&shard.answer.body, "ids")? else {
        return Err(Problem::broken(expected, "no ids"));
    };
    let fits = shape.len() == 1 && values.iter().all(|id| *id >= 0);
    expect(fits, expected, || format!("ids of shape {shape:?}"))
}

async fn labels(session: &mut Session) -> Outcome {
    let ids = known_ids(session).await?;
    let shard = session.shard().await?;
    let Some((values, shape)) = integers(&shard.answer.body, "etiket")? else {
        let why = "the shard has no etiket";
        return Err(Problem::Blocked(why.to_owned()));
    };
    let fits = shape == [ids.len()] && values.iter().all(|label| *label >= 0 || *label == -100);
    let expected = format!("etiket of shape [{}], each a token id or -100", ids.len());
    expect(fits, expected, || {
        let odd = values.iter().find(|label| **label < 0 && **label != -100);
        format!("shape {shape:?}, and {odd:?}")
    })
}

async fn tokens(session: &mut Session) -> Outcome {
    let ids = known_ids(session).await?;
    let shard = session.shard().await?;
    let expected = format!("veri_belirtec {}", ids.len());
    let fits = shard.task["veri_belirtec"] == ids.len() as u64;
    expect(fits, expected, || shard.task.to_string())
}

async fn sft_labels(session: &mut Session) -> Outcome {
    let shard = needed(session.shard()).await?;
    if shard.task["mod"] != "sft" {
        let why = "the session's mode is not sft";
        return Err(Problem::Blocked(why.to_owned()));
    }
    let read = SafeTensors::deserialize(&shard.answer.body);
    let read = read.map_err(|why| Problem::Blocked(why.to_string()))?;
    let names = read.names();
    expect(names.contains(&"etiket"), "etiket", || format!("{names:?}"))
}

async fn out_of_range(session: &mut Session) -> Outcome {
    let shard = needed(session.shard()).await?;
    let query = format!("parca={}", shard.task["n_parca"]);
    session
        .line
        .ask(Ask::get("veri", query))
        .await?
        .expect_status(400)
}

async fn not_a_number(session: &mut Session) -> Outcome {
    needed(session.shard()).await?;
    for query in ["", "parca=", "parca=-1", "parca=x", "parca=0.5"] {
        session
            .line
            .ask(Ask::get("veri", query))
            .await?
            .expect_status(400)?;
    }
    Ok(())
}

async fn none(session: &mut Session) -> Outcome {
    let (_, task) = session.newcomer_with_task().await?;
    if !task["veri_sha256"].is_null() {
        let why = "the coordinator serves data";
        return Err(Problem::Blocked(why.to_owned()));
    }
    session
        .line
        .ask(Ask::get("veri", "parca=0"))
        .await?
        .expect_status(404)
}
