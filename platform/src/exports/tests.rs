//! Exports over real sockets, with workers played by hand.

use reqwest::Method;
use serde_json::{Value, json};

use crate::testing::serving::put;
use crate::testing::sockets::{SHORT, TestWorker};
use crate::testing::{Platform, Session};

const QUIET: &[(&str, &str)] = &[("WORKER_HEARTBEAT_TIMEOUT", "60")];

async fn asked(user: &Session<'_>, job: i64, body: Value) -> i64 {
    let path = format!("/api/jobs/{job}/export");
    let (status, export) = user.post(&path, body).await;
    assert_eq!(status, 202, "{export}");
    export["id"].as_i64().unwrap()
}

async fn gguf(user: &Session<'_>, job: i64) -> i64 {
    asked(user, job, json!({"format": "gguf_merged"})).await
}

fn path(job: i64, export: i64) -> String {
    format!("/api/jobs/{job}/exports/{export}")
}

async fn shown_as(user: &Session<'_>, job: i64, export: i64, status: &str) -> Value {
    user.wait(&path(job, export), |shown| shown["status"] == status)
        .await
}

async fn artifacts(user: &Session<'_>, job: i64) -> Vec<String> {
    let (_, listed) = user.get(&format!("/api/jobs/{job}/artifacts")).await;
    let items = listed["items"].as_array().unwrap().iter();
    items
        .map(|file| file["path"].as_str().unwrap().to_owned())
        .collect()
}

impl TestWorker {
    /// One that makes exports.
    async fn exporting(admin: &Session<'_>) -> Self {
        let mut worker = Self::ready(admin).await;
        worker.says_it_has_exports(&[]).await;
        worker
    }

    async fn take_export(&mut self) -> Value {
        self.socket.receive("start_export").await
    }

    /// Stores the one file of an export; how messages name it.
    async fn store_export(&self, platform: &Platform, job: i64, export: i64) -> Value {
        let key = format!("models/job-{job}/exports/{export}/job-{job}.gguf");
        self.store(platform, job, &key).await
    }

    fn export_completed(job: i64, export: i64, files: &[Value]) -> Value {
        json!({"type": "export_completed", "export_id": export, "job_id": job, "data": {"files": files}})
    }

    async fn says_it_has_exports(&mut self, exports: &[i64]) {
        self.socket
            .send(json!({"type": "heartbeat", "status": "idle", "current_export_ids": exports}))
            .await;
    }
}

#[actix_web::test]
async fn an_export_goes_to_a_worker_and_its_files_are_among_the_job_s() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::exporting(&admin).await;
    let job = worker.train(&admin).await;
    let mut dashboard = admin.dashboard().await;
    let export = asked(
        &admin,
        job,
        json!({"format": "gguf_merged", "type": "q8_0"}),
    )
    .await;
    let start = worker.take_export().await;
    let folder = format!("models/job-{job}/exports/{export}/");
    let data = &start["data"];
    assert_eq!(
        (&start["export_id"], &start["job_id"]),
        (&json!(export), &json!(job))
    );
    assert_eq!(
        (&data["format"], &data["type"], &data["output_path"]),
        (&json!("gguf_merged"), &json!("q8_0"), &json!(folder))
    );
    assert_eq!(data["model_url"], format!("models/job-{job}/final/"));
    assert_eq!(data["base_model"]["huggingface_id"], "yard/tiny");
    assert_eq!(data["download_urls"].as_array().unwrap().len(), 2);
    admin.wait_for_worker(worker.id, "exporting").await;

    worker
        .socket
        .send(json!({"type": "export_progress", "export_id": export, "data": {"done": 1, "total": 4}}))
        .await;
    let told = dashboard.receive("export_progress").await;
    assert_eq!(told["data"], json!({"done": 1, "total": 4}));
    let shown = shown_as(&admin, job, export, "running").await;
    assert_eq!(shown["progress"], json!({"done": 1, "total": 4}));
    assert_eq!(
        artifacts(&admin, job).await.len(),
        2,
        "none before it is whole"
    );

    let file = worker.store_export(&platform, job, export).await;
    for _ in 0..2 {
        worker
            .say_of(TestWorker::export_completed(
                job,
                export,
                std::slice::from_ref(&file),
            ))
            .await;
    }
    let told = dashboard.receive("export_completed").await;
    assert_eq!(told["data"]["files"], json!([file]));
    let shown = shown_as(&admin, job, export, "completed").await;
    let name = format!("exports/{export}/job-{job}.gguf");
    assert_eq!(shown["files"][0]["path"], name);
    assert_eq!(shown["files"][0]["size_bytes"], file["size_bytes"]);
    assert!(artifacts(&admin, job).await.contains(&name));
    let file = format!("/api/jobs/{job}/artifacts/{name}");
    let sent_on = admin.request(Method::GET, &file).send().await.unwrap();
    let url = sent_on.headers()["location"].to_str().unwrap();
    let fetched = platform.client.get(url).send().await.unwrap();
    assert_eq!(fetched.text().await.unwrap(), "hello");
    admin.wait_for_worker(worker.id, "idle").await;

    let start = {
        gguf(&admin, job).await;
        worker.take_export().await
    };
    let files = start["data"]["download_urls"].as_array().unwrap().len();
    assert_eq!(files, 2, "an export is no part of the result");
}

