//! Secure aggregation over real sockets, with workers that are played by the library's own protocol.

use trainyard_privacy::secure::{
    Announcing, Context, Masking, PublicKeys, Roster, SealedShares, Sharing, fixed_point,
};
use trainyard_shared::ids::FederatedSessionId;
use trainyard_shared::message::{MaskingKeys, ShareFrom};

use super::*;

/// A worker in a session with secure aggregation, its order and what it has of secrets.
struct Masked {
    worker: TestWorker,
    start: Value,
    asked: Value,
    /// That its result was trained on.
    examples: u64,
}

impl Masked {
    async fn says(&mut self, kind: &str, more: Value) -> Value {
        let message_id = uuid::Uuid::new_v4().to_string();
        let mut data = json!({"round": self.start["data"]["round"]});
        if let Some(attempt) = self.asked["data"]["attempt"].as_u64() {
            data["attempt"] = json!(attempt);
        }
        for (field, value) in more.as_object().unwrap() {
            data[field] = value.clone();
        }
        let session = &self.start["session_id"];
        let message =
            json!({"type": kind, "session_id": session, "message_id": message_id, "data": data});
        let socket = &mut self.worker.socket;
        socket.send(message).await;
        socket
            .receive_where(|answer| answer["message_id"] == message_id.as_str())
            .await
    }

    async fn takes(&mut self, kind: &str, more: Value) {
        let answer = self.says(kind, more).await;
        assert_eq!(answer["type"], "ack", "{kind}: {answer}");
    }

    fn round(&self) -> u64 {
        self.start["data"]["round"].as_u64().unwrap()
    }

    /// The next round is open; it has a result of that too.
    async fn goes_on(&mut self) {
        self.start = self.worker.socket.receive("continue_round").await;
        self.asked = Value::Null;
        self.trained().await;
    }

    async fn trained(&mut self) {
        let more = json!({"num_examples": self.examples, "steps": 5});
        self.takes("round_trained", more).await;
    }

    async fn is_asked(&mut self, kind: &str) {
        self.asked = self.worker.socket.receive(kind).await;
    }

    async fn announces(&mut self) -> Announcing {
        self.is_asked("announce_keys").await;
        let attempt = self.asked["data"]["attempt"].as_u64().unwrap();
        let session = FederatedSessionId(self.start["session_id"].as_i64().unwrap());
        let announcing = Announcing::new(Context::of(session, self.round(), attempt)).unwrap();
        let keys = MaskingKeys::from(&announcing.public_keys());
        self.takes("keys_announced", serde_json::to_value(keys).unwrap())
            .await;
        announcing
    }

    async fn shares(&mut self, announcing: Announcing) -> Sharing {
        self.is_asked("share_secrets").await;
        let data = &self.asked["data"];
        let members: Vec<MaskingKeys> = serde_json::from_value(data["members"].clone()).unwrap();
        let threshold = data["threshold"].as_u64().unwrap() as usize;
        let members = members.iter().map(PublicKeys::from).collect();
        let roster = Roster::new(threshold, members).unwrap();
        let (sharing, sealed) = announcing.share(roster).unwrap();
        let shares: Vec<_> = sealed.iter().map(SealedShares::to_wire).collect();
        self.takes("secrets_shared", json!({"shares": shares}))
            .await;
        sharing
    }

    async fn receives(&mut self, sharing: Sharing) -> Masking {
        self.is_asked("mask_result").await;
        let shares = self.asked["data"]["shares"].clone();
        let shares: Vec<ShareFrom> = serde_json::from_value(shares).unwrap();
        let own = sharing.number();
        let shares: Vec<_> = shares
            .iter()
            .map(|share| SealedShares::from_wire(share, own))
            .collect();
        sharing.receive(&shares).unwrap()
    }

    /// Stores a file as its masked result and says so; gives the answer.
    async fn sends(&mut self, platform: &Platform, file: Vec<u8>) -> Value {
        let upload = self.asked["data"]["upload"].clone();
        let put = platform.client.put(upload["url"].as_str().unwrap());
        assert_eq!(put.body(file.clone()).send().await.unwrap().status(), 200);
        let more = json!({
            "num_examples": self.examples, "steps": 5, "key": upload["key"], "sha256": sha256(&file), "size_bytes": file.len()
        });
        self.says("federated_update", more).await
    }

