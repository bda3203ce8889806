//! Progress, curves and logs.

use super::*;

#[actix_web::test]
async fn g015_shown_steps_never_go_back_and_the_curve_holds_each_once() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut dashboard = admin.dashboard().await;
    let (mut worker, job) = training(&admin, json!({})).await;
    dashboard
        .send(json!({"type": "subscribe_job", "job_id": job}))
        .await;
    for (step, loss) in [(10, 1.0), (30, 0.8), (20, 0.9), (20, 0.9), (31, 0.79)] {
        worker
            .say(
                "training_progress",
                job,
                json!({"step": step, "loss": loss}),
            )
            .await;
    }
    let seen = dashboard
        .collect_until(|update| update["data"]["step"] == 31)
        .await;
    let steps: Vec<u64> = seen
        .iter()
        .filter_map(|update| update["data"]["step"].as_u64())
        .collect();
    assert!(steps.is_sorted(), "{steps:?}");
    let (_, curve) = admin.get(&format!("/api/jobs/{job}/metrics")).await;
    let points: Vec<(u64, f64)> = curve["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|point| {
            (
                point["step"].as_u64().unwrap(),
                point["loss"].as_f64().unwrap(),
            )
        })
        .collect();
    assert_eq!(points, [(10, 1.0), (20, 0.9), (30, 0.8), (31, 0.79)]);
    let (_, rest) = admin
        .get(&format!("/api/jobs/{job}/metrics?since_step=30"))
        .await;
    assert_eq!(rest["points"].as_array().unwrap().len(), 1);
}

#[actix_web::test]
async fn g016_a_resumed_job_goes_on_from_its_checkpoint_and_shows_the_new_attempt() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let (mut worker, job) = training(&admin, json!({})).await;
    for step in [1399, 1400, 1401, 1480] {
        worker
            .say("training_progress", job, json!({"step": step, "loss": 1.0}))
            .await;
    }
    let key = format!("checkpoints/job-{job}/step-1400/adapter_model.safetensors");
    let file = store(&platform, &worker, job, &key, "weights").await;
    let path = format!("checkpoints/job-{job}/step-1400/");
    worker
        .say_acked(
            "checkpoint_saved",
            job,
            json!({"step": 1400, "path": path, "files": [file]}),
        )
        .await;
    worker
        .say_acked("job_failed", job, json!({"error": "power", "step": 1480}))
        .await;
    let (_, failed) = admin.get(&format!("/api/jobs/{job}")).await;
    assert_eq!(failed["error"], "power");
    let (_, resumed) = admin
        .post(&format!("/api/jobs/{job}/resume"), json!({}))
        .await;
    assert_eq!(resumed["attempt"], 2);

    let start = worker.receive_job().await;
    assert_eq!(start["attempt"], 2);
    let resume = &start["data"]["resume"];
    assert_eq!(resume["step"], 1400);
    assert_eq!(resume["files"][0]["key"], "adapter_model.safetensors");
    let url = resume["files"][0]["download_url"].as_str().unwrap();
    assert_eq!(
        platform
            .client
            .get(url)
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap(),
        "weights"
    );
    worker.say_acked("job_started", job, json!({})).await;
    for step in [1401, 1402] {
        worker
            .say("training_progress", job, json!({"step": step, "loss": 0.5}))
            .await;
    }
    let shown = admin
        .wait(&format!("/api/jobs/{job}"), |shown| {
            shown["progress"]["step"] == 1402
        })
        .await;
    assert_eq!(shown["attempt"], 2);
    let (_, curve) = admin.get(&format!("/api/jobs/{job}/metrics")).await;
    let points: Vec<(u64, f64)> = curve["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|point| {
            (
                point["step"].as_u64().unwrap(),
                point["loss"].as_f64().unwrap(),
            )
        })
        .collect();
    assert_eq!(points, [(1399, 1.0), (1400, 1.0), (1401, 0.5), (1402, 0.5)]);
}

#[actix_web::test]
async fn g036_a_metric_that_is_not_finite_is_null_everywhere() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut dashboard = admin.dashboard().await;
    let (mut worker, job) = training(&admin, json!({})).await;
    dashboard
        .send(json!({"type": "subscribe_job", "job_id": job}))
        .await;
    worker
        .say("training_progress", job, json!({"step": 1, "loss": null}))
        .await;
    let update = dashboard
        .receive_where(|update| update["data"]["step"] == 1)
        .await;
    assert!(update["data"]["loss"].is_null());
    let (_, curve) = admin.get(&format!("/api/jobs/{job}/metrics")).await;
    assert!(curve["points"][0].as_object().unwrap()["loss"].is_null());
    let frame =
        format!(r#"{{"type":"training_progress","job_id":{job},"data":{{"step":2,"loss":NaN}}}}"#);
    worker.socket.send_text(&frame).await;
    assert_eq!(
        worker.socket.receive("error").await["code"],
        "invalid_message"
    );
    worker
        .say("training_progress", job, json!({"step": 3, "loss": 0.5}))
        .await;
    dashboard
        .receive_where(|update| update["data"]["step"] == 3)
        .await;
}

