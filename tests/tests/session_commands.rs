//! The client's commands on what is trained in rounds, and on evaluations.

use reqwest::Client as Http;
use serde_json::{Value, json};
use trainyard_tests::model::TINY_MODEL_ID;
use trainyard_tests::terminal::Terminal;
use trainyard_tests::{Platform, TinyModel, dataset, eventually};

async fn platform() -> (Platform, TinyModel) {
    let model = TinyModel::create();
    let models = model.models_dir().display().to_string();
    let settings = [("MODELS_DIR", models.as_str()), ("HF_HUB_OFFLINE", "true")];
    (Platform::start_with(&settings).await, model)
}

async fn add_dataset(terminal: &Terminal) -> String {
    let file = terminal.file("chats.jsonl", dataset::chats(8));
    let added = terminal
        .run(&["datasets", "add", &file, "--json"])
        .await
        .json();
    added[0]["id"].to_string()
}

/// Waits until a session is open.
async fn is_open(terminal: &Terminal, kind: &str, id: &str) {
    eventually("an open session", async || {
        let shown = terminal.run(&[kind, "show", id, "--json"]).await.json();
        let session = shown[0].get("session").unwrap_or(&shown[0]).clone();
        assert_ne!(session["status"], "failed", "{session}");
        (session["status"] == "open").then_some(())
    })
    .await;
}

/// Plays a volunteer that sends the global adapter back as it is.
async fn volunteer(base: &str, worker: &str) {
    // Twice is once: every test may be the first to need TLS's provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = Http::builder()
        .no_proxy()
        .build()
        .expect("the client starts");
    let ask = |path: &str| http.get(format!("{base}{path}")).send();
    let task = ask(&format!("gorev?isci={worker}"))
        .await
        .expect("an answer");
    let task: Value = task.json().await.expect("JSON");
    let weights = ask("agirlik").await.expect("an answer");
    let weights = weights.bytes().await.expect("the weights");
    let url = format!("{base}sonuc?isci={worker}&tur={}", task["tur"]);
    let sent = http.post(url).body(weights).send().await;
    assert_eq!(sent.expect("an answer").status(), 200);
}

#[tokio::test]
async fn a_volunteer_session_is_made_followed_fetched_and_deleted() {
    let (platform, _model) = platform().await;
    let terminal = Terminal::logged_in(&platform).await;
    let refused = terminal
        .run(&["coordinators", "create", "tales", "--base-model", "../x"])
        .await
        .failed();
    assert!(refused.contains("--base-model: "), "{refused}");
    let data = add_dataset(&terminal).await;
    let key = terminal.file("key", "sesame\nand more\n");
    let create = [
        "coordinators",
        "create",
        "tales",
        "--base-model",
        TINY_MODEL_ID,
        "--dataset",
        &data,
        "--rounds",
        "1",
        "--shards",
        "2",
        "--enough",
        "1",
        "--mode",
        "sft",
        "--round-timeout",
        "0",
        "--lora-r",
        "2",
        "--target-modules",
        "q_proj,v_proj",
        "--default",
    ];
    let told = terminal.run(&create).await.ok();
    assert!(told.contains("/c/tales/"), "{told}");
    let locked = [
        &create[..2],
        &["locked", "--base-model", TINY_MODEL_ID, "--key-file", &key],
    ]
    .concat();
    terminal.run(&locked).await.ok();
    let list = terminal
        .run(&["coordinators", "list", "--json"])
        .await
        .json();
    let sessions = list[0]["items"].as_array().expect("sessions");
    assert_eq!(sessions.len(), 2);
    assert_eq!(sessions[0]["locked"], true, "{}", sessions[0]);
    let id = sessions[1]["id"].to_string();
    is_open(&terminal, "coordinators", &id).await;
    let told = terminal.run(&["coordinators", "list"]).await.ok();
    assert!(told.contains("tales") && told.contains("1/1"), "{told}");
    let told = terminal
        .run(&["coordinators", "delete", &id])
        .await
        .failed();
    assert!(told.contains("stop it first"), "{told}");

    let base = format!("{}/", platform.url());
    let watch = ["coordinators", "watch", id.as_str()];
    let (watched, ()) = tokio::join!(terminal.run(&watch), volunteer(&base, "ali"));
    let told = watched.ok();
    assert!(told.contains(&format!("federated-{id}")), "{told}");
    let told = terminal.run(&["coordinators", "show", &id]).await.ok();
    assert!(told.contains("ali") && told.contains("finished"), "{told}");
    // One round, and no line for what came of it.
    let rounds = told.split("CLOSED").nth(1).expect("a table of rounds");
    assert_eq!(rounds.trim().lines().count(), 1, "{told}");
    let shown = terminal
        .run(&["coordinators", "show", &id, "--json"])
        .await
        .json();
    assert_eq!(shown[0]["participants"][0]["accepted"], 1);
    assert_eq!(shown[0]["rounds"][1]["merged"], 1);

    let folder = terminal.folder().join("got");
    let output = folder.display().to_string();
    let download = ["coordinators", "download", &id, "--output", &output];
    terminal.run(&download).await.ok();
    let told = terminal.run(&download).await.ok();
    assert!(told.contains("was there"), "{told}");
    std::fs::write(folder.join("README.md"), "notes of my own").expect("a file can be written");
    let refused = terminal.run(&download).await.failed();
    assert!(refused.contains("--overwrite"), "{refused}");
    let again = [&download[..], &["--overwrite"]].concat();
    terminal.run(&again).await.ok();
    for file in [
        "adapter_config.json",
        "adapter_model.safetensors",
        "README.md",
    ] {
        assert!(folder.join(file).exists(), "{file}");
    }
    let told = terminal.run(&["coordinators", "delete", &id]).await.ok();
    assert!(told.contains("deleted"), "{told}");
    for command in ["show", "watch", "stop", "download", "delete"] {
        terminal.run(&["coordinators", command, &id]).await.failed();
    }
}

