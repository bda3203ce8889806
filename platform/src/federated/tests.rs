//! Federated sessions over real sockets, with workers played by hand.

mod secure;

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::coordinator::tests::{platform, sha256, shifted, start_in, values};
use crate::testing::sockets::{TestWorker, authenticate};
use crate::testing::{Platform, Session, answer};

const QUIET: &[(&str, &str)] = &[("WORKER_HEARTBEAT_TIMEOUT", "60")];
/// A worker whose connection breaks is lost within a few seconds.
const LOSING: &[(&str, &str)] = &[
    ("WORKER_HEARTBEAT_TIMEOUT", "3"),
    ("WORKER_CHECK_INTERVAL", "0.2"),
    ("WORKER_PING_GRACE", "1"),
];

async fn dataset(user: &Session<'_>) -> i64 {
    let row = "{\"text\":\"aye\"}\n";
    let (status, dataset) = user.upload("name=rows", row.repeat(12)).await;
    assert_eq!(status, 201, "{dataset}");
    dataset["id"].as_i64().unwrap()
}

async fn body(user: &Session<'_>, more: Value) -> Value {
    let mut body = json!({
        "dataset_id": dataset(user).await, "shards": 2, "base_model": {"huggingface_id": "yard/tiny"},
        "config": {"lora_r": 2}, "rounds": 2, "local_steps": 5, "min_workers": 2, "aggregation": "mean",
    });
    for (field, value) in more.as_object().unwrap() {
        body[field] = value.clone();
    }
    body
}

/// Makes a session and waits until it is open.
async fn open(user: &Session<'_>, more: Value) -> i64 {
    let body = body(user, more).await;
    let (status, made) = user.post("/api/federated", body).await;
    assert_eq!(status, 201, "{made}");
    let id = made["id"].as_i64().unwrap();
    shown(user, id, |shown| shown["status"] == "open").await;
    id
}

async fn shown(user: &Session<'_>, id: i64, wanted: impl Fn(&Value) -> bool) -> Value {
    user.wait(&format!("/api/federated/{id}"), wanted).await
}

/// Two workers that were asked for the first round's results, with what they were told.
async fn two(user: &Session<'_>) -> [(TestWorker, Value); 2] {
    let (mut a, mut b) = (TestWorker::ready(user).await, TestWorker::ready(user).await);
    let of_a = a.socket.receive("start_federated_training").await;
    let of_b = b.socket.receive("start_federated_training").await;
    [(a, of_a), (b, of_b)]
}

async fn fetch(platform: &Platform, url: &Value) -> Vec<u8> {
    let response = platform.client.get(url.as_str().unwrap()).send().await;
    response.unwrap().bytes().await.unwrap().to_vec()
}

/// A worker with that identity is there again.
async fn comes_back(platform: &Platform, (uuid, key): &(String, String)) -> TestWorker {
    let (socket, answer) = authenticate(platform, uuid, key).await;
    assert_eq!(answer["type"], "authenticated", "{answer}");
    let mut worker = TestWorker {
        socket,
        uuid: uuid.clone(),
        key: key.clone(),
        id: 0,
    };
    worker.register().await;
    worker
}

impl TestWorker {
    /// Its connection breaks; gives its identity.
    fn breaks_off(self) -> (String, String) {
        self.socket.reset();
        (self.uuid, self.key)
    }

    /// Stores a result where the order says, and says so; gives the answer.
    async fn delivers(&mut self, platform: &Platform, order: &Value, file: &[u8]) -> Value {
        let upload = &order["data"]["upload"];
        let put = platform
            .client
            .put(upload["url"].as_str().unwrap())
            .body(file.to_vec());
        let (status, stored) = answer(put.send().await.unwrap()).await;
        assert_eq!(status, 200, "{stored}");
        self.says_update(order, file).await
    }

    async fn says_update(&mut self, order: &Value, file: &[u8]) -> Value {
        let message_id = uuid::Uuid::new_v4().to_string();
        let data = json!({
            "round": order["data"]["round"], "num_examples": 4, "steps": 5, "loss": 1.5,
            "key": order["data"]["upload"]["key"], "sha256": sha256(file), "size_bytes": file.len(),
        });
        self.socket
            .send(json!({
                "type": "federated_update", "session_id": order["session_id"], "message_id": message_id, "data": data
            }))
            .await;
        self.socket
            .receive_where(|answer| answer["message_id"] == message_id.as_str())
            .await
    }