    async fn reveals(&mut self, masking: &mut Masking) {
        self.is_asked("reveal_shares").await;
        let arrived = self.asked["data"]["arrived"].clone();
        let arrived: Vec<u8> = serde_json::from_value(arrived).unwrap();
        let (seeds, keys) = masking.reveal(&arrived).unwrap().to_wire();
        self.takes("shares_revealed", json!({"seeds": seeds, "keys": keys}))
            .await;
    }
}

/// A change by so much in each value, and the loss, masked.
fn masked(masking: &Masking, values: usize, change: f64, loss: f64) -> Vec<u8> {
    let mut numbers = vec![fixed_point::encode(change); values];
    numbers.push(fixed_point::encode(loss));
    masking.mask(&mut numbers, 0);
    numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

/// A session that three workers take part in together, which have trained its first round, and the round's weights.
async fn three(platform: &Platform, more: Value) -> (i64, [Masked; 3], Vec<u8>) {
    three_with([4; 3], platform, more).await
}

/// The same with so many examples of each.
async fn three_with(
    examples: [u64; 3],
    platform: &Platform,
    more: Value,
) -> (i64, [Masked; 3], Vec<u8>) {
    let admin = platform.admin().await;
    let mut workers = Vec::new();
    for _ in 0..3 {
        let mut worker = TestWorker::ready(&admin).await;
        // Work is given to whoever has said what it does; the answer shows that this has been heard.
        worker.heartbeat("idle").await;
        worker.socket.send(json!({"type": "party"})).await;
        worker.socket.receive("error").await;
        workers.push(worker);
    }
    let mut body = json!({
        "shards": 3, "min_workers": 2, "rounds": 1, "privacy": {"secure_aggregation": {}},
    });
    for (field, value) in more.as_object().unwrap() {
        body[field] = value.clone();
    }
    let id = open(&admin, body).await;
    let mut all = Vec::new();
    for (mut worker, examples) in workers.into_iter().zip(examples) {
        let start = worker.socket.receive("start_federated_training").await;
        all.push(Masked {
            worker,
            start,
            asked: Value::Null,
            examples,
        });
    }
    let url = all[0].start["data"]["global_weights"]["download_url"].clone();
    let weights = fetch(platform, &url).await;
    for one in &mut all {
        one.trained().await;
    }
    let Ok(all) = all.try_into() else {
        panic!("three workers");
    };
    (id, all, weights)
}

/// SHA-256 of the adapter that a session has made.
async fn final_digest(admin: &Session<'_>, id: i64) -> Option<String> {
    let (_, files) = admin.get(&format!("/api/federated/{id}/artifacts")).await;
    let mut files = files["items"].as_array().unwrap().iter();
    let adapter = files.find(|file| file["path"] == "adapter_model.safetensors")?;
    Some(adapter["sha256"].as_str().unwrap().to_owned())
}

#[actix_web::test]
async fn the_sum_of_masked_results_makes_the_round_also_where_a_worker_drops_out_on_the_way() {
    let (platform, _models) = platform(QUIET).await;
    let admin = platform.admin().await;
    let (id, [mut a, mut b, mut c], weights) = three(&platform, json!({})).await;
    let privacy = &a.start["data"]["privacy"];
    assert_eq!(privacy["secure_aggregation"]["threshold"], 2);
    let shown_now = shown(&admin, id, |shown| shown["updates"] == 3).await;
    assert_eq!(shown_now["workers"][0]["status"], "trained");
    assert_eq!(shown_now["privacy"]["secure_aggregation"]["threshold"], 2);
    // What is not masked cannot even be stored.
    let url = a.start["data"]["upload"]["url"].as_str().unwrap();
    let put = platform.client.put(url).body(shifted(&weights, 1.0));
    assert_eq!(put.send().await.unwrap().status(), 409);

    let keys = [
        a.announces().await,
        b.announces().await,
        c.announces().await,
    ];
    let [of_a, of_b, of_c] = keys;
    let sharing = [
        a.shares(of_a).await,
        b.shares(of_b).await,
        c.shares(of_c).await,
    ];
    let [of_a, of_b, of_c] = sharing;
    let (mut of_a, mut of_b) = (a.receives(of_a).await, b.receives(of_b).await);
    // The others mask against it, and what it would have sent never comes.
    c.receives(of_c).await;
    c.takes("masking_failed", json!({"error": "the disk is full"}))
        .await;
    let count = values(&weights).len();
    let taken = a.sends(&platform, masked(&of_a, count, 1.0, 2.0)).await;
    assert_eq!(taken["type"], "ack", "{taken}");
    let taken = b.sends(&platform, masked(&of_b, count, 3.0, 1.0)).await;
    assert_eq!(taken["type"], "ack", "{taken}");
    a.reveals(&mut of_a).await;
    b.reveals(&mut of_b).await;
    let ended = shown(&admin, id, |shown| shown["status"] == "finished").await;
    let accepted: Vec<_> = ended["workers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|worker| worker["accepted"].as_u64().unwrap())
        .collect();
    assert_eq!(accepted, [1, 1, 0], "{ended}");
    let path = format!("/api/federated/{id}");
    let (_, rounds) = admin.get(&format!("{path}/rounds")).await;
    let round = &rounds["items"][0];
    assert_eq!(
        (&round["merged"], &round["loss"]),
        (&json!(2), &json!(1.5)),
        "{round}"
    );
    assert_eq!(round["results"][0]["delta_norm"], Value::Null, "{round}");
    let digest = final_digest(&admin, id).await;
    // Exactly what the mean of the two results as they are would have been.
    assert_eq!(digest, Some(sha256(&shifted(&weights, 2.0))));
}

#[actix_web::test]
async fn one_that_does_not_follow_the_protocol_gets_an_error_and_the_others_go_on() {
    let (platform, _models) = platform(QUIET).await;
    let admin = platform.admin().await;
    let (id, [mut a, mut b, mut c], weights) = three(&platform, json!({})).await;
    let (of_a, of_b) = (a.announces().await, b.announces().await);
    c.is_asked("announce_keys").await;
    let weak = json!({
        "sealing_key": "0".repeat(64), "masking_key": "0".repeat(64), "seed_digest": "0".repeat(64)
    });
    let refused = c.says("keys_announced", weak).await;
    assert_eq!(
        (&refused["type"], &refused["code"]),
        (&json!("error"), &json!("invalid_message"))
    );
    let reason = shown(&admin, id, |shown| {
        let reason = shown["waiting_because"].as_str().unwrap_or_default();
        reason.contains("failed: with these keys nothing secret can be agreed on")
    })
    .await;
    assert_eq!(reason["status"], "open");
    let (of_a, of_b) = (a.shares(of_a).await, b.shares(of_b).await);
    let of_a = a.receives(of_a).await;
    b.receives(of_b).await;
    // A masked result of another length is none.
    let count = values(&weights).len();
    let short = masked(&of_a, count - 1, 1.0, 2.0);
    let refused = a.sends(&platform, short).await;
    assert_eq!(refused["code"], "invalid_message", "{refused}");
    // One is too few; what is said of an attempt that is over is confirmed and has no effect.
    let waits = shown(&admin, id, |shown| {
        let reason = shown["waiting_because"].as_str().unwrap_or_default();
        reason.contains("another attempt begins")
    })
    .await;
    assert_eq!(
        (&waits["status"], &waits["updates"]),
        (&json!("open"), &json!(1))
    );
    b.takes("masking_failed", json!({"error": "late"})).await;
    let never = b.says(
        "masking_failed",
        json!({"error": "?", "attempt": 1_u64 << 53}),
    );
    assert_eq!(never.await["code"], "invalid_message");
}

/// Lets all bring an attempt on until their masked results are there.
async fn send_all(
    platform: &Platform,
    all: &mut [Masked],
    file: impl Fn(usize, &Masking) -> Vec<u8>,
) -> Vec<Masking> {
    let mut announcing = Vec::new();
    for one in all.iter_mut() {
        announcing.push(one.announces().await);
    }
    let mut sharing = Vec::new();
    for (one, announcing) in all.iter_mut().zip(announcing) {
        sharing.push(one.shares(announcing).await);
    }
    let mut masking = Vec::new();
    for (one, sharing) in all.iter_mut().zip(sharing) {
        let of_it = one.receives(sharing).await;
        let file = file(masking.len(), &of_it);
        let taken = one.sends(platform, file).await;
        assert_eq!(taken["type"], "ack", "{taken}");
        masking.push(of_it);
    }
    masking
}

/// The round that has closed without a change: nothing is merged, and the final adapter is the first one.
async fn assert_unchanged(admin: &Session<'_>, id: i64, weights: &[u8]) {
    let path = format!("/api/federated/{id}");
    let (_, rounds) = admin.get(&format!("{path}/rounds")).await;
    let round = &rounds["items"][0];
    assert_eq!(
        (&round["merged"], &round["results"]),
        (&json!(0), &json!([])),
        "{round}"
    );
    let digest = final_digest(admin, id).await;
    assert_eq!(digest, Some(sha256(weights)));
}

#[actix_web::test]
async fn what_keeps_a_sum_from_being_stored_or_read_is_told_and_waited_for() {
    let (platform, _models) = platform(QUIET).await;
    let admin = platform.admin().await;
    let (id, mut all, weights) = three(&platform, json!({})).await;
    let count = values(&weights).len();
    let file = |_, masking: &Masking| masked(masking, count, 1.0, 2.0);
    let mut masking = send_all(&platform, &mut all, file).await;
    let rounds = platform
        .folder
        .path()
        .join(format!("storage/federated/{id}/rounds"));
    // Files where folders are to be.
    let (updates, next) = (rounds.join("0/updates"), rounds.join("1"));
    std::fs::write(&updates, "").unwrap();
    std::fs::write(&next, "").unwrap();
    for (one, masking) in all.iter_mut().zip(&mut masking) {
        one.reveals(masking).await;
    }
    let waits = async |is_so: &dyn Fn(&str) -> bool| {
        shown(&admin, id, |shown| {
            shown["waiting_because"].as_str().is_some_and(is_so)
        })
        .await
    };
    let is_of_sum = |reason: &str| reason.starts_with("the sum of the results has to wait: ");
    waits(&is_of_sum).await;
    std::fs::remove_file(&updates).unwrap();
    // The mean is there, and what is merged cannot be stored.
    waits(&|reason| !is_of_sum(reason) && reason.contains("the object store: ")).await;
    let mean = std::fs::read_dir(&updates).unwrap().next().unwrap();
    let (mean, elsewhere) = (mean.unwrap().path(), rounds.join("elsewhere"));
    std::fs::rename(&mean, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &mean).unwrap();
    waits(&|reason| reason.contains("cannot be read")).await;
    std::fs::remove_file(&next).unwrap();
    std::fs::rename(&elsewhere, &mean).unwrap();
    shown(&admin, id, |shown| shown["status"] == "finished").await;
    let digest = final_digest(&admin, id).await;
    assert_eq!(digest, Some(sha256(&shifted(&weights, 1.0))));
}

#[actix_web::test]
async fn masked_results_weigh_as_much_as_the_examples_that_each_was_trained_on() {
    let (platform, _models) = platform(QUIET).await;
    let admin = platform.admin().await;
    let more = json!({"aggregation": "weighted_mean"});
    let (id, mut all, weights) = three_with([4, 2, 2], &platform, more).await;
    let count = values(&weights).len();
    // What a worker multiplies its change with.
    let parts = [1.0, 0.5, 0.5];
    let changes = [1.0, 3.0, 5.0];
    let file =
        |i: usize, masking: &Masking| masked(masking, count, changes[i] * parts[i], 2.0 * parts[i]);
    let mut masking = send_all(&platform, &mut all, file).await;
    for (one, masking) in all.iter_mut().zip(&mut masking) {
        one.reveals(masking).await;
    }
    shown(&admin, id, |shown| shown["status"] == "finished").await;
    // (4 x 1 + 2 x 3 + 2 x 5) / 8
    let digest = final_digest(&admin, id).await;
    assert_eq!(digest, Some(sha256(&shifted(&weights, 2.5))));
}

#[actix_web::test]
async fn after_a_restart_while_masks_were_taken_off_no_other_sum_of_the_round_is_asked_for() {
    let (platform, models) = platform(QUIET).await;
    let (id, mut all, weights) = three(&platform, json!({})).await;
    let count = values(&weights).len();
    let file = |_, masking: &Masking| masked(masking, count, 1.0, 2.0);
    let mut masking = send_all(&platform, &mut all, file).await;
    // One answer is too few for the sum, and is known to the platform.
    all[0].reveals(&mut masking[0]).await;
    all[1].is_asked("reveal_shares").await;
    let platform = start_in(platform.stop().await, &models, QUIET).await;
    let admin = platform.admin().await;
    shown(&admin, id, |shown| shown["status"] == "finished").await;
    assert_unchanged(&admin, id, &weights).await;
}

#[actix_web::test]
async fn a_sum_that_is_none_closes_the_round_without_a_change_and_is_not_tried_with_another_list() {
    let (platform, _models) = platform(QUIET).await;
    let admin = platform.admin().await;
    let (id, mut all, weights) = three(&platform, json!({})).await;
    let count = values(&weights).len();
    // The first one sends what is none of a change: random numbers, in effect.
    let file = |number, masking: &Masking| match number {
        0 => vec![0x5a; 8 * (count + 1)],
        _ => masked(masking, count, 1.0, 2.0),
    };
    let mut masking = send_all(&platform, &mut all, file).await;
    for (one, masking) in all.iter_mut().zip(&mut masking).take(2) {
        one.reveals(masking).await;
    }
    let ended = shown(&admin, id, |shown| shown["status"] == "finished").await;
    let counted = |field: &str| -> Vec<u64> {
        let workers = ended["workers"].as_array().unwrap().iter();
        workers
            .map(|worker| worker[field].as_u64().unwrap())
            .collect()
    };
    assert_eq!(
        (counted("accepted"), counted("late")),
        (vec![0; 3], vec![1; 3]),
        "{ended}"
    );
    assert_unchanged(&admin, id, &weights).await;
}

#[actix_web::test]
async fn a_worker_that_claims_more_examples_than_its_shard_has_is_refused() {
    let (platform, _models) = platform(QUIET).await;
    let admin = platform.admin().await;
    let more = json!({"aggregation": "weighted_mean"});
    let (id, [mut a, _, _], _) = three(&platform, more).await;
    let more = json!({"num_examples": 5, "steps": 5});
    let refused = a.says("round_trained", more).await;
    assert_eq!(refused["code"], "invalid_message", "{refused}");
    let waits = shown(&admin, id, |shown| {
        let reason = shown["waiting_because"].as_str().unwrap_or_default();
        reason.contains("failed: data.num_examples: this worker's shard has 4 rows, not 5")
    });
    waits.await;
}

#[actix_web::test]
async fn after_three_rounds_in_a_row_whose_sums_are_none_the_session_is_stopped_and_says_why() {
    let (platform, _models) = platform(QUIET).await;
    let admin = platform.admin().await;
    let (id, mut all, weights) = three(&platform, json!({"rounds": 9})).await;
    let count = values(&weights).len();
    for round in 1..=3 {
        if round > 1 {
            for one in &mut all {
                one.goes_on().await;
            }
        }
        let file = |_, _: &Masking| vec![0x5a; 8 * (count + 1)];
        let mut masking = send_all(&platform, &mut all, file).await;
        for (one, masking) in all.iter_mut().zip(&mut masking).take(2) {
            one.reveals(masking).await;
        }
    }
    let stopped = shown(&admin, id, |shown| shown["status"] == "stopped").await;
    let error = stopped["error"].as_str().unwrap_or_default();
    assert!(
        error.contains("the sums of 3 rounds in a row came to nothing"),
        "{stopped}"
    );
}