#[tokio::test]
async fn a_stopped_volunteer_session_is_exit_code_one_for_those_who_watch() {
    let (platform, _model) = platform().await;
    let terminal = Terminal::logged_in(&platform).await;
    let create = [
        "coordinators",
        "create",
        "tales",
        "--base-model",
        TINY_MODEL_ID,
        "--json",
    ];
    let made = terminal.run(&create).await.json();
    let id = made[0]["id"].to_string();
    is_open(&terminal, "coordinators", &id).await;
    let told = terminal.run(&["coordinators", "stop", &id]).await.ok();
    assert!(told.contains("stopped"), "{told}");
    let watched = terminal.run(&["coordinators", "watch", &id]).await;
    assert_eq!(watched.code, 1, "{watched:?}");
    assert!(watched.stdout.contains("stopped"), "{watched:?}");
}

#[tokio::test]
async fn a_federated_session_is_started_shown_stopped_fetched_and_deleted() {
    let (platform, _model) = platform().await;
    let terminal = Terminal::logged_in(&platform).await;
    let data = add_dataset(&terminal).await;
    let start = [
        "federated",
        "start",
        "--dataset",
        &data,
        "--shards",
        "2",
        "--model",
        TINY_MODEL_ID,
        "--rounds",
        "2",
        "--local-steps",
        "4",
        "--min-workers",
        "2",
        "--set",
        "lora_r=4",
        "--name",
        "yard night",
    ];
    let wrong = [&start[..], &["--set", "lora_rank=4"]].concat();
    let refused = terminal.run(&wrong).await.failed();
    assert!(refused.contains("lora_rank"), "{refused}");
    let made = terminal
        .run(&[&start[..], &["--json"]].concat())
        .await
        .json();
    let id = made[0]["id"].to_string();
    is_open(&terminal, "federated", &id).await;
    let told = terminal.run(&["federated", "list"]).await.ok();
    assert!(told.contains("yard night"), "{told}");
    let told = terminal.run(&["federated", "show", &id]).await.ok();
    assert!(told.contains("waits because"), "{told}");
    terminal.run(&["federated", "delete", &id]).await.failed();

    let watch = ["federated", "watch", id.as_str()];
    let stop = ["federated", "stop", id.as_str()];
    let (watched, stopped) = tokio::join!(terminal.run(&watch), terminal.run(&stop));
    assert!(stopped.ok().contains("stopped"));
    assert_eq!(watched.code, 1, "{watched:?}");
    terminal.run(&stop).await.failed();
    let folder = terminal.folder().join("got").display().to_string();
    let download = ["federated", "download", &id, "--output", &folder, "--json"];
    let told = terminal.run(&download).await.json();
    assert_eq!(told[0]["files"].as_array().expect("files").len(), 3);
    terminal.run(&["federated", "delete", &id]).await.ok();
    for command in ["show", "watch", "stop", "download", "delete"] {
        terminal.run(&["federated", command, &id]).await.failed();
    }
}

#[tokio::test]
async fn a_personal_token_is_shown_once_works_and_is_revoked() {
    let (platform, _model) = platform().await;
    let terminal = Terminal::logged_in(&platform).await;
    let create = [
        "tokens",
        "create",
        "night script",
        "--role",
        "viewer",
        "--expires-in",
        "1h",
        "--json",
    ];
    let made = terminal.run(&create).await.json();
    let token = made[0]["token"].as_str().expect("a token").to_owned();
    let with_token = async |arguments: &[&str]| {
        let mut command = terminal.command(arguments);
        command.env("TRAINYARD_TOKEN", &token);
        command.output().await.expect("the binary runs")
    };
    assert!(with_token(&["jobs", "list"]).await.status.success());
    let listed = terminal.run(&["tokens", "list"]).await.ok();
    assert!(
        listed.contains("night script") && listed.contains("viewer") && !listed.contains(&token),
        "{listed}"
    );
    let id = made[0]["id"].to_string();
    terminal.run(&["tokens", "revoke", &id]).await.ok();
    assert!(!with_token(&["jobs", "list"]).await.status.success());
    terminal.run(&["tokens", "revoke", &id]).await.failed();
}

#[tokio::test]
async fn an_evaluation_that_nobody_waited_for_is_looked_at_later() {
    let (platform, _model) = platform().await;
    let terminal = Terminal::logged_in(&platform).await;
    let data = add_dataset(&terminal).await;
    let evaluate = [
        "evaluate",
        "--model",
        TINY_MODEL_ID,
        "--dataset",
        &data,
        "--no-wait",
        "--json",
    ];
    let made = terminal.run(&evaluate).await.json();
    let id = made[0]["id"].to_string();
    let list = terminal.run(&["evaluations", "list"]).await.ok();
    assert!(
        list.contains(TINY_MODEL_ID) && list.contains("queued"),
        "{list}"
    );
    let shown = terminal.run(&["evaluations", "show", &id, "--json"]).await;
    assert_eq!(
        shown.json()[0]["dataset_id"],
        json!(data.parse::<i64>().expect("a number"))
    );
    terminal.run(&["evaluations", "cancel", &id]).await.ok();
    let watched = terminal.run(&["evaluations", "watch", &id]).await;
    assert_eq!(watched.code, 1, "{watched:?}");
    assert!(watched.stdout.contains("cancelled"), "{watched:?}");
    terminal.run(&["evaluations", "show", "999"]).await.failed();
}
