//! Evaluations over real sockets, with workers played by hand.

use serde_json::{Value, json};

use crate::testing::sockets::{SHORT, TestWorker};
use crate::testing::{Platform, Session};

const QUIET: &[(&str, &str)] = &[("WORKER_HEARTBEAT_TIMEOUT", "60")];

async fn dataset(user: &Session<'_>) -> i64 {
    let row = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#;
    let (status, dataset) = user.upload("name=held-out", row).await;
    assert_eq!(status, 201, "{dataset}");
    dataset["id"].as_i64().unwrap()
}

async fn made(user: &Session<'_>, more: Value) -> i64 {
    let mut body =
        json!({"model": "yard/tiny", "dataset_id": dataset(user).await, "metrics": ["perplexity"]});
    let fields = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    let (status, evaluation) = user.post("/api/evaluations", body).await;
    assert_eq!(status, 201, "{evaluation}");
    evaluation["id"].as_i64().unwrap()
}

async fn shown_as(user: &Session<'_>, id: i64, status: &str) -> Value {
    user.wait(&format!("/api/evaluations/{id}"), |shown| {
        shown["status"] == status
    })
    .await
}

impl TestWorker {
    async fn take_evaluation(&mut self) -> Value {
        self.socket.receive("start_evaluation").await
    }

    async fn evaluates(&mut self, kind: &str, id: i64, data: Value) {
        self.socket
            .send(json!({"type": kind, "evaluation_id": id, "data": data}))
            .await;
    }

    async fn says_it_has(&mut self, evaluations: &[i64]) {
        let status = if evaluations.is_empty() {
            "idle"
        } else {
            "evaluating"
        };
        self.socket
            .send(json!({"type": "heartbeat", "status": status, "current_evaluation_ids": evaluations}))
            .await;
    }
}

#[actix_web::test]
async fn an_evaluation_goes_to_a_worker_and_its_figures_come_back() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let job = worker.train(&admin).await;
    let mut dashboard = admin.dashboard().await;
    let id = made(
        &admin,
        json!({"model": null, "job_id": job, "metrics": ["perplexity", "loss"], "batch_size": 2, "max_length": 64}),
    )
    .await;
    let start = worker.take_evaluation().await;
    assert_eq!(start["evaluation_id"], id);
    let data = &start["data"];
    assert_eq!(data["model_url"], format!("models/job-{job}/final/"));
    assert_eq!(data["metrics"], json!(["perplexity", "loss"]));
    assert_eq!(data["base_model"]["huggingface_id"], "yard/tiny");
    assert_eq!(data["download_urls"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&data["batch_size"], &data["max_length"]),
        (&json!(2), &json!(64))
    );
    assert_eq!(data["dataset_url"], data["dataset"]["storage_path"]);
    let url = data["dataset"]["download_url"].as_str().unwrap();
    let file = platform.client.get(url).send().await.unwrap();
    assert!(file.text().await.unwrap().contains("messages"));
    admin.wait_for_worker(worker.id, "evaluating").await;

    worker
        .evaluates("evaluation_progress", id, json!({"done": 1, "total": 4}))
        .await;
    let told = dashboard.receive("evaluation_progress").await;
    assert_eq!(
        (&told["evaluation_id"], &told["data"]["total"]),
        (&json!(id), &json!(4))
    );
    let shown = shown_as(&admin, id, "running").await;
    assert_eq!(shown["progress"], json!({"done": 1, "total": 4}));

    let metrics = json!({"perplexity": 5.75, "loss": 1.75, "tokens": 8});
    for _ in 0..2 {
        worker
            .say_of(json!({"type": "evaluation_completed", "evaluation_id": id, "data": {"metrics": metrics}}))
            .await;
    }
    let told = dashboard.receive("evaluation_completed").await;
    assert_eq!(told["data"]["metrics"], metrics);
    let shown = shown_as(&admin, id, "completed").await;
    assert_eq!(
        (&shown["result"], &shown["worker_id"]),
        (&metrics, &json!(worker.id))
    );
    admin.wait_for_worker(worker.id, "idle").await;
}

