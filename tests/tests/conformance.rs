//! `trainyard conformance platform`: ours passes, and a platform with one fault fails just the rules that say so.

use std::collections::{BTreeSet, HashSet};
use std::sync::Mutex;

use futures_util::future::join_all;
use serde_json::{Value, json};
use trainyard_tests::judge::{self, Judged};
use trainyard_tests::proxy::{Fate, Fault, Proxy};
use trainyard_tests::{Client, Platform};

/// Rules that only `--timing` looks at.
const SLOW: &[&str] = &[
    "auth.deadline",
    "liveness.heartbeats_suffice",
    "liveness.ping",
    "liveness.pong_saves",
    "liveness.offline",
    "liveness.not_early",
    "liveness.job_fails",
    "liveness.training_failed",
    "liveness.one_failure",
    "reconnect.job_goes_on",
    "dashboard.token_expires",
];

const SHORT_TIMINGS: &[&str] = &[
    "--timing",
    "--heartbeat-timeout",
    "4",
    "--check-interval",
    "0.5",
    "--ping-grace",
    "2",
];

/// A platform on which nothing is lost while a machine is busy.
async fn patient_platform() -> Platform {
    Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "60")]).await
}

async fn judge_platform(url: &str, key: &str, more: &[&str]) -> Judged {
    let mut arguments = vec![
        "platform",
        url,
        "--enrollment-key",
        key,
        "--email",
        "admin@example.org",
        "--quiet-for",
        "0.4",
    ];
    arguments.extend(more);
    let password = ("TRAINYARD_PASSWORD", "correct horse battery staple");
    judge::judged(judge::start(&arguments, &[password])).await
}

async fn key(admin: &Client) -> String {
    admin.enrollment_key(json!({})).await
}

#[tokio::test]
async fn our_platform_conforms_in_every_rule() {
    let platform = patient_platform().await;
    let admin = platform.admin().await;
    let judged = judge_platform(
        &platform.url(),
        &key(&admin).await,
        &["--answer-within", "60"],
    )
    .await;
    judged.assert_conforms(SLOW);

    // It leaves nothing behind.
    for list in ["/api/jobs", "/api/workers", "/api/datasets"] {
        let left = admin.get(list).await.ok();
        assert_eq!(left["items"], json!([]), "{list}");
    }
}

#[tokio::test]
async fn our_platform_keeps_its_timings() {
    let platform = Platform::start_with(&[
        ("WORKER_HEARTBEAT_TIMEOUT", "4"),
        ("WORKER_CHECK_INTERVAL", "0.5"),
        ("WORKER_PING_GRACE", "2"),
    ])
    .await;
    let admin = platform.admin().await;
    let more = [SHORT_TIMINGS, &["--answer-within", "60"]].concat();
    let judged = judge_platform(&platform.url(), &key(&admin).await, &more).await;
    judged.assert_conforms(&[]);
}

#[tokio::test]
async fn without_login_and_key_there_is_nothing_to_conform_to() {
    let platform = patient_platform().await;
    let arguments = ["platform", &platform.url(), "--quiet-for", "0.1"];
    let home = tempfile::tempdir().unwrap();
    let environment = [("HOME", home.path().to_str().unwrap())];
    let judged = judge::judged(judge::start(&arguments, &environment)).await;
    let skipped = judged.with_result("skip");
    assert!(skipped.contains("enroll.complete"), "{}", judged.faults());
    assert!(
        skipped.contains("start_training.sent"),
        "{}",
        judged.faults()
    );
    assert_eq!(judged.with_result("fail"), BTreeSet::new());
}

/// A fault and the rules that it breaks.
type Variant = (Fault, &'static [&'static str]);

/// Judges a platform with each fault, all at the same time. Each has a platform of its own: chats go to any worker.
async fn expect_exactly(variants: Vec<Variant>) {
    let judging = variants.into_iter().map(async |(fault, broken)| {
        let platform = patient_platform().await;
        let key = key(&platform.admin().await).await;
        let proxy = Proxy::start(platform.address(), fault).await;
        let more = ["--answer-within", "25"];
        let judged = judge_platform(&proxy.url(), &key, &more).await;
        assert_eq!(
            judged.with_result("fail"),
            broken.iter().copied().collect(),
            "{}",
            judged.faults()
        );
        let required = judged.report["required"]["failed"].as_u64();
        let exit_code = if required == Some(0) { 0 } else { 1 };
        assert_eq!(judged.exit_code, Some(exit_code), "{broken:?}");
    });
    join_all(judging).await;
}

/// Puts a value in the place of a field that may be nested.
fn put(pointer: &'static str, value: Value) -> impl Fn(&mut Value) -> Fate + Send + Sync {
    move |message| {
        if let Some(field) = message.pointer_mut(pointer) {
            *field = value.clone();
        }
        Fate::Pass
    }
}

/// Removes a field of `data`.
fn without(field: &'static str) -> impl Fn(&mut Value) -> Fate + Send + Sync {
    move |message| {
        if let Some(data) = message["data"].as_object_mut() {
            data.remove(field);
        }
        Fate::Pass
    }
}

fn lost(_: &mut Value) -> Fate {
    Fate::Drop
}

#[tokio::test]
async fn faults_of_letting_workers_in_are_found() {
    let variants = vec![
        (
            Fault::in_message("enrollment_complete", without("worker_name")),
            &["enroll.worker_name"][..],
        ),
        (
            Fault::in_message("authenticated", put("/status", json!("fine"))),
            &["auth.status"],
        ),
        (
            Fault::in_message("authenticated", put("/worker_id", json!("east-worker-3"))),
            &["auth.worker_id"],
        ),
        (
            Fault::in_message("auth_failed", put("/reason", Value::Null)),
            &["auth.reason"],
        ),
        (Fault::in_close(4401, 1000), &["auth.close_code"]),
        (Fault::in_close(4409, 1000), &["auth.takeover"]),
        (
            Fault::in_any_message(put("/timestamp", json!("this morning"))),
            &["format.timestamps"],
        ),
        (
            Fault::in_message("job_update", |_| Fate::AfterGarbage),
            &["format.json_with_type"],
        ),
    ];
    expect_exactly(variants).await;
}

