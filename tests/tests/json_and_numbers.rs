//! JSON and numbers, from outside (given cases G036 to G039).

use serde_json::{Value, json};
use trainyard_tests::scripted_worker::job_with_status;
use trainyard_tests::{Client, Platform, ScriptedWorker, dataset, eventually};

/// A platform whose scripted worker runs one job.
async fn running_job() -> (Platform, Client, ScriptedWorker, i64) {
    let platform = Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "60")]).await;
    let admin = platform.admin().await;
    let mut worker = ScriptedWorker::enrol(&platform, &admin).await;
    let job_id = submit(&admin).await;
    assert_eq!(worker.take_job().await, job_id);
    job_with_status(&admin, job_id, "running").await;
    (platform, admin, worker, job_id)
}

async fn submit(admin: &Client) -> i64 {
    let dataset_id = admin.dataset("chats", &dataset::chats(4)).await;
    let job = json!({
        "dataset_id": dataset_id,
        "base_model": {"huggingface_id": "yard/tiny"},
        "config": {"epochs": 1}
    });
    admin.job(job).await
}

/// Waits until the job shows `step`, and returns the job.
async fn job_at_step(admin: &Client, job_id: i64, step: u64) -> Value {
    eventually(&format!("step {step}"), || async {
        let job = admin.get(&format!("/api/jobs/{job_id}")).await.ok();
        (job["progress"]["step"] == step).then_some(job)
    })
    .await
}

#[tokio::test]
async fn g036_null_metric_is_a_gap_and_bare_nan_is_a_malformed_frame() {
    let (platform, admin, mut worker, job_id) = running_job().await;
    let mut dashboard = platform.dashboard(&admin).await;
    dashboard
        .send(json!({"type": "subscribe_job", "job_id": job_id}))
        .await;

    worker
        .say(
            "training_progress",
            job_id,
            json!({"step": 1, "loss": null, "grad_norm": 1.0}),
        )
        .await;
    let (update, _) = dashboard
        .receive_until(|message| message["data"]["step"] == 1)
        .await;
    assert!(update["data"]["loss"].is_null(), "{update}");
    let job = job_at_step(&admin, job_id, 1).await;
    assert!(job["progress"]["loss"].is_null(), "{job}");
    let points = eventually("the stored point", || async {
        let metrics = admin.get(&format!("/api/jobs/{job_id}/metrics")).await.ok();
        let points = metrics["points"].as_array().expect("points").clone();
        (!points.is_empty()).then_some(points)
    })
    .await;
    assert!(points[0]["loss"].is_null(), "{points:?}");

    let frame = format!(
        r#"{{"type":"training_progress","job_id":{job_id},"data":{{"step":2,"loss":NaN}}}}"#
    );
    worker.socket.send_text(&frame).await;
    assert_eq!(worker.receive_error().await["code"], "invalid_message");

    worker
        .say("training_progress", job_id, json!({"step": 3, "loss": 0.5}))
        .await;
    let job = job_at_step(&admin, job_id, 3).await;
    assert_eq!(job["status"], "running");
}