#[actix_web::test]
async fn what_does_not_fit_is_named_and_others_evaluations_are_not_seen() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let member = platform.user("member@example.org", "member").await;
    let viewer = platform.user("viewer@example.org", "viewer").await;
    let data = dataset(&admin).await;
    for (more, field) in [
        (json!({"metrics": ["perplexity", "bleu"]}), "metrics[1]"),
        (json!({"metrics": []}), "metrics"),
        (json!({"metrics": ["loss", "loss"]}), "metrics[1]"),
        (json!({"batch_size": 0}), "batch_size"),
        (json!({"max_length": 0}), "max_length"),
        (json!({"model": "a b"}), "model"),
        (json!({"model": null}), "model"),
        (json!({"model": "yard/tiny", "metric": 1}), "metric"),
    ] {
        let mut body = json!({"model": "yard/tiny", "dataset_id": data});
        let fields = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(fields);
        let (status, answer) = admin.post("/api/evaluations", body).await;
        assert_eq!(status, 400, "{more}: {answer}");
        assert_eq!(answer["error"]["details"][0]["field"], field, "{answer}");
    }
    let body = json!({"model": "yard/tiny", "dataset_id": data});
    assert_eq!(member.post("/api/evaluations", body.clone()).await.0, 404);
    assert_eq!(viewer.post("/api/evaluations", body).await.0, 403);
    let id = made(&admin, json!({})).await;
    let path = format!("/api/evaluations/{id}");
    assert_eq!(member.get(&path).await.0, 404);
    assert_eq!(member.delete(&path).await.0, 404);
    assert_eq!(viewer.get(&path).await.0, 200);
    assert_eq!(viewer.delete(&path).await.0, 403);
    assert_eq!(member.get("/api/evaluations").await.1["items"], json!([]));
    let (_, listed) = viewer.get("/api/evaluations").await;
    assert_eq!(listed["items"][0]["id"], id);
}

#[actix_web::test]
async fn only_the_worker_that_has_it_is_heard() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let id = made(&admin, json!({})).await;
    worker.take_evaluation().await;
    let mut stranger = TestWorker::ready(&admin).await;
    for (kind, data) in [
        ("evaluation_progress", json!({"done": 1, "total": 1})),
        ("evaluation_completed", json!({"metrics": {}})),
        ("evaluation_failed", json!({"error": "x"})),
    ] {
        stranger.evaluates(kind, id, data).await;
        assert_eq!(
            stranger.socket.receive("error").await["code"],
            "wrong_worker"
        );
    }
    stranger
        .evaluates("evaluation_completed", 999, json!({"metrics": {}}))
        .await;
    assert_eq!(
        stranger.socket.receive("error").await["code"],
        "wrong_worker"
    );
    assert_eq!(
        shown_as(&admin, id, "running").await["worker_id"],
        worker.id
    );
}

#[actix_web::test]
async fn a_cancelled_one_stops_at_its_worker_which_is_asked_before_it_gets_more() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let (first, second) = (made(&admin, json!({})).await, made(&admin, json!({})).await);
    worker.take_evaluation().await;
    let path = |id: i64| format!("/api/evaluations/{id}");
    assert_eq!(admin.delete(&path(first)).await.0, 204);
    assert_eq!(admin.delete(&path(first)).await.0, 204);
    assert_eq!(
        worker.socket.receive("stop_evaluation").await["evaluation_id"],
        first
    );
    worker.socket.receive("ping").await;
    worker
        .say_of(json!({"type": "evaluation_failed", "evaluation_id": first, "data": {"error": "cancelled"}}))
        .await;
    worker.pong(None).await;
    assert_eq!(worker.take_evaluation().await["evaluation_id"], second);
    let data = json!({"error": "metrics: none", "failure_kind": "bad_config"});
    worker
        .say_of(json!({"type": "evaluation_failed", "evaluation_id": second, "data": data}))
        .await;
    let shown = shown_as(&admin, second, "failed").await;
    assert_eq!(
        (&shown["error"], &shown["failure_kind"]),
        (&data["error"], &data["failure_kind"])
    );
    assert_eq!(admin.delete(&path(second)).await.0, 409);
    let third = made(&admin, json!({})).await;
    worker.take_evaluation().await;
    let waiting = made(&admin, json!({})).await;
    assert_eq!(admin.delete(&path(waiting)).await.0, 204);
    worker
        .say_of(json!({"type": "evaluation_completed", "evaluation_id": third, "data": {"metrics": {}}}))
        .await;
    let sent = worker.everything_sent().await;
    assert!(
        sent.iter()
            .all(|message| message["type"] != "start_evaluation"),
        "{sent:#?}"
    );
}