    async fn next_round(&mut self) -> (Value, Value) {
        let load = self.socket.receive("load_aggregated_weights").await;
        (load, self.socket.receive("continue_round").await)
    }
}

#[actix_web::test]
async fn two_workers_bring_a_session_to_its_end_and_the_adapter_is_there() {
    let (platform, _models) = platform(QUIET).await;
    let admin = platform.admin().await;
    let mut dashboard = admin.dashboard().await;
    let id = open(&admin, json!({})).await;
    let waiting = shown(&admin, id, |shown| !shown["waiting_because"].is_null()).await;
    assert_eq!(
        waiting["waiting_because"], "no worker takes part, and the round needs 2",
        "{waiting}"
    );
    let [(mut a, of_a), (mut b, of_b)] = two(&admin).await;
    let data = &of_a["data"];
    assert_eq!(
        (&data["round"], &data["total_rounds"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(data["config"]["local_steps"], 5);
    assert_eq!(data["shard"]["count"], 2);
    assert_ne!(data["shard"]["index"], of_b["data"]["shard"]["index"]);
    let weights = fetch(&platform, &data["global_weights"]["download_url"]).await;
    assert_eq!(sha256(&weights), data["global_weights"]["sha256"]);
    admin.wait_for_worker(a.id, "federated").await;
    let (_, worker) = admin.get(&format!("/api/workers/{}", a.id)).await;
    assert_eq!(
        (&worker["current_session_id"], &worker["busy"]),
        (&json!(id), &json!(true))
    );

    let taken = a.delivers(&platform, &of_a, &shifted(&weights, 1.0)).await;
    assert_eq!(taken["type"], "ack");
    let again = a.says_update(&of_a, &shifted(&weights, 1.0)).await;
    assert_eq!(again["type"], "ack", "a repeat is confirmed");
    let half = shown(&admin, id, |shown| shown["updates"] == 1).await;
    assert_eq!(half["waiting_because"], "1 of 2 results are there");
    b.delivers(&platform, &of_b, &shifted(&weights, 3.0)).await;
    let (load, go_on) = a.next_round().await;
    assert_eq!(
        (&load["data"]["round"], &go_on["data"]["round"]),
        (&json!(2), &json!(2))
    );
    let merged = fetch(&platform, &load["data"]["download_url"]).await;
    let step = values(&merged)[0] - values(&weights)[0];
    assert!((step - 2.0).abs() < 1e-5, "the mean of both: {step}");

    // The same by POST /api/worker/uploads, as our worker does.
    let (_, of_b) = b.next_round().await;
    let file = shifted(&merged, 1.0);
    let ask = json!({
        "session_id": id, "key": of_b["data"]["upload"]["key"], "size": file.len(), "sha256": sha256(&file)
    });
    let post = platform
        .request(Method::POST, "/api/worker/uploads")
        .bearer_auth(&b.key)
        .json(&ask);
    let (status, target) = answer(post.send().await.unwrap()).await;
    assert_eq!(status, 200, "{target}");
    let put = platform.client.put(target["url"].as_str().unwrap());
    assert_eq!(put.body(file.clone()).send().await.unwrap().status(), 200);
    assert_eq!(b.says_update(&of_b, &file).await["type"], "ack");
    a.delivers(&platform, &go_on, &file).await;
    for worker in [&mut a, &mut b] {
        worker.socket.receive("stop_federated_training").await;
        worker.socket.receive("ping").await;
        worker.pong(None).await;
    }
    admin.wait_for_worker(a.id, "idle").await;
    let ended = shown(&admin, id, |shown| shown["status"] == "finished").await;
    assert_eq!(
        (&ended["round"], &ended["waiting_because"]),
        (&json!(2), &Value::Null)
    );
    assert_eq!(ended["workers"][0]["accepted"], 2);
    assert_eq!(
        (
            &ended["workers"][0]["status"],
            &ended["workers"][1]["status"]
        ),
        (&json!("delivered"), &json!("delivered"))
    );
    assert_eq!(ended["model"], format!("federated-{id}"));
    let (_, rounds) = admin.get(&format!("/api/federated/{id}/rounds")).await;
    let rounds = rounds["items"].as_array().unwrap();
    assert_eq!(rounds.len(), 2);
    assert_eq!(
        (&rounds[0]["round"], &rounds[0]["loss"]),
        (&json!(2), &json!(1.5))
    );
    let (_, files) = admin.get(&format!("/api/federated/{id}/artifacts")).await;
    let names: Vec<_> = files["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| &file["path"])
        .collect();
    assert_eq!(names.len(), 3, "{names:?}");
    dashboard
        .receive_where(|news| {
            news["type"] == "federated_round" && news["data"]["status"] == "finished"
        })
        .await;
}

#[actix_web::test]
async fn what_does_not_fit_is_named_and_others_sessions_are_not_seen() {
    let (platform, _models) = platform(QUIET).await;
    let admin = platform.admin().await;
    let member = platform.user("member@example.org", "member").await;
    let viewer = platform.user("viewer@example.org", "viewer").await;
    for (more, field) in [
        (json!({"rounds": 0}), "rounds"),
        (json!({"config": {"epochs": 1}}), "config.epochs"),
        (json!({"shards": 13}), "dataset_id"),
    ] {
        let (status, refused) = admin.post("/api/federated", body(&admin, more).await).await;
        assert_eq!(status, 400, "{refused}");
        assert_eq!(refused["error"]["details"][0]["field"], field, "{refused}");
    }
    let of_admin = body(&admin, json!({})).await;
    assert_eq!(member.post("/api/federated", of_admin.clone()).await.0, 404);
    assert_eq!(viewer.post("/api/federated", of_admin).await.0, 403);
    let id = open(&admin, json!({})).await;
    let path = format!("/api/federated/{id}");
    assert_eq!(member.get(&path).await.0, 404);
    assert_eq!(viewer.get(&path).await.0, 200);
    let stop = format!("{path}/stop");
    assert_eq!(viewer.post(&stop, json!({})).await.0, 403);
    let (status, stopped) = admin.post(&stop, json!({})).await;
    assert_eq!(
        (status.as_u16(), &stopped["status"]),
        (200, &json!("stopped")),
        "{stopped}"
    );
    assert_eq!(admin.post(&stop, json!({})).await.0, 409);
    let unknown = json!({"base_model": {"huggingface_id": "yard/unknown"}});
    let (_, made) = admin
        .post("/api/federated", body(&admin, unknown).await)
        .await;
    let failed = shown(&admin, made["id"].as_i64().unwrap(), |shown| {
        shown["status"] == "failed"
    })
    .await;
    assert!(
        failed["error"].as_str().unwrap().contains("yard/unknown"),
        "{failed}"
    );
    assert_eq!(
        (&failed["model"], &failed["round"]),
        (&Value::Null, &json!(0)),
        "it has neither a result nor had it a round"
    );
    let (status, other) = admin.get(&path.replace("federated", "coordinators")).await;
    assert_eq!(status, 404);
    let message = other["error"]["message"].as_str().unwrap();
    assert!(message.contains(&path), "{message}");
}

#[actix_web::test]
async fn a_session_that_waits_for_more_workers_says_how_many_are_free() {
    let (platform, _models) = platform(QUIET).await;
    let admin = platform.admin().await;
    let id = open(&admin, json!({})).await;
    let worker = TestWorker::ready(&admin).await;
    admin.wait_for_worker(worker.id, "idle").await;
    let waiting = shown(&admin, id, |shown| shown["free_workers"] == 1).await;
    assert_eq!(
        waiting["waiting_because"],
        "no worker takes part, and the round needs 2; 1 is free"
    );
}

#[actix_web::test]
async fn a_private_session_tells_its_workers_how_and_shows_what_was_given_away() {
    let (platform, _models) = platform(QUIET).await;
    let admin = platform.admin().await;
    let mechanism = json!({"clip_norm": 0.5, "noise_multiplier": 1.0});
    let id = open(
        &admin,
        json!({"privacy": {"differential_privacy": mechanism}}),
    )
    .await;
    let [(mut a, of_a), (mut b, of_b)] = two(&admin).await;
    let told = json!({"clip_norm": 0.5, "noise_multiplier": 1.0, "delta": 1e-5});
    assert_eq!(of_a["data"]["privacy"]["differential_privacy"], told);
    let weights = fetch(&platform, &of_a["data"]["global_weights"]["download_url"]).await;
    a.delivers(&platform, &of_a, &shifted(&weights, 1.0)).await;
    let session = shown(&admin, id, |shown| shown["updates"] == 1).await;
    let worker = session["workers"].as_array().unwrap();
    let worker = worker
        .iter()
        .find(|worker| worker["accepted"] == 1)
        .unwrap();
    assert_eq!(session["idle_shards"], json!([]));
    let privacy = &session["privacy"]["differential_privacy"];
    for epsilon in [&privacy["epsilon"], &worker["epsilon"]] {
        assert!(
            (epsilon.as_f64().unwrap() - 4.7285).abs() < 1e-3,
            "{session}"
        );
    }
    assert!(privacy["epsilon_at_end"].as_f64() > privacy["epsilon"].as_f64());
    b.delivers(&platform, &of_b, &shifted(&weights, 1.0)).await;
    shown(&admin, id, |shown| shown["round"] == 2).await;
    let path = format!("/api/federated/{id}");
    let (_, stopped) = admin.post(&format!("{path}/stop"), json!({})).await;
    assert_eq!(stopped["status"], "stopped", "{stopped}");
    let page = admin.request(Method::GET, &format!("{path}/artifacts/README.md"));
    let page = page.send().await.unwrap();
    let page = fetch(
        &platform,
        &json!(page.headers()["location"].to_str().unwrap()),
    )
    .await;
    let page = String::from_utf8(page).unwrap();
    assert!(
        page.contains("Differential privacy") && page.contains("an epsilon of 4.73"),
        "{page}"
    );
    let open_to_all = open(&admin, json!({})).await;
    let open_to_all = shown(&admin, open_to_all, |_| true).await;
    assert_eq!(open_to_all["privacy"], Value::Null);
}

#[actix_web::test]
async fn a_result_that_is_not_valid_is_refused_and_only_its_worker_is_heard() {
    let (platform, _models) = platform(QUIET).await;
    let admin = platform.admin().await;
    let id = open(&admin, json!({})).await;
    let [(mut a, of_a), (mut b, of_b)] = two(&admin).await;
    let weights = fetch(&platform, &of_a["data"]["global_weights"]["download_url"]).await;
    let missing = a.says_update(&of_a, &weights).await;
    assert_eq!(missing["code"], "artifact_missing");
    let foreign = b.says_update(&of_a, &weights).await;
    assert_eq!(foreign["code"], "invalid_message", "{foreign}");
    let refused = a
        .delivers(&platform, &of_a, &shifted(&weights, f32::NAN))
        .await;
    assert_eq!(refused["code"], "invalid_message");
    assert!(
        refused["message"].as_str().unwrap().contains("lora_"),
        "{refused}"
    );
    let waiting = shown(&admin, id, |shown| {
        shown["workers"]
            .as_array()
            .unwrap()
            .iter()
            .any(|it| it["status"] == "failed")
    })
    .await;
    let reason = waiting["waiting_because"].as_str().unwrap();
    assert!(reason.contains("its result is not valid"), "{reason}");
    // What counts cannot be replaced any more.
    b.delivers(&platform, &of_b, &shifted(&weights, 1.0)).await;
    let put = platform
        .client
        .put(of_b["data"]["upload"]["url"].as_str().unwrap());
    assert_eq!(put.body(weights).send().await.unwrap().status(), 409);
    let mut stranger = TestWorker::ready(&admin).await;
    let wrong = stranger.says_update(&of_a, b"x").await;
    assert_eq!(wrong["code"], "wrong_worker");
}

#[actix_web::test]
async fn a_straggler_is_left_behind_and_gets_the_new_weights_and_its_late_result_is_ignored() {
    let (platform, _models) = platform(QUIET).await;
    let admin = platform.admin().await;
    let more = json!({"min_workers": 1, "round_timeout_seconds": 4});
    let id = open(&admin, more).await;
    let mut a = TestWorker::ready(&admin).await;
    let of_a = a.socket.receive("start_federated_training").await;
    let mut b = TestWorker::ready(&admin).await;
    shown(&admin, id, |shown| {
        shown["workers"][1]["status"] == "waiting"
    })
    .await;
    let weights = fetch(&platform, &of_a["data"]["global_weights"]["download_url"]).await;
    a.delivers(&platform, &of_a, &shifted(&weights, 1.0)).await;
    // Whoever did not begin with the first round joins the second with its weights.
    let (_, go_on) = a.next_round().await;
    let of_b = b
        .socket
        .receive_where(|order| {
            order["type"] == "start_federated_training" && order["data"]["round"] == 2
        })
        .await;
    assert_ne!(
        of_b["data"]["global_weights"]["sha256"],
        of_a["data"]["global_weights"]["sha256"]
    );
    let late = a.says_update(&of_a, &weights).await;
    assert_eq!(
        late["type"], "ack",
        "a late result is confirmed and does not count"
    );
    a.delivers(&platform, &go_on, &shifted(&weights, 2.0)).await;
    b.socket.receive("stop_federated_training").await;
    let ended = shown(&admin, id, |shown| shown["status"] == "finished").await;
    let accepted: Vec<_> = ended["workers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["accepted"].as_u64().unwrap())
        .collect();
    assert_eq!(accepted.iter().sum::<u64>(), 2, "{ended}");
}

#[actix_web::test]
async fn with_all_workers_lost_a_session_waits_says_why_and_goes_on_when_they_are_back() {
    let (platform, _models) = platform(LOSING).await;
    let admin = platform.admin().await;
    let id = open(&admin, json!({})).await;
    let [(a, _), (b, _)] = two(&admin).await;
    let (a, b) = (a.breaks_off(), b.breaks_off());
    let lost = shown(&admin, id, |shown| {
        shown["waiting_because"] == "no worker takes part, and the round needs 2"
    })
    .await;
    assert_eq!(
        (&lost["round"], &lost["deadline"]),
        (&json!(1), &Value::Null)
    );
    assert_eq!(lost["idle_shards"], json!([0, 1]));
    let platform = &platform;
    let (mut a, mut b) = (
        comes_back(platform, &a).await,
        comes_back(platform, &b).await,
    );
    let of_a = a.socket.receive("start_federated_training").await;
    let of_b = b.socket.receive("start_federated_training").await;
    assert_eq!(of_a["data"]["round"], 1);
    let weights = fetch(platform, &of_a["data"]["global_weights"]["download_url"]).await;
    a.delivers(platform, &of_a, &weights).await;
    b.delivers(platform, &of_b, &weights).await;
    a.next_round().await;
}

#[actix_web::test]
async fn after_a_restart_of_the_platform_accepted_results_count_and_workers_go_on() {
    let (platform, models): (Platform, TempDir) = platform(QUIET).await;
    let admin = platform.admin().await;
    let id = open(&admin, json!({})).await;
    let [(mut a, of_a), (b, of_b)] = two(&admin).await;
    let weights = fetch(&platform, &of_a["data"]["global_weights"]["download_url"]).await;
    a.delivers(&platform, &of_a, &shifted(&weights, 1.0)).await;
    let platform = start_in(platform.stop().await, &models, QUIET).await;
    let admin = platform.admin().await;
    let waiting = shown(&admin, id, |shown| shown["status"] == "open").await;
    assert_eq!(waiting["waiting_because"], "1 of 2 results are there");
    let (mut a, mut b) = (a.again(&platform).await, b.again(&platform).await);
    a.register().await;
    b.register().await;
    // It may have missed the order; what it has begun it goes on with.
    let again = b.socket.receive("start_federated_training").await;
    assert_eq!(again["data"]["round"], of_b["data"]["round"]);
    assert_eq!(again["data"]["shard"], of_b["data"]["shard"]);
    b.delivers(&platform, &again, &shifted(&weights, 3.0)).await;
    let next = a.socket.receive("start_federated_training").await;
    assert_eq!(next["data"]["round"], 2);
}
