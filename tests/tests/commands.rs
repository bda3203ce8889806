//! The client's commands against a running platform, as a person at a terminal or a script uses them.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use trainyard_tests::process::Process;
use trainyard_tests::scripted_worker::job_with_status;
use trainyard_tests::terminal::Terminal;
use trainyard_tests::{Client, Platform, ScriptedWorker, dataset};

/// Uploads a good data set and makes a job on it.
async fn submit(terminal: &Terminal) -> i64 {
    let file = terminal.file("chats.jsonl", dataset::chats(8));
    let dataset = terminal
        .run(&["datasets", "add", &file, "--json"])
        .await
        .json();
    let dataset_id = dataset[0]["id"].to_string();
    let submit = [
        "jobs",
        "submit",
        "--dataset",
        &dataset_id,
        "--model",
        "org/tiny",
        "--set",
        "epochs=1",
        "--json",
    ];
    let job = terminal.run(&submit).await.json();
    assert_eq!(job[0]["status"], "queued");
    assert_eq!(job[0]["config"]["epochs"], 1);
    job[0]["id"].as_i64().expect("a job has a number")
}

#[tokio::test]
async fn login_keeps_the_token_for_its_owner_only_and_logout_forgets_it() {
    let platform = Platform::start().await;
    let terminal = Terminal::new(&platform);
    assert!(
        terminal
            .run(&["users", "list"])
            .await
            .failed()
            .contains("trainyard login")
    );

    let login = ["login", "--email", "admin@example.org", "--password-stdin"];
    terminal.run_with_input(&login, "wrong\n").await.failed();
    assert!(!terminal.credentials().exists());

    let told = terminal
        .run_with_input(&login, "correct horse battery staple\n")
        .await
        .ok();
    assert!(told.contains("admin@example.org"), "{told}");
    let mode = std::fs::metadata(terminal.credentials())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let stored: Value =
        serde_json::from_slice(&std::fs::read(terminal.credentials()).unwrap()).unwrap();
    let token = stored["logins"][format!("{}/", platform.url())]["token"]
        .as_str()
        .expect("a token")
        .to_owned();
    assert!(!told.contains(&token), "the token is not shown");

    let users = terminal.run(&["users", "list"]).await.ok();
    assert!(users.contains("admin@example.org"), "{users}");
    terminal.run(&["logout"]).await.ok();
    assert!(
        !std::fs::read_to_string(terminal.credentials())
            .unwrap()
            .contains(&token)
    );
    terminal.run(&["users", "list"]).await.failed();
    platform
        .anonymous()
        .with_token(&token)
        .get("/api/me")
        .await
        .refused(401);
}

#[tokio::test]
async fn keys_are_made_listed_and_revoked() {
    let platform = Platform::start().await;
    let terminal = Terminal::logged_in(&platform).await;
    let made = terminal
        .run(&[
            "keys",
            "create",
            "--max-uses",
            "2",
            "--expires-in",
            "2h",
            "--json",
        ])
        .await
        .json();
    assert!(
        made[0]["key"]
            .as_str()
            .expect("a key")
            .starts_with("enroll_")
    );
    let id = made[0]["id"].to_string();
    let list = terminal.run(&["keys", "list"]).await.ok();
    assert!(list.contains("0 of 2"), "{list}");
    terminal.run(&["keys", "revoke", &id]).await.ok();
    terminal.run(&["keys", "revoke", "999"]).await.failed();
}

#[tokio::test]
async fn g064_a_file_is_checked_alike_at_home_and_at_the_platform() {
    let platform = Platform::start().await;
    let terminal = Terminal::logged_in(&platform).await;
    let bad = terminal.file(
        "bad.jsonl",
        b"{\"text\":\"a\"}\n{\"foo\":1}\n{\"text\":\"\xc3\x28\"}\n",
    );

    let home = terminal.run(&["datasets", "check", &bad]).await;
    assert_eq!(home.code, 1);
    let there = terminal.run(&["datasets", "add", &bad]).await.failed();
    for told in [&home.stdout, &there] {
        assert!(
            told.contains("line 2: ") && told.contains("`foo`"),
            "{told}"
        );
        assert!(told.contains("line 3: invalid UTF-8"), "{told}");
    }

    terminal
        .run(&["datasets", "check", &bad, "--max-bad-rows", "2"])
        .await
        .ok();
    terminal
        .run(&[
            "datasets",
            "add",
            &bad,
            "--max-bad-rows",
            "2",
            "--name",
            "tolerated",
        ])
        .await
        .ok();
    let list = terminal.run(&["datasets", "list", "--json"]).await.json();
    assert_eq!(list[0]["items"].as_array().expect("items").len(), 1);
    assert_eq!(list[0]["items"][0]["name"], "tolerated");
}