#[actix_web::test]
async fn a_lost_worker_s_evaluation_fails() {
    let platform = Platform::start(SHORT).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let id = made(&admin, json!({})).await;
    worker.take_evaluation().await;
    worker.socket.reset();
    let shown = shown_as(&admin, id, "failed").await;
    assert_eq!(shown["failure_kind"], "worker_lost");
}

#[actix_web::test]
async fn a_worker_that_comes_back_goes_on_with_it() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let id = made(&admin, json!({})).await;
    worker.take_evaluation().await;
    let mut worker = worker.again(&platform).await;
    worker.register().await;
    worker.says_it_has(&[id]).await;
    worker
        .say_of(json!({"type": "evaluation_completed", "evaluation_id": id, "data": {"metrics": {"loss": 1.0}}}))
        .await;
    assert_eq!(
        shown_as(&admin, id, "completed").await["result"]["loss"],
        1.0
    );
}

#[actix_web::test]
async fn after_a_restart_of_the_platform_evaluations_go_on_or_fail_with_a_reason() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut keeping = TestWorker::ready(&admin).await;
    let kept = made(&admin, json!({})).await;
    keeping.take_evaluation().await;
    let mut losing = TestWorker::ready(&admin).await;
    let lost = made(&admin, json!({})).await;
    losing.take_evaluation().await;
    let queued = made(&admin, json!({})).await;
    let folder = platform.stop().await;

    let settings = [("WORKER_HEARTBEAT_TIMEOUT", "60")];
    let platform = Platform::start_in(folder, &settings).await;
    let admin = platform.admin().await;
    let mut keeping = keeping.again(&platform).await;
    keeping.register().await;
    keeping.says_it_has(&[kept]).await;
    let mut losing = losing.again(&platform).await;
    losing.register().await;
    losing.says_it_has(&[]).await;
    let shown = shown_as(&admin, lost, "failed").await;
    assert_eq!(shown["failure_kind"], "worker_restarted");
    keeping
        .say_of(
            json!({"type": "evaluation_completed", "evaluation_id": kept, "data": {"metrics": {}}}),
        )
        .await;
    shown_as(&admin, kept, "completed").await;
    shown_as(&admin, queued, "running").await;
}

#[actix_web::test]
async fn after_a_restart_the_evaluation_of_a_worker_that_stays_away_fails() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let id = made(&admin, json!({})).await;
    worker.take_evaluation().await;
    let platform = Platform::start_in(platform.stop().await, SHORT).await;
    let admin = platform.admin().await;
    let shown = shown_as(&admin, id, "failed").await;
    assert_eq!(shown["failure_kind"], "worker_lost");
}

#[actix_web::test]
async fn its_data_set_and_its_job_stay_until_it_has_ended() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let job = worker.train(&admin).await;
    let id = made(&admin, json!({"model": null, "job_id": job})).await;
    let (_, shown) = admin.get(&format!("/api/evaluations/{id}")).await;
    let dataset = format!("/api/datasets/{}", shown["dataset_id"]);
    let job = format!("/api/jobs/{job}");
    worker.take_evaluation().await;
    for path in [&dataset, &job] {
        let (status, answer) = admin.delete(path).await;
        assert_eq!(
            (status.as_u16(), &answer["error"]["code"]),
            (409, &json!("in_use")),
            "{path}"
        );
    }
    worker
        .say_of(
            json!({"type": "evaluation_completed", "evaluation_id": id, "data": {"metrics": {}}}),
        )
        .await;
    shown_as(&admin, id, "completed").await;
    for path in [&dataset, &job] {
        assert_eq!(admin.delete(path).await.0, 204, "{path}");
    }
    let (_, shown) = admin.get(&format!("/api/evaluations/{id}")).await;
    assert!(shown["job_id"].is_null() && shown["model"].as_str().unwrap().starts_with("job-"));
}