#[tokio::test]
async fn faults_of_start_training_are_found() {
    let variants = vec![
        (
            Fault::in_message("start_training", put("/data/dataset/format", json!("csv"))),
            &["start_training.dataset"][..],
        ),
        (
            Fault::in_message("start_training", |message| {
                let url = message["data"]["dataset"]["download_url"].take();
                let url = url
                    .as_str()
                    .expect("an address")
                    .replace("signature=", "signature=0");
                message["data"]["dataset"]["download_url"] = json!(url);
                Fate::Pass
            }),
            &["start_training.download"],
        ),
        (
            Fault::in_message("start_training", without("base_model")),
            &["start_training.base_model"],
        ),
        (
            Fault::in_message("start_training", put("/data/config/lora_r", json!("16"))),
            &["start_training.config"],
        ),
        (
            Fault::in_message("start_training", without("output_path")),
            &["start_training.output_path"],
        ),
        (
            Fault::in_message("stop_training", lost),
            &["stop_training.sent"],
        ),
        (Fault::in_message("ack", lost), &["ack.sent"]),
        (
            {
                let seen = Mutex::new(HashSet::new());
                Fault::in_message("ack", move |message| {
                    match seen
                        .lock()
                        .unwrap()
                        .insert(message["message_id"].to_string())
                    {
                        true => Fate::Pass,
                        false => Fate::Drop,
                    }
                })
            },
            &["ack.repeated"],
        ),
    ];
    expect_exactly(variants).await;
}

#[tokio::test]
async fn faults_of_what_dashboards_are_told_are_found() {
    let variants = vec![
        (
            Fault::in_message("job_update", without("loss")),
            &["job_update.progress"][..],
        ),
        (
            Fault::in_message("job_update", without("gpu_utilization")),
            &["job_update.gpu"],
        ),
        (
            Fault::in_message("training_failed", without("last_checkpoint_step")),
            &["job_failed.last_checkpoint"],
        ),
        (
            Fault::in_message("training_failed", put("/data/error", json!("failed"))),
            &["job_failed.training_failed"],
        ),
        (
            Fault::in_message("worker_update", without("cpu_utilization")),
            &["metrics.worker_update"],
        ),
        (
            Fault::in_message("worker_update", without("current_job_id")),
            &["metrics.current_job"],
        ),
        (
            Fault::in_message("worker_update", put("/data/status", json!("offline"))),
            &["register.status"],
        ),
        (
            Fault::in_message("worker_update", put("/worker_id", json!(42))),
            &[
                "register.worker_update",
                "metrics.worker_update",
                "metrics.current_job",
            ],
        ),
    ];
    expect_exactly(variants).await;
}

#[tokio::test]
async fn faults_of_chats_and_evaluations_are_found() {
    let variants = vec![
        (
            Fault::in_message("start_inference", without("max_tokens")),
            &["start_inference.fields"][..],
        ),
        (
            Fault::in_message("inference_tokens", lost),
            &["inference.tokens_forwarded"],
        ),
        (
            Fault::in_message("inference_completed", lost),
            &["inference.end_forwarded"],
        ),
        (
            Fault::in_message("stop_inference", lost),
            &["stop_inference.sent"],
        ),
        (
            Fault::in_message("start_evaluation", without("metrics")),
            &["start_evaluation.fields"],
        ),
        (
            Fault::in_message("evaluation_completed", lost),
            &["evaluation.end_forwarded"],
        ),
    ];
    expect_exactly(variants).await;
}

#[tokio::test]
async fn faults_of_letting_dashboards_in_are_found() {
    let variants = vec![
        (
            Fault::in_upgrade(|refused| refused.target.contains("token=xxx")),
            &["dashboard.wrong_token", "dashboard.refused_401"][..],
        ),
        (
            Fault::in_upgrade(|refused| {
                refused.target.contains("/ws/user/") && !refused.target.contains("token=")
            }),
            &["dashboard.no_token"],
        ),
        (
            Fault::in_upgrade(|refused| refused.opened_before),
            &["dashboard.token_once"],
        ),
        (
            Fault::in_upgrade(|refused| refused.target.contains("/ws/user/2?")),
            &["dashboard.token_bound"],
        ),
        (
            Fault::deaf_to("unsubscribe_job"),
            &["dashboard.unsubscribe"],
        ),
        (
            Fault::in_message("error", |message| {
                if message["code"] == "not_found" {
                    message["code"] = json!("forbidden");
                }
                Fate::Pass
            }),
            &["dashboard.unknown_job"],
        ),
    ];
    expect_exactly(variants).await;
}

#[tokio::test]
async fn faults_of_answers_to_faults_are_found() {
    let variants = vec![
        (
            Fault::in_message("error", |message| {
                if message["code"] == "unknown_type" {
                    message["code"] = json!("no_such_type");
                }
                Fate::Pass
            }),
            &[
                "dashboard.unknown_type",
                "fault.unknown_type",
                "frame.fragments",
            ][..],
        ),
        (Fault::in_close(4400, 1008), &["fault.too_many"]),
        (Fault::in_close(1009, 1002), &["frame.oversize"]),
        (Fault::in_close(1003, 1002), &["frame.binary"]),
        (Fault::in_close(1007, 1002), &["frame.utf8"]),
    ];
    expect_exactly(variants).await;
}
