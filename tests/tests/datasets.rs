//! Data sets through the upload and through a job (given cases G062 to G070).

use bytes::Bytes;
use futures_util::stream;
use serde_json::{Value, json};
use trainyard_tests::model::TINY_MODEL_ID;
use trainyard_tests::scripted_worker::job_with_status;
use trainyard_tests::{Client, Platform, TinyModel, Worker};

/// Uploads lines that must be refused, and returns the report's problems.
async fn problems(admin: &Client, lines: impl Into<reqwest::Body>) -> Vec<Value> {
    let error = admin.upload("name=bad", lines).await.refused(422);
    error["details"]["problems"]
        .as_array()
        .expect("problems")
        .clone()
}

async fn dataset_count(admin: &Client) -> usize {
    let list = admin.get("/api/datasets").await.ok();
    list["items"].as_array().expect("a list").len()
}

#[tokio::test]
async fn g062_byte_order_mark_hides_no_row() {
    let platform = Platform::start().await;
    let admin = platform.admin().await;
    let file = "\u{feff}{\"text\":\"a\"}\n{\"text\":\"b\"}\n";
    let report = admin.upload("name=bom", file).await.ok();
    assert_eq!(report["rows"], 2);
    assert_eq!(report["accepted"], true);
}

#[tokio::test]
async fn g063_blank_lines_and_carriage_returns_are_no_rows_and_no_text() {
    let platform = Platform::start().await;
    let admin = platform.admin().await;
    let file = "{\"text\":\"a\"}\r\n\r\n  \t\r\n{\"text\":\"b\"}";
    let report = admin.upload("name=blank", file).await.ok();
    assert_eq!(report["rows"], 2, "{report}");
    let id = report["id"].as_i64().expect("an id");
    let preview = admin.get(&format!("/api/datasets/{id}/preview")).await.ok();
    assert!(!preview.to_string().contains("\\r"), "{preview}");
}

#[tokio::test]
async fn g064_invalid_byte_names_its_line_and_may_be_skipped_when_that_is_asked_for() {
    let platform = Platform::start().await;
    let admin = platform.admin().await;
    let file: Vec<u8> = [
        "{\"text\":\"a\"}\n{\"text\":\"b\"}\n{\"text\":\"".as_bytes(),
        &[0xc3, 0x28],
        "\"}\n{\"text\":\"d\"}\n{\"text\":\"e\"}\n".as_bytes(),
    ]
    .concat();
    let problems = problems(&admin, file.clone()).await;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0]["line"], 3);
    assert!(
        problems[0]["message"].as_str().unwrap().contains("UTF-8"),
        "{problems:?}"
    );
    assert_eq!(dataset_count(&admin).await, 0, "nothing is stored");

    let report = admin.upload("name=skip&max_bad_rows=1", file).await.ok();
    assert_eq!(report["rows"], 4, "{report}");
    assert_eq!(report["problems"][0]["line"], 3, "{report}");
}

#[tokio::test]
async fn g065_long_line_is_taken_and_an_endless_one_is_refused_in_bounded_memory() {
    let platform = Platform::start().await;
    let admin = platform.admin().await;
    let long = json!({"text": "x".repeat(10 << 20)});
    let file = format!("{{\"text\":\"a\"}}\n{long}\n{{\"text\":\"b\"}}\n{{\"text\":\"c\"}}\n");
    let report = admin.upload("name=long", file).await.ok();
    assert_eq!(report["rows"], 4);

    // 1 GiB without a line's end, made as it is sent.
    let piece = Bytes::from(vec![b'y'; 1 << 20]);
    let endless = stream::iter((0..1024).map(move |_| Ok::<_, std::io::Error>(piece.clone())));
    let sent = admin
        .request(
            reqwest::Method::POST,
            "/api/datasets?name=endless&format=jsonl",
        )
        .body(reqwest::Body::wrap_stream(endless))
        .send()
        .await;
    // The platform may answer and close before the whole has been sent; a client then sees either.
    if let Ok(response) = sent {
        assert!(
            [413, 422].contains(&response.status().as_u16()),
            "{}",
            response.status()
        );
        let text = response.text().await.unwrap_or_default();
        assert!(text.contains("line"), "{text}");
    }
    assert_eq!(dataset_count(&admin).await, 1);
    let peak = platform.process().peak_memory_mib();
    assert!(peak < 200, "the platform's memory rose to {peak} MiB");
}

#[tokio::test]
async fn g066_known_row_shapes_are_told_apart_row_by_row_and_others_named() {
    let platform = Platform::start().await;
    let admin = platform.admin().await;
    let known = concat!(
        r#"{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}"#,
        "\n",
        r#"{"instruction":"i","input":"","output":"o"}"#,
        "\n",
        r#"{"prompt":"p","completion":"c"}"#,
        "\n",
        r#"{"text":"t"}"#,
        "\n",
        r#"{"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}]}"#,
        "\n",
    );
    let report = admin.upload("name=mixed", known).await.ok();
    assert_eq!(report["rows"], 5);
    for shape in [
        "messages",
        "instruction",
        "prompt_completion",
        "text",
        "conversations",
    ] {
        assert_eq!(report["row_shapes"][shape], 1, "{shape}: {report}");
    }

    let problems = problems(&admin, format!("{known}{{\"foo\":1}}\n")).await;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0]["line"], 6);
    assert!(
        problems[0]["message"].as_str().unwrap().contains("foo"),
        "{problems:?}"
    );
}