#[tokio::test]
async fn a_refused_config_is_told_with_the_field_and_the_nearest_name() {
    let platform = Platform::start().await;
    let terminal = Terminal::logged_in(&platform).await;
    let file = terminal.file("chats.jsonl", dataset::chats(8));
    let dataset = terminal
        .run(&["datasets", "add", &file, "--json"])
        .await
        .json();
    let dataset_id = dataset[0]["id"].to_string();
    let submit = [
        "jobs",
        "submit",
        "--dataset",
        &dataset_id,
        "--model",
        "org/tiny",
        "--set",
        "lerning_rate=1e-4",
    ];
    let told = terminal.run(&submit).await.failed();
    assert!(
        told.contains("lerning_rate") && told.contains("learning_rate"),
        "{told}"
    );
    let told = terminal
        .run(&[&submit[..], &["--json"]].concat())
        .await
        .failed();
    let error: Value = serde_json::from_str(&told).expect("an error in JSON");
    assert_eq!(error["error"]["code"], "invalid_request");
    assert_eq!(error["error"]["details"][0]["hint"], "learning_rate");
}

#[tokio::test]
async fn a_watched_job_is_told_live_and_success_is_exit_code_zero() {
    let platform = Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "60")]).await;
    let admin = platform.admin().await;
    let terminal = Terminal::logged_in(&platform).await;
    let job_id = submit(&terminal).await.to_string();

    let watch = ["jobs", "watch", job_id.as_str()];
    let work = async {
        let mut worker = ScriptedWorker::enrol(&platform, &admin).await;
        let job_id = worker.take_job().await;
        for step in 1..=10 {
            let data = json!({
                "epoch": 1, "step": step, "total_steps": 10, "loss": 2.0 / f64::from(step),
                "token_throughput": 640, "eta_seconds": 10 - step
            });
            worker.say("training_progress", job_id, data).await;
        }
        let result = json!({"final_loss": 0.2, "total_steps": 10, "s3_prefix": format!("models/job-{job_id}/final/")});
        worker.say("job_completed", job_id, result).await;
        worker
    };
    let (watched, _worker) = tokio::join!(terminal.run(&watch), work);
    let told = watched.ok();
    assert!(
        told.contains("step 10/10") && told.contains("loss 0.2000"),
        "{told}"
    );
    assert!(told.contains("640 tokens/s"), "{told}");
    assert!(
        told.lines()
            .last()
            .expect("a last line")
            .contains(&format!("job {job_id} completed")),
        "{told}"
    );

    // Watching a job that has ended tells its end at once.
    let lines = terminal
        .run(&["jobs", "watch", &job_id, "--json"])
        .await
        .json();
    let end = lines.last().expect("a last line");
    assert_eq!(
        (end["type"].as_str(), end["job"]["status"].as_str()),
        (Some("job"), Some("completed"))
    );
    let list = terminal
        .run(&["jobs", "list", "--status", "completed"])
        .await
        .ok();
    assert!(list.contains("10/10"), "{list}");
}

#[tokio::test]
async fn a_watched_job_that_fails_is_exit_code_one_with_the_reason() {
    let platform = Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "60")]).await;
    let admin = platform.admin().await;
    let terminal = Terminal::logged_in(&platform).await;
    let job_id = submit(&terminal).await.to_string();
    let watch = ["jobs", "watch", job_id.as_str()];
    let work = async {
        let mut worker = ScriptedWorker::enrol(&platform, &admin).await;
        let job_id = worker.take_job().await;
        worker
            .say(
                "job_failed",
                job_id,
                json!({"error": "CUDA out of memory", "step": 4}),
            )
            .await;
        worker
    };
    let (watched, _worker) = tokio::join!(terminal.run(&watch), work);
    assert_eq!(watched.code, 1, "{watched:?}");
    assert!(watched.stdout.contains("CUDA out of memory"), "{watched:?}");
    let shown = terminal.run(&["jobs", "show", &job_id]).await.ok();
    assert!(shown.contains("CUDA out of memory"), "{shown}");
}

/// Stores a file of a job's result as a worker does, and names it as `job_completed` does.
async fn store(worker: &Client, job_id: i64, name: &str, content: &[u8]) -> Value {
    let key = format!("models/job-{job_id}/final/{name}");
    let sha256 = hex::encode(Sha256::digest(content));
    let ask =
        json!({"job_id": job_id, "key": key, "size": content.len(), "sha256": sha256.as_str()});
    let upload = worker.post("/api/worker/uploads", ask).await.ok();
    let url = upload["url"].as_str().expect("a signed address");
    let mut put = reqwest::Client::new().put(url).body(content.to_vec());
    for (header, value) in upload["headers"].as_object().into_iter().flatten() {
        put = put.header(header, value.as_str().expect("a header is text"));
    }
    assert!(
        put.send()
            .await
            .expect("the platform answers")
            .status()
            .is_success()
    );
    json!({"key": key, "size_bytes": content.len(), "sha256": sha256})
}

