//! Which checkpoints are kept, in the list and in storage.

use super::*;

fn stored_steps(platform: &Platform, job: i64) -> Vec<String> {
    let folder = platform
        .folder
        .path()
        .join(format!("storage/checkpoints/job-{job}"));
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap())
        .filter(|entry| std::fs::read_dir(entry.path()).unwrap().next().is_some())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

async fn checkpoint(platform: &Platform, worker: &mut TestWorker, job: i64, step: u64) {
    let path = format!("checkpoints/job-{job}/step-{step}/");
    let key = format!("{path}adapter_model.safetensors");
    let file = store(platform, worker, job, &key, "weights").await;
    let data = json!({"step": step, "path": path, "files": [file]});
    worker.say_acked("checkpoint_saved", job, data).await;
}

#[actix_web::test]
async fn old_checkpoints_are_removed_by_the_job_s_own_limit() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let config = json!({"config": {"save_total_limit": 2}});
    let (mut worker, job) = training(&admin, config).await;
    for step in [100, 200, 300] {
        checkpoint(&platform, &mut worker, job, step).await;
    }
    assert_eq!(stored_steps(&platform, job), ["step-200", "step-300"]);
    let (_, shown) = admin.get(&format!("/api/jobs/{job}")).await;
    let listed = shown["checkpoints"].as_array().unwrap();
    let steps: Vec<_> = listed.iter().map(|at| at["step"].as_i64()).collect();
    assert_eq!(steps, [Some(200), Some(300)]);

    worker
        .say_acked("job_failed", job, json!({"error": "power"}))
        .await;
    admin
        .post(&format!("/api/jobs/{job}/resume"), json!({}))
        .await;
    let start = worker.receive_job().await;
    assert_eq!(start["data"]["resume"]["step"], 300);
    worker.say_acked("job_started", job, json!({})).await;
    for step in [400, 500, 600] {
        checkpoint(&platform, &mut worker, job, step).await;
    }
    assert_eq!(
        stored_steps(&platform, job),
        ["step-300", "step-500", "step-600"]
    );
}

#[actix_web::test]
async fn a_deleted_job_leaves_no_file_and_takes_none() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let (mut worker, job) = training(&admin, json!({})).await;
    checkpoint(&platform, &mut worker, job, 100).await;
    let key = format!("models/job-{job}/final/adapter_config.json");
    store(&platform, &worker, job, &key, "{}").await;
    let session = Session {
        platform: &platform,
        token: worker.key.clone(),
    };
    let late = json!({"job_id": job, "key": format!("models/job-{job}/final/late"), "size": 2,
        "sha256": hex::encode(Sha256::digest("{}"))});
    let (_, target) = session.post("/api/worker/uploads", late).await;
    worker
        .say_acked("job_failed", job, json!({"error": "x"}))
        .await;
    assert_eq!(admin.delete(&format!("/api/jobs/{job}")).await.0, 204);
    let put = platform.client.put(target["url"].as_str().unwrap());
    assert_eq!(put.body("{}").send().await.unwrap().status(), 404);
    for folder in ["checkpoints", "models"] {
        let place = platform.folder.path().join("storage").join(folder);
        let left = std::fs::read_dir(place.join(format!("job-{job}")));
        assert!(
            left.map_or(true, |mut entries| entries.next().is_none()),
            "{folder}"
        );
    }
}
