//! `trainyard conformance worker`: ours passes, a worker written from the source document passes, and one with a
//! fault fails just the rules that say so.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use trainyard_tests::faulty_worker::{self, Fault, FaultyWorker};
use trainyard_tests::judge::{self, Judged};
use trainyard_tests::model::TINY_MODEL_ID;
use trainyard_tests::process::Process;
use trainyard_tests::{TinyModel, Worker};

/// Rules that only `--timing` looks at.
const SLOW: &[&str] = &[
    "heartbeat.interval",
    "heartbeat.while_training",
    "metrics.interval",
    "reconnect.delay",
    "reconnect.doubles",
    "reconnect.resets",
];

/// Starts the judge; also the address and the key for the worker.
async fn start_judge(more: &[&str]) -> (Process, String, String) {
    let arguments = [&["worker", "--model", TINY_MODEL_ID], more].concat();
    let mut judge = judge::start(&arguments, &[]);
    let (url, key) = judge
        .line("how to start the worker", |line| {
            let url = line.split_once("PLATFORM_URL=")?.1.split(' ').next()?;
            let key = line.split_once("WORKER_KEY=")?.1.split(' ').next()?;
            Some((url.to_owned(), key.to_owned()))
        })
        .await;
    (judge, url, key)
}

/// The options that say what a worker is set to, in seconds.
fn timings(heartbeat: f64, metrics: f64, reconnect: f64, longest: f64) -> Vec<String> {
    [
        ("--heartbeat-interval", heartbeat),
        ("--metrics-interval", metrics),
        ("--reconnect-delay", reconnect),
        ("--longest-reconnect-delay", longest),
    ]
    .iter()
    .flat_map(|(name, seconds)| [(*name).to_owned(), seconds.to_string()])
    .collect()
}

fn as_arguments(options: &[String]) -> Vec<&str> {
    options.iter().map(String::as_str).collect()
}

#[tokio::test]
async fn our_worker_conforms_in_every_rule() {
    let models = TinyModel::create();
    // As `Worker` sets it; machines that run other tests too may be late by much.
    let options = timings(0.3, 0.3, 0.2, 60.0);
    let more = [
        &as_arguments(&options)[..],
        &["--timing", "--tolerance", "10", "--answer-within", "60"],
    ]
    .concat();
    let (judge, url, key) = start_judge(&more).await;
    let _worker = Worker::start_towards(&url, &models, &key);
    let judged = judge::judged(judge).await;
    judged.assert_conforms(&[]);
}

#[tokio::test]
async fn without_a_worker_nothing_conforms() {
    let (judge, _, _) = start_judge(&["--connect-within", "0.2"]).await;
    let judged = judge::judged(judge).await;
    assert_eq!(
        judged.with_result("fail"),
        BTreeSet::new(),
        "{}",
        judged.faults()
    );
    assert_eq!(judged.with_result("pass"), BTreeSet::new());
    assert_eq!(judged.exit_code, Some(1));
}

/// Judges a worker with that fault.
async fn judge_faulty(fault: Fault, more: &[&str]) -> Judged {
    let seconds = |span: std::time::Duration| span.as_secs_f64();
    let options = timings(
        seconds(faulty_worker::HEARTBEAT_INTERVAL),
        seconds(faulty_worker::METRICS_INTERVAL),
        seconds(faulty_worker::RECONNECT_DELAY),
        seconds(faulty_worker::LONGEST_RECONNECT_DELAY),
    );
    let fixed = ["--answer-within", "10", "--train-within", "30"];
    let (judge, url, key) =
        start_judge(&[&as_arguments(&options)[..], &fixed, more].concat()).await;
    let worker = tokio::spawn(FaultyWorker::new(&url, &key, fault).run());
    let judged = judge::judged(judge).await;
    worker.abort();
    judged
}