#[tokio::test]
async fn what_a_job_made_is_downloaded_whole() {
    let platform = Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "60")]).await;
    let admin = platform.admin().await;
    let terminal = Terminal::logged_in(&platform).await;
    let job_id = submit(&terminal).await.to_string();
    let told = terminal.run(&["jobs", "download", &job_id]).await.failed();
    assert!(told.contains("no files"), "{told}");

    let mut worker = ScriptedWorker::enrol(&platform, &admin).await;
    let id = worker.take_job().await;
    let storing = platform.anonymous().with_token(&worker.identity.key);
    let weights = vec![7_u8; 300_000];
    let files = [
        store(&storing, id, "adapter_config.json", b"{}").await,
        store(&storing, id, "adapter_model.safetensors", &weights).await,
    ];
    let prefix = format!("models/job-{id}/final/");
    let result = json!({"final_loss": 0.2, "total_steps": 10, "s3_prefix": prefix, "files": files});
    worker.say("job_completed", id, result).await;
    job_with_status(&admin, id, "completed").await;

    let folder = terminal.folder().join("got");
    let folder_name = folder.display().to_string();
    let download = [
        "jobs",
        "download",
        &job_id,
        "--output",
        &folder_name,
        "--json",
    ];
    let told = terminal.run(&download).await.json();
    assert_eq!(told[0]["files"].as_array().expect("files").len(), 2);
    let read = |name: &str| std::fs::read(folder.join(name)).expect("it was downloaded");
    assert_eq!(read("adapter_config.json"), b"{}");
    assert_eq!(read("adapter_model.safetensors"), weights);
    let shown = terminal.run(&["jobs", "show", &job_id]).await.ok();
    assert!(shown.contains("adapter_model.safetensors"), "{shown}");
    let told = terminal.run(&["jobs", "resume", &job_id]).await.failed();
    assert!(
        told.contains("error: "),
        "a completed job is not resumed: {told}"
    );
}

#[tokio::test]
async fn watching_goes_on_when_the_platform_comes_back_after_a_crash() {
    let mut platform = Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "60")]).await;
    let admin = platform.admin().await;
    let terminal = Terminal::logged_in(&platform).await;
    let job_id = submit(&terminal).await.to_string();
    let mut watch = Process::start(
        "trainyard jobs watch",
        terminal.command(&["jobs", "watch", &job_id]),
    );
    let mut worker = ScriptedWorker::enrol(&platform, &admin).await;
    let id = worker.take_job().await;
    let step = json!({"epoch": 1, "step": 3, "total_steps": 10, "loss": 0.5});
    worker.say("training_progress", id, step).await;
    watch
        .line("the running job", |line| {
            line.contains("running").then_some(())
        })
        .await;

    platform.crash_and_restart().await;
    let mut worker = ScriptedWorker::connect(&platform, &worker.identity).await;
    worker.send_register().await;
    worker.pong(Some(id)).await;
    let result = json!({"final_loss": 0.2, "total_steps": 10});
    worker.say("job_completed", id, result).await;
    assert_eq!(watch.ended().await, Some(0), "{}", watch.output());
}

#[tokio::test]
async fn a_job_is_deleted_and_what_never_was_is_called_that() {
    let platform = Platform::start().await;
    let terminal = Terminal::logged_in(&platform).await;
    let job_id = submit(&terminal).await.to_string();
    let shown = terminal.run(&["jobs", "show", &job_id]).await.ok();
    assert!(
        shown.contains("org/tiny") && shown.contains("epochs=1"),
        "{shown}"
    );
    let exports = terminal.run(&["jobs", "exports", &job_id]).await.ok();
    assert!(exports.starts_with("ID  FORMAT"), "{exports}");
    let download = ["jobs", "download", &job_id, "--export", "77"];
    let told = terminal.run(&download).await.failed();
    assert!(told.contains("no such export"), "{told}");
    terminal
        .run(&["jobs", "delete-export", &job_id, "77"])
        .await
        .failed();
    let models = terminal.run(&["models", "list"]).await.ok();
    assert!(models.starts_with("MODEL"), "{models}");
    let dataset = terminal.run(&["datasets", "show", "1"]).await.ok();
    assert!(dataset.starts_with("data set 1: 8 rows"), "{dataset}");

    terminal.run(&["jobs", "stop", &job_id]).await.ok();
    terminal.run(&["jobs", "delete", &job_id]).await.ok();
    let told = terminal.run(&["jobs", "show", &job_id]).await.failed();
    assert!(told.contains("no such job"), "{told}");
    terminal.run(&["datasets", "delete", "1"]).await.ok();
}

#[tokio::test]
async fn a_queued_job_is_stopped_and_one_that_does_not_exist_is_not_found() {
    let platform = Platform::start().await;
    let terminal = Terminal::logged_in(&platform).await;
    let job_id = submit(&terminal).await.to_string();
    let told = terminal.run(&["jobs", "stop", &job_id]).await.ok();
    assert!(told.contains("stopped"), "{told}");
    terminal.run(&["jobs", "stop", &job_id]).await.failed();
    for command in ["show", "watch", "logs", "stop", "resume", "download"] {
        terminal.run(&["jobs", command, "999"]).await.failed();
    }
}
