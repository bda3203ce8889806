//! `GET /gorev`, `/bilgi`, `/agirlik` and `/veri`.

use actix_web::HttpRequest;
use serde_json::{Value, json};

use super::files::another;
use super::rounds::Rounds;
use super::{Coordinator, Fault, Reply};

/// Optimizer steps of a round.
const LOCAL_STEPS: u64 = 20;

impl Coordinator {
    pub fn task(&self, request: &HttpRequest) -> Result<Reply, Reply> {
        self.check_key(request)?;
        let worker = self.worker(request)?;
        let mut rounds = self.rounds();
        if rounds.round >= self.settings.total_rounds {
            let round = rounds.round;
            return Ok(Reply::json(&match self.has(Fault::NeverFinished) {
                true => json!({"bekle": true, "tur": round}),
                false => json!({"bitti": true}),
            }));
        }
        let has_sent = rounds.results.contains_key(&worker) && !self.has(Fault::NeverWaits);
        if has_sent || rounds.is_torn() {
            return Ok(Reply::json(&match self.has(Fault::WaitWithoutRound) {
                true => json!({"bekle": true}),
                false => json!({"bekle": true, "tur": rounds.round}),
            }));
        }
        Ok(Reply::json(&self.task_of(worker, &mut rounds)))
    }

    fn task_of(&self, worker: String, rounds: &mut Rounds) -> Value {
        let count = self.settings.shards.unwrap_or(2);
        rounds.asked += 1;
        let fresh = rounds.shards.len() % count;
        let shard = match self.fault {
            Fault::OtherShardEachTime => rounds.asked % count,
            Fault::SameShardForAll => 0,
            _ => *rounds.shards.entry(worker).or_insert(fresh),
        };
        let mut task = json!({
            "tur": rounds.round, "toplam_tur": self.settings.total_rounds, "parca": shard, "n_parca": count,
            "ic_adim": LOCAL_STEPS, "bs": 4, "seq": 512, "lr": 0.0002, "tohum": 0,
            "agirlik_sha256": self.digest(&rounds.weights.sha256), "mod": "sft",
        });
        match self.fault {
            Fault::NoSeed => task["tohum"] = Value::Null,
            Fault::UnknownMode => task["mod"] = json!("dpo"),
            Fault::ShardOutOfRange => task["parca"] = json!(shard + count),
            _ => {}
        }
        let shard = shard.min(count - 1);
        if let Some(file) = self.data.get(shard) {
            task["veri_sha256"] = match self.has(Fault::DataTaskDigest) {
                true => json!(another(&file.sha256)),
                false => json!(file.sha256),
            };
            let more = usize::from(self.has(Fault::TokenCount));
            task["veri_belirtec"] = json!(super::files::token_count(shard) + more);
        }
        task
    }

    /// How a digest of the weights is told.
    fn digest(&self, sha256: &str) -> String {
        match self.fault {
            Fault::TaskDigest => another(sha256),
            Fault::UpperCaseDigest => sha256.to_ascii_uppercase(),
            _ => sha256.to_owned(),
        }
    }

    pub fn info(&self, request: &HttpRequest) -> Result<Reply, Reply> {
        if self.has(Fault::BilgiLocked) {
            self.check_key(request)?;
        }
        let rounds = self.rounds();
        let is_locked = self.settings.key.is_some() != self.has(Fault::WrongLock);
        let received = match self.has(Fault::NothingReceived) {
            true => 0,
            false => rounds.results.len(),
        };
        let mode = match self.has(Fault::UnknownMode) {
            true => "dpo",
            false => "sft",
        };
        let mut info = json!({
            "protokol": 1, "ad": "reference", "tur": rounds.round, "toplam_tur": self.settings.total_rounds,
            "en_az": self.settings.enough, "n_parca": self.settings.shards.unwrap_or(2), "mod": mode, "bs": 4,
            "seq": 512, "ic_adim": LOCAL_STEPS + u64::from(self.has(Fault::OtherSteps)), "lr": 0.0002,
            "agirlik_sha256": self.digest(&rounds.weights.sha256), "gelen": received,
            "isciler": rounds.shards.len(), "bitti": rounds.round >= self.settings.total_rounds,
            "kilitli": is_locked, "model": {"huggingface_id": "yard/tiny"},
            "adaptor": {"bicim": "safetensors", "r": 2, "alpha": 4.0, "hedefler": ["q_proj"]},
        });
        if self.has(Fault::NoModel) {
            info["model"] = Value::Null;
        }
        if let (Some(shards), false) = (self.settings.shards, self.has(Fault::DataNotShown)) {
            info["veri"] = json!({"bicim": "safetensors-ids-v1", "parca": shards});
        }
        Ok(Reply::json(&info))
    }

    pub fn weights(&self, request: &HttpRequest) -> Result<Reply, Reply> {
        self.check_key(request)?;
        let mut rounds = self.rounds();
        let is_torn = rounds.is_torn();
        let file = match self.fault {
            Fault::WeightsNotPublished => &rounds.first,
            _ if is_torn => &rounds.earlier,
            _ => &rounds.weights,
        };
        let round = rounds.round + u64::from(self.has(Fault::RoundHeader));
        let reply = Reply::file(file).with("X-Tur", round.to_string());
        Ok(match self.fault {
            Fault::DigestHeader => reply.with("X-Sha256", another(&file.sha256)),
            Fault::WeightsCalledText => reply.with("Content-Type", "text/plain"),
            _ => reply,
        })
    }

    pub fn shard(&self, request: &HttpRequest) -> Result<Reply, Reply> {
        self.check_key(request)?;
        if self.data.is_empty() {
            let status = match self.has(Fault::NoDataIs400) {
                true => 400,
                false => 404,
            };
            return Err(Reply::refusal(status, "no data is served"));
        }
        let number = self.number(request, "parca")?;
        let any = self.data.first().filter(|_| self.has(Fault::AnyShard));
        let found = usize::try_from(number).ok();
        let found = found.and_then(|number| self.data.get(number)).or(any);
        let file = found.ok_or_else(|| Reply::refusal(400, "parca is out of range"))?;
        let reply = Reply::file(file);
        Ok(match self.has(Fault::DataDigestHeader) {
            true => reply.with("X-Sha256", another(&file.sha256)),
            false => reply,
        })
    }
}