#[actix_web::test]
async fn a_worker_that_knows_nothing_of_exports_is_given_none() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut plain = TestWorker::ready(&admin).await;
    let job = plain.train(&admin).await;
    let export = gguf(&admin, job).await;
    plain.heartbeat("idle").await;
    let sent = plain.everything_sent().await;
    assert!(
        sent.iter().all(|message| message["type"] != "start_export"),
        "{sent:#?}"
    );
    let mut worker = TestWorker::exporting(&admin).await;
    assert_eq!(worker.take_export().await["export_id"], export);
}

#[actix_web::test]
async fn what_cannot_be_exported_is_named() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let member = platform.user("member@example.org", "member").await;
    let viewer = platform.user("viewer@example.org", "viewer").await;
    let mut worker = TestWorker::exporting(&admin).await;
    let job = worker.train(&admin).await;
    let of_job = format!("/api/jobs/{job}/export");
    for (body, field) in [
        (json!({"format": "pickle"}), "format"),
        (json!({}), "format"),
        (json!({"format": "gguf_merged", "type": "int3"}), "type"),
        (json!({"format": "gguf_lora", "type": "q8_0"}), "type"),
        (json!({"format": "gguf_lora", "shards": 2}), "shards"),
    ] {
        let (status, answer) = admin.post(&of_job, body).await;
        assert_eq!(status, 400, "{answer}");
        assert_eq!(answer["error"]["details"][0]["field"], field, "{answer}");
    }
    let body = json!({"format": "gguf_lora"});
    assert_eq!(member.post(&of_job, body.clone()).await.0, 404);
    assert_eq!(viewer.post(&of_job, body.clone()).await.0, 403);
    assert_eq!(
        admin.post("/api/jobs/999/export", body.clone()).await.0,
        404
    );
    let whole = worker
        .train_to(&admin, &["config.json", "model.safetensors"])
        .await;
    let (status, answer) = admin
        .post(&format!("/api/jobs/{whole}/export"), body.clone())
        .await;
    assert_eq!(status, 409, "{answer}");
    let waiting = admin.job(json!({})).await;
    assert_eq!(
        admin
            .post(&format!("/api/jobs/{waiting}/export"), body)
            .await
            .0,
        409
    );

    let export = gguf(&admin, job).await;
    assert_eq!(member.get(&path(job, export)).await.0, 404);
    assert_eq!(member.delete(&path(job, export)).await.0, 404);
    assert_eq!(viewer.get(&path(job, export)).await.0, 200);
    assert_eq!(viewer.delete(&path(job, export)).await.0, 403);
    assert_eq!(
        admin.get(&path(whole, export)).await.0,
        404,
        "it is another job's"
    );
    let (_, listed) = viewer.get(&format!("/api/jobs/{job}/exports")).await;
    assert_eq!(listed["items"][0]["id"], export);
}

#[actix_web::test]
async fn files_count_only_where_they_are_stored_in_the_export_s_own_place() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::exporting(&admin).await;
    let job = worker.train(&admin).await;
    let mut stranger = TestWorker::exporting(&admin).await;
    let export = gguf(&admin, job).await;
    let started = tokio::select! {
        start = worker.take_export() => (start, true),
        start = stranger.take_export() => (start, false),
    };
    let (mut worker, stranger) = match started.1 {
        true => (worker, stranger),
        false => (stranger, worker),
    };
    let key = format!("models/job-{job}/exports/{export}/a.gguf");
    assert_eq!(stranger.may_store(&platform, job, &key).await.0, 404);
    let sha256 = "0".repeat(64);
    let missing = json!({"key": key, "size_bytes": 5, "sha256": sha256});
    let foreign = json!({"key": format!("models/job-{job}/final/adapter_config.json"), "size_bytes": 5, "sha256": sha256});
    for (file, code) in [(missing, "artifact_missing"), (foreign, "invalid_message")] {
        worker
            .socket
            .send(TestWorker::export_completed(job, export, &[file]))
            .await;
        assert_eq!(worker.socket.receive("error").await["code"], code);
    }
    shown_as(&admin, job, export, "running").await;
    let file = worker.store(&platform, job, &key).await;
    worker
        .say_of(TestWorker::export_completed(job, export, &[file]))
        .await;
    shown_as(&admin, job, export, "completed").await;
    assert_eq!(
        worker.may_store(&platform, job, &key).await.0,
        404,
        "it is whole"
    );
}

