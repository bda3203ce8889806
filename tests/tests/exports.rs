//! Results of jobs in other forms: a real worker writes them, the platform keeps them, `trainyard` fetches them.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use trainyard_tests::eventually;
use trainyard_tests::process::binary;
use trainyard_tests::yard::Yard;

/// What a model file or folder says to the chat that the job was taught.
fn answer(model: &Path) -> String {
    let chat = model.with_extension("chat.json");
    fs::write(&chat, r#"[{"role": "user", "content": "load car 3"}]"#)
        .expect("the chat is written");
    let output = Command::new(binary("trainyard-worker"))
        .args([
            "--json",
            "generate",
            "--temperature",
            "0",
            "--max-tokens",
            "16",
        ])
        .arg("--model")
        .arg(model)
        .arg("--messages")
        .arg(&chat)
        .output()
        .expect("it runs");
    let printed = String::from_utf8_lossy(&output.stdout);
    let answer: Value = serde_json::from_str(printed.lines().last().unwrap_or_default())
        .unwrap_or_else(|_| panic!("{printed} {}", String::from_utf8_lossy(&output.stderr)));
    answer["text"].as_str().expect("a text").to_owned()
}

#[tokio::test]
async fn a_trained_job_leaves_the_yard_in_every_form_and_answers_as_it_was_taught() {
    let yard = Yard::with_a_trained_job().await;
    let job = yard.job_id.to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name);
    let before = yard
        .admin
        .get(&format!("/api/jobs/{job}/artifacts"))
        .await
        .ok();
    for (format, weights) in [
        ("merged_safetensors", "f32"),
        ("gguf_merged", "f32"),
        ("gguf_lora", "f16"),
    ] {
        let output = place(format).display().to_string();
        let words = yard
            .command(&[
                "jobs", "export", &job, "--format", format, "--type", weights, "--output", &output,
            ])
            .await;
        assert!(words.contains("is completed"), "{words}");
    }
    assert_eq!(answer(&place("merged_safetensors")), "aye aye");
    let merged = place("gguf_merged").join(format!("job-{job}-f32.gguf"));
    assert_eq!(answer(&merged), "aye aye");
    let lora =
        fs::read(place("gguf_lora").join(format!("job-{job}-lora-f16.gguf"))).expect("it is there");
    assert!(lora.starts_with(b"GGUF"));

    let exports = yard
        .admin
        .get(&format!("/api/jobs/{job}/exports"))
        .await
        .ok();
    let ids: Vec<i64> = exports["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|export| export["id"].as_i64().expect("an id"))
        .collect();
    assert_eq!(ids.len(), 3);
    // The result by itself is what it was, and each export can be fetched later and removed.
    let output = place("result").display().to_string();
    yard.command(&["jobs", "download", &job, "--output", &output])
        .await;
    let fetched = fs::read_dir(place("result")).expect("it is there").count();
    assert_eq!(fetched, before["items"].as_array().expect("a list").len());
    let (export, output) = (ids[0].to_string(), place("again").display().to_string());
    yard.command(&[
        "jobs", "download", &job, "--export", &export, "--output", &output,
    ])
    .await;
    let again = fs::read(place("again").join(format!("job-{job}-lora-f16.gguf")));
    assert_eq!(again.expect("it is there"), lora);
    for id in ids {
        yard.admin
            .delete(&format!("/api/jobs/{job}/exports/{id}"))
            .await
            .ok();
    }
    let after = yard
        .admin
        .get(&format!("/api/jobs/{job}/artifacts"))
        .await
        .ok();
    assert_eq!(after, before);
    assert_eq!(
        yard.answer(&yard.adapter(), json!({"max_tokens": 16}))
            .await["text"],
        "aye aye"
    );
}

#[tokio::test]
async fn an_export_that_waits_for_a_worker_outlives_crashes_of_both_sides() {
    let mut yard = Yard::with_a_trained_job().await;
    let job = yard.job_id;
    let worker = yard.worker.ready(&yard.admin).await;
    let of_worker = |what: &str| format!("/api/workers/{worker}/{what}");
    yard.admin.post(&of_worker("drain"), json!({})).await.ok();
    let body = json!({"format": "gguf_lora"});
    let made = yard
        .admin
        .post(&format!("/api/jobs/{job}/export"), body)
        .await
        .ok();
    assert_eq!(made["status"], "queued");
    yard.platform.crash_and_restart().await;
    yard.worker.crash_and_restart().await;
    let admin = yard.platform.admin().await;
    let path = format!("/api/jobs/{job}/exports/{}", made["id"]);
    assert_eq!(admin.get(&path).await.ok()["status"], "queued");
    admin.post(&of_worker("resume"), json!({})).await.ok();
    let shown = eventually("the export", || async {
        let shown = admin.get(&path).await.ok();
        assert!(shown["status"] != "failed", "{shown}");
        (shown["status"] == "completed").then_some(shown)
    })
    .await;
    let file = shown["files"][0]["path"].as_str().expect("a path");
    let content = admin
        .download(&format!("/api/jobs/{job}/artifacts/{file}"))
        .await;
    assert_eq!(
        content.len() as u64,
        shown["files"][0]["size_bytes"].as_u64().expect("a size")
    );
}
