//! The routes of jobs.

use super::*;

#[actix_web::test]
async fn stopping_resuming_and_deleting_follow_the_state() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let queued = admin.job(json!({})).await;
    let at = |job: i64, verb: &str| format!("/api/jobs/{job}{verb}");
    let (status, stopped) = admin.post(&at(queued, "/stop"), json!({})).await;
    assert_eq!(
        (status.as_u16(), stopped["status"].as_str()),
        (200, Some("stopped"))
    );
    let (status, refused) = admin.post(&at(queued, "/stop"), json!({})).await;
    assert_eq!(
        (status.as_u16(), refused["error"]["code"].as_str()),
        (409, Some("job_ended"))
    );
    assert_eq!(admin.delete(&at(queued, "")).await.0, 204);
    assert_eq!(admin.get(&at(queued, "")).await.0, 404);

    let (mut worker, job) = training(&admin, json!({})).await;
    let (status, refused) = admin.delete(&at(job, "")).await;
    assert_eq!(
        (status.as_u16(), refused["error"]["code"].as_str()),
        (409, Some("job_running"))
    );
    let (status, refused) = admin.post(&at(job, "/resume"), json!({})).await;
    assert_eq!(
        (status.as_u16(), refused["error"]["code"].as_str()),
        (409, Some("job_running"))
    );
    for _ in 0..2 {
        let (status, stopping) = admin.post(&at(job, "/stop"), json!({})).await;
        assert_eq!(
            (status.as_u16(), stopping["status"].as_str()),
            (200, Some("stopping"))
        );
    }
    worker.socket.receive("stop_training").await;
    worker
        .say_acked("job_stopped", job, json!({"step": 3}))
        .await;
    admin.wait_for_job(job, "stopped").await;
    let (_, resumed) = admin.post(&at(job, "/resume"), json!({})).await;
    assert_eq!(resumed["attempt"], 2);
    assert_eq!(worker.take_job().await, job);
    worker.say_acked("job_completed", job, json!({})).await;
    let (status, refused) = admin.post(&at(job, "/resume"), json!({})).await;
    assert_eq!(
        (status.as_u16(), refused["error"]["code"].as_str()),
        (409, Some("job_ended"))
    );
}

#[actix_web::test]
async fn jobs_are_listed_by_status_and_seen_by_their_owner() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let member = platform.user("member@example.org", "member").await;
    let viewer = platform.user("viewer@example.org", "viewer").await;
    let own = member.job(json!({})).await;
    let others = admin.job(json!({})).await;
    let ids = |list: &Value| -> Vec<i64> {
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|job| job["id"].as_i64().unwrap())
            .collect()
    };
    assert_eq!(ids(&member.get("/api/jobs").await.1), [own]);
    assert_eq!(ids(&viewer.get("/api/jobs").await.1), [others, own]);
    assert_eq!(
        ids(&admin.get("/api/jobs?status=queued&limit=1").await.1),
        [others]
    );
    assert_eq!(
        ids(&admin.get("/api/jobs?status=running").await.1),
        Vec::<i64>::new()
    );
    assert_eq!(admin.get("/api/jobs?status=nonsense").await.0, 400);
    assert_eq!(member.get(&format!("/api/jobs/{others}")).await.0, 404);
    assert_eq!(
        member
            .post(&format!("/api/jobs/{others}/stop"), json!({}))
            .await
            .0,
        404
    );
    assert_eq!(
        viewer
            .post(&format!("/api/jobs/{own}/stop"), json!({}))
            .await
            .0,
        403
    );
    let row = r#"{"text":"a"}"#;
    let (_, dataset) = admin.upload("name=d", row).await;
    let body = |id: &Value| json!({"dataset_id": id, "base_model": {"huggingface_id": "a/b"}});
    assert_eq!(member.post("/api/jobs", body(&dataset["id"])).await.0, 404);
    assert_eq!(viewer.post("/api/jobs", body(&dataset["id"])).await.0, 403);
}

#[actix_web::test]
async fn every_problem_of_a_refused_job_is_named() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let body = json!({"name": "", "dataset_id": 1, "base_model": {"huggingface_id": "../x"},
        "priority": 9999, "max_retries": 101, "config": {"learning_rat": 1, "batch_size": 0}});
    let (status, refused) = admin.post("/api/jobs", body).await;
    assert_eq!(status, 400);
    assert_eq!(refused["error"]["code"], "invalid_request");
    let details = refused["error"]["details"].as_array().unwrap();
    let fields: Vec<&str> = details
        .iter()
        .map(|detail| detail["field"].as_str().unwrap())
        .collect();
    for field in [
        "name",
        "base_model.huggingface_id",
        "priority",
        "max_retries",
        "config.learning_rat",
        "config.batch_size",
    ] {
        assert!(fields.contains(&field), "{field} is not among {fields:?}");
    }
    let hint = details
        .iter()
        .find(|detail| detail["field"] == "config.learning_rat")
        .unwrap();
    assert!(hint["hint"].as_str().unwrap().contains("learning_rate"));
    for (path, status) in [
        ("9007199254740993", 404),
        ("9223372036854775808", 400),
        ("0", 400),
        ("x", 400),
    ] {
        assert_eq!(
            admin.get(&format!("/api/jobs/{path}")).await.0,
            status,
            "g037 {path}"
        );
    }
}