#[actix_web::test]
async fn a_cancelled_export_leaves_nothing_and_a_removed_one_neither() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::exporting(&admin).await;
    let job = worker.train(&admin).await;
    let export = gguf(&admin, job).await;
    worker.take_export().await;
    let folder = platform
        .folder
        .path()
        .join(format!("storage/models/job-{job}/exports/{export}"));
    let key = format!("models/job-{job}/exports/{export}/job-{job}.gguf");
    let (_, late) = worker.may_store(&platform, job, &key).await;
    worker.store_export(&platform, job, export).await;
    assert!(folder.join(format!("job-{job}.gguf")).exists());
    assert_eq!(admin.delete(&path(job, export)).await.0, 204);
    assert_eq!(
        worker.socket.receive("stop_export").await["export_id"],
        export
    );
    shown_as(&admin, job, export, "cancelled").await;
    assert!(!folder.join(format!("job-{job}.gguf")).exists());
    assert_eq!(
        put(&platform, &late).await.0,
        404,
        "leave from before does not count"
    );

    let next = gguf(&admin, job).await;
    worker.socket.receive("ping").await;
    worker
        .say_of(
            json!({"type": "export_failed", "export_id": export, "data": {"error": "cancelled"}}),
        )
        .await;
    worker.pong(None).await;
    assert_eq!(worker.take_export().await["export_id"], next);
    let file = worker.store_export(&platform, job, next).await;
    worker
        .say_of(TestWorker::export_completed(job, next, &[file]))
        .await;
    shown_as(&admin, job, next, "completed").await;
    assert_eq!(artifacts(&admin, job).await.len(), 3);
    assert_eq!(admin.delete(&path(job, next)).await.0, 204);
    assert_eq!(admin.get(&path(job, next)).await.0, 404);
    assert_eq!(artifacts(&admin, job).await.len(), 2);
    let gone = platform.folder.path().join(format!(
        "storage/models/job-{job}/exports/{next}/job-{job}.gguf"
    ));
    assert!(!gone.exists());
}

#[actix_web::test]
async fn a_full_disk_at_the_worker_is_shown_and_a_lost_worker_s_export_fails() {
    let platform = Platform::start(SHORT).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::exporting(&admin).await;
    let job = worker.train(&admin).await;
    let export = gguf(&admin, job).await;
    worker.take_export().await;
    let data = json!({"error": "the disk is full", "failure_kind": "storage"});
    worker
        .say_of(json!({"type": "export_failed", "export_id": export, "data": data}))
        .await;
    let shown = shown_as(&admin, job, export, "failed").await;
    assert_eq!(
        (&shown["error"], &shown["failure_kind"]),
        (&data["error"], &data["failure_kind"])
    );
    let export = gguf(&admin, job).await;
    worker.take_export().await;
    worker.socket.reset();
    let shown = shown_as(&admin, job, export, "failed").await;
    assert_eq!(shown["failure_kind"], "worker_lost");
}

#[actix_web::test]
async fn after_a_restart_of_the_platform_exports_go_on_or_fail_with_a_reason() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut keeping = TestWorker::exporting(&admin).await;
    let job = keeping.train(&admin).await;
    let kept = gguf(&admin, job).await;
    keeping.take_export().await;
    let mut losing = TestWorker::exporting(&admin).await;
    let lost = gguf(&admin, job).await;
    losing.take_export().await;
    let queued = gguf(&admin, job).await;
    let platform = Platform::start_in(platform.stop().await, QUIET).await;
    let admin = platform.admin().await;
    let mut keeping = keeping.again(&platform).await;
    keeping.register().await;
    keeping.says_it_has_exports(&[kept]).await;
    let mut losing = losing.again(&platform).await;
    losing.register().await;
    losing.says_it_has_exports(&[]).await;
    let shown = shown_as(&admin, job, lost, "failed").await;
    assert_eq!(shown["failure_kind"], "worker_restarted");
    let file = keeping.store_export(&platform, job, kept).await;
    keeping
        .say_of(TestWorker::export_completed(job, kept, &[file]))
        .await;
    shown_as(&admin, job, kept, "completed").await;
    shown_as(&admin, job, queued, "running").await;
}

#[actix_web::test]
async fn a_job_stays_until_its_exports_have_ended_and_takes_them_along() {
    let platform = Platform::start(QUIET).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::exporting(&admin).await;
    let job = worker.train(&admin).await;
    let export = gguf(&admin, job).await;
    worker.take_export().await;
    let (status, answer) = admin.delete(&format!("/api/jobs/{job}")).await;
    assert_eq!(
        (status.as_u16(), &answer["error"]["code"]),
        (409, &json!("in_use"))
    );
    let file = worker.store_export(&platform, job, export).await;
    worker
        .say_of(TestWorker::export_completed(job, export, &[file]))
        .await;
    assert_eq!(admin.delete(&format!("/api/jobs/{job}")).await.0, 204);
    assert_eq!(admin.get(&path(job, export)).await.0, 404);
}