#[actix_web::test]
async fn g073_an_ended_job_shows_its_newest_step_also_with_gaps_and_after_an_evaluation() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let (mut worker, job) = training(&admin, json!({})).await;
    for data in [
        json!({"step": 1, "loss": 1.0, "eval_loss": 0.75}),
        json!({"step": 2, "loss": 0.5}),
        json!({"step": 3, "loss": null, "grad_norm": null}),
    ] {
        worker.say("training_progress", job, data).await;
    }
    worker
        .say_acked("job_failed", job, json!({"error": "diverged", "step": 3}))
        .await;
    let (_, shown) = admin.get(&format!("/api/jobs/{job}")).await;
    assert_eq!(shown["status"], "failed");
    assert_eq!(shown["progress"]["step"], 3, "{shown}");
    assert_eq!(shown["progress"]["loss"], Value::Null, "{shown}");
    assert_eq!(shown["progress"]["eval_loss"], 0.75, "{shown}");
}

#[actix_web::test]
async fn what_a_worker_logs_is_kept_with_the_job() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let (mut worker, job) = training(&admin, json!({})).await;
    worker
        .say(
            "worker_log",
            job,
            json!({"level": "warn", "line": "3 rows skipped"}),
        )
        .await;
    worker.everything_sent().await;
    let (_, logs) = admin.get(&format!("/api/jobs/{job}/logs")).await;
    assert_eq!(logs["items"][0]["line"], "3 rows skipped");
    assert_eq!(logs["items"][0]["level"], "warn");
}

#[actix_web::test]
async fn an_absurd_step_is_ignored_and_does_not_freeze_what_is_shown() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let job = admin.job(json!({})).await;
    worker.receive_job().await;
    worker
        .say_acked("job_started", job, json!({"total_steps": 100}))
        .await;
    let absurd = 9_007_199_254_740_991_u64;
    for data in [
        json!({"step": 3, "loss": 1.0}),
        json!({"step": 101, "loss": 1.0}),
        json!({"step": absurd, "loss": 1.0}),
        json!({"step": absurd, "total_steps": absurd, "loss": 1.0}),
        json!({"step": 4, "loss": 0.9}),
    ] {
        worker.say("training_progress", job, data).await;
    }
    worker.everything_sent().await;
    let (_, shown) = admin.get(&format!("/api/jobs/{job}")).await;
    assert_eq!(shown["progress"]["step"], 4);
    let (_, curve) = admin.get(&format!("/api/jobs/{job}/metrics")).await;
    let steps = curve["points"].as_array().unwrap().iter();
    let steps: Vec<_> = steps.map(|point| point["step"].clone()).collect();
    assert_eq!(steps, [3, 4]);
}

#[actix_web::test]
async fn a_worker_that_logs_without_end_does_not_fill_the_database() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let (mut worker, job) = training(&admin, json!({})).await;
    let long = "\u{e4}".repeat(100_000);
    worker
        .say("worker_log", job, json!({"line": long, "level": "warn"}))
        .await;
    for number in 0..3_000 {
        worker
            .say("worker_log", job, json!({"line": format!("line {number}")}))
            .await;
    }
    worker.everything_sent().await;
    let (_, log) = admin.get(&format!("/api/jobs/{job}/logs")).await;
    let lines = log["items"].as_array().unwrap();
    let first = lines[0]["line"].as_str().unwrap();
    assert!(first.len() <= 4096 && first.ends_with("[cut]"), "{first}");
    assert!(lines.len() < 1_000, "{}", lines.len());
}

#[actix_web::test]
async fn a_resume_that_cannot_go_on_says_so_and_why() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut dashboard = admin.dashboard().await;
    let (mut worker, job) = training(&admin, json!({})).await;
    let path = format!("checkpoints/job-{job}/step-400/");
    worker
        .say_acked("checkpoint_saved", job, json!({"step": 400, "path": path}))
        .await;
    worker
        .say_acked("job_failed", job, json!({"error": "power"}))
        .await;
    dashboard
        .send(json!({"type": "subscribe_job", "job_id": job}))
        .await;
    dashboard.receive("job_update").await;
    let (_, resumed) = admin
        .post(&format!("/api/jobs/{job}/resume"), json!({}))
        .await;
    let why = resumed["begins_anew_because"].as_str().unwrap();
    assert!(why.contains("step 400"), "{why}");
    let update = dashboard
        .receive_where(|update| update["data"]["attempt"] == 2)
        .await;
    assert_eq!(update["data"]["begins_anew_because"], why);
    let (_, events) = admin.get(&format!("/api/jobs/{job}/events")).await;
    let resumed = events["items"].as_array().unwrap().iter();
    let resumed = resumed.filter(|event| event["kind"] == "resumed");
    let details: Vec<_> = resumed.map(|event| event["detail"].clone()).collect();
    assert_eq!(details.len(), 1);
    assert!(details[0].as_str().unwrap().contains(why), "{details:?}");
}