#[tokio::test]
async fn g037_id_beyond_what_a_double_holds_matches_no_neighbour() {
    let (platform, admin, _worker, _) = running_job().await;
    let mut dashboard = platform.dashboard(&admin).await;
    for id in ["9007199254740993", "9007199254740992", "9007199254740991"] {
        dashboard
            .send_text(&format!(r#"{{"type":"subscribe_job","job_id":{id}}}"#))
            .await;
        let error = dashboard.receive_type("error").await;
        let code = error["code"].as_str().expect("a code");
        assert!(["not_found", "invalid_message"].contains(&code), "{error}");
        let answer = admin.get(&format!("/api/jobs/{id}")).await;
        assert!(
            [400, 404].contains(&answer.status.as_u16()),
            "{id}: {}",
            answer.status
        );
    }
    admin.get("/api/jobs/9007199254740991").await.refused(404);
    admin
        .get("/api/jobs/9223372036854775808")
        .await
        .refused(400);
    admin.get("/api/jobs/-1").await.refused(400);
    admin.get("/api/jobs/one").await.refused(400);
}

/// Promise P10.
#[tokio::test]
async fn g038_field_of_the_wrong_type_is_one_error_that_names_it_and_changes_nothing() {
    let (_platform, admin, mut worker, job_id) = running_job().await;
    let spelled = job_id.to_string();
    for wrong in [
        format!("\"{spelled}\""),
        format!("{spelled}.0"),
        format!("{spelled}e0"),
        "-1".to_owned(),
        "0".to_owned(),
        "true".to_owned(),
        "null".to_owned(),
        format!("[{spelled}]"),
    ] {
        let frame = format!(
            r#"{{"type":"training_progress","job_id":{wrong},"data":{{"step":5,"loss":0.5}}}}"#
        );
        worker.socket.send_text(&frame).await;
        let error = worker.receive_error().await;
        assert_eq!(error["code"], "invalid_message", "{wrong}: {error}");
        assert_eq!(error["in_reply_to"], "training_progress", "{error}");
        assert!(
            error["message"].as_str().unwrap().contains("job_id"),
            "{wrong}: {error}"
        );
    }
    for (field, wrong) in [("total_steps", "9223372036854775808"), ("epoch", "2.5")] {
        let frame = format!(
            r#"{{"type":"training_progress","job_id":{job_id},"data":{{"step":5,"{field}":{wrong}}}}}"#
        );
        worker.socket.send_text(&frame).await;
        let error = worker.receive_error().await;
        assert_eq!(error["code"], "invalid_message", "{error}");
        assert!(
            error["message"].as_str().unwrap().contains(field),
            "{error}"
        );
    }
    let register = json!({"type": "worker_register", "data": {
        "gpu_available": true, "gpu_memory_gb": "80", "worker_type": "both"
    }});
    worker.socket.send(register).await;
    let error = worker.receive_error().await;
    assert_eq!(error["code"], "invalid_message", "{error}");
    assert!(
        error["message"].as_str().unwrap().contains("gpu_memory_gb"),
        "{error}"
    );

    worker
        .say("training_progress", job_id, json!({"step": 6, "loss": 0.5}))
        .await;
    job_at_step(&admin, job_id, 6).await;
    let metrics = admin.get(&format!("/api/jobs/{job_id}/metrics")).await.ok();
    let refused = metrics["points"]
        .as_array()
        .unwrap()
        .iter()
        .find(|point| point["step"] == 5);
    assert!(refused.is_none(), "{metrics}");
}

#[tokio::test]
async fn g039_lone_surrogate_is_refused_and_the_whole_pair_is_one_letter() {
    let (_platform, admin, mut worker, job_id) = running_job().await;
    let dataset_id = admin.dataset("more", &dataset::chats(4)).await;
    let job = |name: &str| {
        format!(
            r#"{{"name":"{name}","dataset_id":{dataset_id},
                "base_model":{{"huggingface_id":"yard/tiny"}},"config":{{"epochs":1}}}}"#
        )
    };
    let error = admin
        .post_text("/api/jobs", &job(r"hi \ud83d"))
        .await
        .refused(400);
    assert_eq!(error["code"], "invalid_request");
    let made = admin
        .post_text("/api/jobs", &job(r"hi \ud83d\ude0a"))
        .await
        .ok();
    assert_eq!(made["name"], "hi \u{1f60a}");

    let fail = |text: &str| {
        format!(r#"{{"type":"job_failed","job_id":{job_id},"data":{{"error":"{text}","step":1}}}}"#)
    };
    worker.socket.send_text(&fail(r"broken \ud83d")).await;
    assert_eq!(worker.receive_error().await["code"], "invalid_message");
    let still = admin.get(&format!("/api/jobs/{job_id}")).await.ok();
    assert_eq!(still["status"], "running");
    worker.socket.send_text(&fail(r"broken \ud83d\ude0a")).await;
    let job = job_with_status(&admin, job_id, "failed").await;
    assert_eq!(job["error"], "broken \u{1f60a}");
}