#[tokio::test]
async fn g067_empty_and_null_structures_are_errors_of_their_line() {
    let platform = Platform::start().await;
    let admin = platform.admin().await;
    let bad = [
        r#"{"messages":null}"#,
        r#"{"messages":[]}"#,
        r#"{"messages":[{"role":"user"}]}"#,
        r#"{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null}]}"#,
        r#"{"instruction":"x","output":5}"#,
        r#"[1]"#,
        r#""text""#,
        r#"{"text":"a""#,
    ];
    let problems = problems(&admin, bad.join("\n")).await;
    let lines: Vec<u64> = problems
        .iter()
        .filter_map(|problem| problem["line"].as_u64())
        .collect();
    assert_eq!(
        lines,
        (1..=bad.len() as u64).collect::<Vec<_>>(),
        "{problems:?}"
    );
    for problem in &problems {
        assert!(!problem["message"].as_str().expect("why").is_empty());
    }
}

#[tokio::test]
async fn g068_lone_surrogate_is_an_error_of_its_line_and_the_pair_one_letter() {
    let platform = Platform::start().await;
    let admin = platform.admin().await;
    let file = "{\"text\":\"a \\ud83d\\ude0a b\"}\n{\"text\":\"a \\ud83d b\"}\n";
    let problems = problems(&admin, file).await;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0]["line"], 2);
}

async fn with_worker() -> (Platform, TinyModel, Worker, Client) {
    let platform = Platform::start().await;
    let admin = platform.admin().await;
    let models = TinyModel::create();
    let key = admin.enrollment_key(json!({"max_uses": 1})).await;
    let worker = Worker::start(&platform, &models, &key);
    worker.ready(&admin).await;
    (platform, models, worker, admin)
}

fn job_on(dataset_id: i64) -> Value {
    json!({
        "dataset_id": dataset_id,
        "base_model": {"huggingface_id": TINY_MODEL_ID},
        "config": {"epochs": 2, "batch_size": 4, "packing": false, "learning_rate": 0.01}
    })
}

#[tokio::test]
async fn g069_rows_without_anything_to_learn_are_dropped_and_counted_and_none_left_is_a_failure() {
    let (_platform, _models, _worker, admin) = with_worker().await;
    let user_only = r#"{"messages":[{"role":"user","content":"hi"}]}"#;
    let whole =
        r#"{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}]}"#;

    let dataset_id = admin
        .dataset("some", &format!("{user_only}\n{whole}\n"))
        .await;
    let job_id = admin.job(job_on(dataset_id)).await;
    job_with_status(&admin, job_id, "completed").await;
    let logs = admin.get(&format!("/api/jobs/{job_id}/logs")).await.ok();
    assert!(
        logs.to_string().contains("dropped"),
        "the dropped row is told: {logs}"
    );

    let dataset_id = admin.dataset("none", &format!("{user_only}\n")).await;
    let job_id = admin.job(job_on(dataset_id)).await;
    let job = job_with_status(&admin, job_id, "failed").await;
    assert_eq!(job["failure_kind"], "bad_data", "{job}");
    assert!(
        job["error"]
            .as_str()
            .unwrap()
            .contains("no trainable tokens"),
        "{job}"
    );
}

#[tokio::test]
async fn g070_data_smaller_than_a_batch_is_still_trained() {
    let (_platform, _models, _worker, admin) = with_worker().await;
    let row =
        r#"{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}]}"#;
    let dataset_id = admin.dataset("one", row).await;
    let job_id = admin.job(job_on(dataset_id)).await;
    let job = job_with_status(&admin, job_id, "completed").await;
    assert_eq!(job["progress"]["total_steps"], 2, "{job}");
    let path = format!("/api/jobs/{job_id}/artifacts/adapter_model.safetensors");
    let bytes = admin.download(&path).await;
    let adapter = safetensors::SafeTensors::deserialize(&bytes).expect("a whole file");
    let (_, b) = adapter
        .iter()
        .find(|(name, _)| name.contains("lora_B"))
        .expect("an adapter has a B");
    assert!(
        b.data().iter().any(|byte| *byte != 0),
        "the weights did not change"
    );
}

#[tokio::test]
async fn every_format_is_taken_in_and_trained_on() {
    let (_platform, _models, _worker, admin) = with_worker().await;
    let golden = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/golden/parquet/text_zstd.parquet"
    );
    for (query, file, rows) in [
        (
            "name=a&format=json",
            br#"[{"text":"abc"}, {"text":"def"}]"#.to_vec(),
            2,
        ),
        ("name=a.csv", b"id,text\n1,abc\n2,\"d\ne\"\n".to_vec(), 2),
        ("name=a.txt", b"abc\r\n\r\ndef\r\n".to_vec(), 2),
        (
            "name=a.parquet&max_bad_rows=1",
            std::fs::read(golden).expect("a golden file"),
            3,
        ),
    ] {
        let made = admin.upload(query, file).await.ok();
        let job_id = admin.job(job_on(made["id"].as_i64().expect("an id"))).await;
        job_with_status(&admin, job_id, "completed").await;
        let logs = admin.get(&format!("/api/jobs/{job_id}/logs")).await.ok();
        let told = format!("training on {rows} rows");
        assert!(logs.to_string().contains(&told), "{query}: {logs}");
    }
}