async fn expect_exactly(variants: &[(Fault, &[&str])], more: &[&str]) {
    let judging = variants.iter().map(async |(fault, broken)| {
        let judged = judge_faulty(*fault, more).await;
        assert_eq!(
            judged.with_result("fail"),
            broken.iter().copied().collect(),
            "{fault:?}\n{}",
            judged.faults()
        );
        let required = judged.report["required"]["failed"].as_u64();
        let exit_code = if required == Some(0) { 0 } else { 1 };
        assert_eq!(judged.exit_code, Some(exit_code), "{fault:?}");
    });
    join_all(judging).await;
}

#[tokio::test]
async fn a_worker_written_from_the_source_document_conforms() {
    let judged = judge_faulty(Fault::None, &[]).await;
    judged.assert_conforms(SLOW);
}

#[tokio::test]
async fn faults_of_joining_and_of_liveness_are_found() {
    let variants: &[(Fault, &[&str])] = &[
        (Fault::ForgetsKey, &["auth.own_key"]),
        (Fault::RegistersEarly, &["register.after_auth"]),
        (Fault::HeartbeatWithoutStatus, &["heartbeat.fields"]),
        (Fault::NoPong, &["pong.sent"]),
        (Fault::NeverBusy, &["pong.training"]),
        (Fault::UnknownTypeCloses, &["fault.unknown_type"]),
        (Fault::MalformedCloses, &["fault.malformed"]),
        (Fault::Garbage, &["format.json_with_type"]),
        (Fault::RegistersOnce, &["reconnect.registers"]),
        (Fault::DropsJobOnCut, &["reconnect.job_goes_on"]),
    ];
    expect_exactly(variants, &[]).await;
}

#[tokio::test]
async fn faults_of_training_are_found() {
    let variants: &[(Fault, &[&str])] = &[
        (Fault::IgnoresData, &["training.fetches_data"]),
        (Fault::NoJobStarted, &["training.started"]),
        (Fault::SkipsSteps, &["training.every_step"]),
        (Fault::OtherNameForLoss, &["training.progress"]),
        (Fault::NoCheckpoints, &["training.checkpoint"]),
        (
            Fault::CompletedWithoutPrefix,
            &["training.completed_fields"],
        ),
        (Fault::CheckpointAfterEnd, &["training.order"]),
        (Fault::StartsTwice, &["training.started_once"]),
        (Fault::StopsWithoutCheckpoint, &["stop.checkpoint"]),
        (Fault::BusyAfterStop, &["stop.idle"]),
        (Fault::IgnoresBadStart, &["failure.bad_start"]),
    ];
    expect_exactly(variants, &[]).await;
}

#[tokio::test]
async fn faults_of_chats_and_evaluations_are_found() {
    let variants: &[(Fault, &[&str])] = &[
        (Fault::OneBatch, &["inference.batches"]),
        (
            Fault::CompletedWithoutMetrics,
            &["inference.completed_fields"],
        ),
        (Fault::TokensAfterEnd, &["inference.order"]),
        (Fault::OtherText, &["inference.text"]),
        (Fault::IgnoresStop, &["inference.stop"]),
        (Fault::IgnoresBadChat, &["inference.failed"]),
        (Fault::NoPerplexity, &["evaluation.completed"]),
        (Fault::IgnoresBadEvaluation, &["evaluation.failed"]),
    ];
    expect_exactly(variants, &[]).await;
}

#[tokio::test]
async fn faults_of_timings_are_found() {
    let variants: &[(Fault, &[&str])] = &[
        (Fault::None, &[]),
        (Fault::BusyHeart, &["heartbeat.while_training"]),
        (Fault::RareMetrics, &["metrics.interval"]),
        (
            Fault::NoDelay,
            &["reconnect.delay", "reconnect.doubles", "reconnect.resets"],
        ),
        (Fault::SameDelay, &["reconnect.doubles"]),
    ];
    expect_exactly(variants, &["--timing", "--tolerance", "4"]).await;
}
