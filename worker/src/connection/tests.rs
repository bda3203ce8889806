mod answers;
mod deliveries;
mod turns;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;
use trainyard_shared::Secret;
use trainyard_shared::ids::{FederatedSessionId, JobId, MessageId};
use trainyard_shared::message::{
    ArtifactFile, FromWorker, JobCompleted, JobCompletedData, JobStarted, JobStartedData,
    TrainingProgress, TrainingProgressData, WorkerRegisterData,
};

use super::fake_platform::{FakePlatform, within};
use super::identity::IdentityFile;
use super::outbox::{JobAttempt, Outbox};
use super::*;
use crate::config::WorkerConfig;
use crate::platform_files::{PlatformFiles, SharedKey};
use crate::tasks::transfers::test_server::{Reply, Request, TestServer};
use crate::tasks::transfers::{Http, RetryPolicy};
use crate::tasks::{Order, TaskCommand};

/// Takes the commands that the connection gives.
struct Tasks(mpsc::UnboundedSender<TaskCommand>);

impl Actor for Tasks {
    type Context = Context<Self>;
}

impl Handler<TaskCommand> for Tasks {
    type Result = ();

    fn handle(&mut self, command: TaskCommand, _: &mut Self::Context) {
        let _ = self.0.send(command);
    }
}

/// A connection on its own, with short timings.
struct Worker {
    connection: Addr<Connection>,
    reports: Reports,
    outbox: Arc<Outbox>,
    commands: mpsc::UnboundedReceiver<TaskCommand>,
}

fn config(platform: &FakePlatform, state: &Path) -> WorkerConfig {
    let mut config = WorkerConfig::new(&platform.url(), state.to_owned()).unwrap();
    config.worker_key = Some(Secret::from("enroll_first"));
    config.heartbeat_interval = Duration::from_millis(100);
    config.metrics_interval = Duration::from_millis(100);
    config.reconnect_delay = Duration::from_millis(20);
    config.longest_reconnect_delay = Duration::from_millis(300);
    config
}

fn start(config: WorkerConfig) -> Worker {
    let files_at = config.platform.to_string();
    start_with_files_at(&files_at, config)
}

/// A connection whose files go to another address than its socket.
fn start_with_files_at(files_at: &str, config: WorkerConfig) -> Worker {
    let state = config.state_dir.clone();
    let outbox = Arc::new(Outbox::open(&state.join("outbox")).unwrap());
    let activity = SharedActivity::default();
    let tokens = WaitingTokens::default();
    let key = SharedKey::default();
    let http = Http::new(RetryPolicy {
        tries: 2,
        first_delay: Duration::from_millis(5),
        longest_delay: Duration::from_millis(5),
    })
    .unwrap();
    let (given, commands) = mpsc::unbounded_channel();
    let connection = Connection::new(Parts {
        identity: IdentityFile::open(&state).unwrap(),
        key: key.clone(),
        hardware: WorkerRegisterData {
            cpu_name: Some("test processor".to_owned()),
            ..WorkerRegisterData::default()
        },
        outbox: outbox.clone(),
        activity: activity.clone(),
        tokens: tokens.clone(),
        files: PlatformFiles::new(http, files_at.parse().unwrap(), key),
        tasks: Tasks(given).start().recipient(),
        tls: Arc::new(crate::tls::client_config()),
        config,
    })
    .start();
    Worker {
        reports: Reports::new(outbox.clone(), activity, tokens, connection.clone()),
        connection,
        outbox,
        commands,
    }
}

async fn started() -> (FakePlatform, TempDir, Worker) {
    let platform = FakePlatform::start().await;
    let state = tempfile::tempdir().unwrap();
    let worker = start(config(&platform, state.path()));
    (platform, state, worker)
}

const JOB: JobAttempt = JobAttempt {
    job_id: JobId(123),
    attempt: Some(1),
};

fn job_started() -> FromWorker {
    FromWorker::JobStarted(JobStarted {
        worker_id: None,
        job_id: JOB.job_id,
        attempt: JOB.attempt,
        message_id: Some(MessageId::random()),
        data: JobStartedData::default(),
    })
}

fn job_completed(files: Vec<ArtifactFile>) -> FromWorker {
    FromWorker::JobCompleted(JobCompleted {
        worker_id: None,
        job_id: JOB.job_id,
        attempt: JOB.attempt,
        message_id: Some(MessageId::random()),
        data: JobCompletedData {
            files,
            ..JobCompletedData::default()
        },
    })
}

fn progress(step: u64) -> FromWorker {
    FromWorker::TrainingProgress(TrainingProgress {
        worker_id: None,
        job_id: JOB.job_id,
        attempt: JOB.attempt,
        data: TrainingProgressData {
            step,
            ..TrainingProgressData::default()
        },
    })
}

#[actix_rt::test]
async fn a_new_worker_enrols_keeps_its_key_and_registers() {
    let (platform, state, _worker) = started().await;
    let mut session = platform.session().await;
    let hello = session.receive("authenticate").await;
    assert_eq!(hello["api_key"], "enroll_first");
    let identity = IdentityFile::open(state.path()).unwrap();
    assert_eq!(
        hello["worker_uuid"],
        identity.identity().worker_uuid.to_string()
    );
    session
        .send(json!({"type": "enrollment_complete", "data": {
            "worker_id": 42, "worker_name": "east-worker-3", "api_key": "wkr_own"}}))
        .await;
    session.authenticated().await;
    let register = session.receive("worker_register").await;
    assert_eq!(register["data"]["cpu_name"], "test processor");
    assert_eq!(register["worker_id"], hello["worker_uuid"]);
    let identity = IdentityFile::open(state.path()).unwrap();
    assert_eq!(identity.identity().api_key, Some(Secret::from("wkr_own")));
    drop(session);

    let mut again = platform.session().await;
    assert_eq!(again.receive("authenticate").await["api_key"], "wkr_own");
}

#[actix_rt::test]
async fn a_registered_worker_beats_and_reports_its_load() {
    let (platform, _state, worker) = started().await;
    let (mut session, _) = platform.registered().await;
    let first = session.next().await.unwrap();
    assert_eq!(
        first["type"], "heartbeat",
        "the first heartbeat follows at once"
    );
    assert_eq!(first["status"], "idle");
    let metrics = session.receive("worker_metrics").await;
    assert!(
        metrics["data"]["ram_total"].as_f64().unwrap() > 0.0,
        "{metrics}"
    );
    session.receive("heartbeat").await;

    worker.reports.change_activity(|activity| {
        activity.job = Some(JOB);
        activity.status_message = Some("Epoch 1/3, step 5/30".to_owned());
    });
    let busy = session.beat_with_job(json!(123)).await;
    assert_eq!(busy["status"], "training");
    let busy = |message: &Value| {
        message["type"] == "worker_metrics" && message["data"]["status"] == "training"
    };
    let metrics = session.receive_where("busy metrics", busy).await;
    assert_eq!(metrics["data"]["status_message"], "Epoch 1/3, step 5/30");
}

#[actix_rt::test]
async fn a_worker_that_shuts_down_says_so_before_the_end_of_its_job() {
    let platform = FakePlatform::start().await;
    let state = tempfile::tempdir().unwrap();
    let mut config = config(&platform, state.path());
    config.heartbeat_interval = Duration::from_secs(3600);
    let worker = start(config);
    let (mut session, _) = platform.registered().await;
    worker
        .reports
        .change_activity(|activity| activity.job = Some(JOB));
    session.beat_with_job(json!(123)).await;
    worker
        .reports
        .change_activity(|activity| activity.shutting_down = true);
    worker.reports.keep_or_send(job_completed(Vec::new()));
    worker
        .reports
        .change_activity(|activity| activity.job = None);
    let told = session
        .receive_where("draining or the end", |message| {
            (message["type"] == "heartbeat" && message["status"] == "draining")
                || message["type"] == "job_completed"
        })
        .await;
    assert_eq!(
        (&told["status"], &told["current_job_id"]),
        (&json!("draining"), &json!(123))
    );
    let end = session.receive("job_completed").await;
    session.ack(&end).await;
    session.send(json!({"type": "ping"})).await;
    let pong = session.receive("pong").await;
    assert_eq!(
        (&pong["status"], &pong["busy"]),
        (&json!("draining"), &json!(true))
    );
}

#[actix_rt::test]
async fn a_ping_is_answered_with_its_id_and_the_current_job() {
    let (platform, _state, worker) = started().await;
    let (mut session, _) = platform.registered().await;
    session.send(json!({"type": "ping", "ping_id": "p1"})).await;
    let idle = session.receive("pong").await;
    assert_eq!(
        (&idle["ping_id"], &idle["busy"]),
        (&json!("p1"), &json!(false))
    );
    assert_eq!(idle["current_job_id"], Value::Null);
    worker
        .reports
        .change_activity(|activity| activity.job = Some(JOB));
    session.send(json!({"type": "ping"})).await;
    let busy = session.receive("pong").await;
    assert_eq!(
        (&busy["busy"], &busy["current_job_id"]),
        (&json!(true), &json!(123))
    );
}

#[actix_rt::test]
async fn g005_after_a_lost_connection_the_worker_registers_again() {
    let (platform, _state, _worker) = started().await;
    for _ in 0..3 {
        let (session, _) = platform.registered().await;
        session.close(1001).await;
    }
    let (mut session, _) = platform.registered().await;
    session.receive("heartbeat").await;
}

/// An identity whose key is `wkr_old`.
fn enrolled_before(state: &Path) {
    let issued = serde_json::from_value(json!({
        "worker_id": 42, "worker_name": "east-worker-3", "api_key": "wkr_old"}));
    IdentityFile::open(state)
        .unwrap()
        .keep_key(issued.unwrap())
        .unwrap();
}

#[actix_rt::test]
async fn g024_another_own_key_in_the_settings_is_tried_first_and_kept_once_accepted() {
    let platform = FakePlatform::start().await;
    let state = tempfile::tempdir().unwrap();
    enrolled_before(state.path());
    let mut config = config(&platform, state.path());
    config.worker_key = Some(Secret::from("wkr_new"));
    let _worker = start(config);
    let kept = || {
        let identity = IdentityFile::open(state.path()).unwrap();
        identity.identity().clone()
    };
    for key in ["wkr_new", "wkr_old"] {
        let mut session = platform.session().await;
        assert_eq!(session.receive("authenticate").await["api_key"], key);
        session
            .send(json!({"type": "auth_failed", "reason": "Invalid API key"}))
            .await;
        session.close(4401).await;
        assert_eq!(kept().api_key, Some(Secret::from("wkr_old")));
    }
    let mut session = platform.session().await;
    let hello = session.receive("authenticate").await;
    assert_eq!(hello["api_key"], "wkr_new");
    session.authenticated().await;
    session.receive("worker_register").await;
    assert_eq!(kept().api_key, Some(Secret::from("wkr_new")));
    assert_eq!(kept().worker_name.as_deref(), Some("east-worker-3"));
    assert_eq!(hello["worker_uuid"], kept().worker_uuid.to_string());
}

#[actix_rt::test]
async fn a_refused_key_is_tried_again_in_turn_with_the_one_from_the_settings() {
    let platform = FakePlatform::start().await;
    let state = tempfile::tempdir().unwrap();
    enrolled_before(state.path());
    let _worker = start(config(&platform, state.path()));
    for key in ["wkr_old", "enroll_first", "wkr_old"] {
        let mut session = platform.session().await;
        assert_eq!(session.receive("authenticate").await["api_key"], key);
        session
            .send(json!({"type": "auth_failed", "reason": "Invalid API key"}))
            .await;
        session.close(4401).await;
    }
}

#[actix_rt::test]
async fn a_deleted_worker_does_not_join_anew_by_itself() {
    let platform = FakePlatform::start().await;
    let state = tempfile::tempdir().unwrap();
    enrolled_before(state.path());
    let _worker = start(config(&platform, state.path()));
    let (session, _) = platform.registered().await;
    session.close(4403).await;
    for _ in 0..3 {
        let mut session = platform.session().await;
        assert_eq!(session.receive("authenticate").await["api_key"], "wkr_old");
        session
            .send(json!({"type": "auth_failed", "reason": "Invalid API key"}))
            .await;
        session.close(4401).await;
    }
}

#[actix_rt::test]
async fn g002_a_replaced_worker_waits_at_least_the_longest_delay() {
    let (platform, _state, _worker) = started().await;
    let (session, _) = platform.registered().await;
    let closed = std::time::Instant::now();
    session.close(4409).await;
    platform.registered().await;
    assert!(
        closed.elapsed() >= Duration::from_millis(300),
        "{:?}",
        closed.elapsed()
    );
}

#[actix_rt::test]
async fn a_new_key_is_stored_and_the_worker_comes_back_with_it_at_once() {
    let platform = FakePlatform::start().await;
    let state = tempfile::tempdir().unwrap();
    let mut config = config(&platform, state.path());
    config.reconnect_delay = Duration::from_secs(3600);
    let _worker = start(config);
    let (mut session, _) = platform.registered().await;
    session
        .send(json!({"type": "enrollment_complete", "data": {
            "worker_id": 42, "worker_name": "east-worker-3", "api_key": "wkr_new"}}))
        .await;
    assert_eq!(session.close_code().await, Some(1000));
    drop(session);
    let mut again = platform.session().await;
    assert_eq!(again.receive("authenticate").await["api_key"], "wkr_new");
}

#[actix_rt::test]
async fn commands_reach_the_tasks() {
    let (platform, _state, mut worker) = started().await;
    let (mut session, _) = platform.registered().await;
    session
        .send(json!({"type": "stop_training", "job_id": 123}))
        .await;
    let command = within("the command", worker.commands.recv()).await;
    assert_eq!(command, Some(TaskCommand::Stop(JobId(123))));
    session
        .send(
            json!({"type": "load_aggregated_weights", "session_id": 4, "data": {
            "round": 2, "download_url": "https://x/y", "sha256": "0", "size_bytes": 1}}),
        )
        .await;
    let command = within("the command", worker.commands.recv()).await;
    let Some(TaskCommand::Federated(session_id, Order::Load(load))) = command else {
        panic!("not an order of a session: {command:?}");
    };
    assert_eq!((session_id, load.data.round), (FederatedSessionId(4), 2));
}

#[actix_rt::test]
async fn g036_a_frame_that_is_no_message_gets_one_error_and_the_session_goes_on() {
    let (platform, _state, _worker) = started().await;
    let (mut session, _) = platform.registered().await;
    session
        .send_text("{\"type\": \"stop_training\", \"job_id\": NaN}")
        .await;
    let error = session.receive("error").await;
    assert_eq!(error["code"], "invalid_message");
    session.send(json!({"type": "party"})).await;
    assert_eq!(session.receive("error").await["code"], "unknown_type");
    session.send(json!({"type": "ping"})).await;
    session.receive("pong").await;
}

#[actix_rt::test]
async fn g031_a_frame_over_the_limit_ends_the_link_and_the_worker_comes_back() {
    let (platform, _state, _worker) = started().await;
    let (mut session, _) = platform.registered().await;
    let nearly = json!({"type": "ping", "padding": "x".repeat(1024 * 1024 - 40)}).to_string();
    assert!(nearly.len() <= 1024 * 1024);
    session.send_text(&nearly).await;
    session.receive("pong").await;
    // The worker may close while this is still being written.
    let _ = session.send_text(&"x".repeat(1024 * 1024 + 1)).await;
    platform.registered().await;
}

#[actix_rt::test]
async fn a_platform_that_never_answers_authenticate_is_left() {
    let platform = FakePlatform::start().await;
    let state = tempfile::tempdir().unwrap();
    let mut config = config(&platform, state.path());
    config.link.authenticate = Duration::from_millis(100);
    config.link.ping_after = Duration::from_millis(100);
    let _worker = start(config);
    let _silent = platform.session().await;
    platform.registered().await;
}

#[actix_rt::test]
async fn a_dead_link_is_noticed_and_a_quiet_one_that_answers_pings_is_kept() {
    let platform = FakePlatform::start().await;
    let state = tempfile::tempdir().unwrap();
    let mut config = config(&platform, state.path());
    config.link.ping_after = Duration::from_millis(50);
    config.link.dead_after = Duration::from_millis(400);
    let _worker = start(config);
    let (mut session, _) = platform.registered().await;
    // Reading answers the worker's pings; nothing else is said for three times the limit.
    for _ in 0..12 {
        session.receive("heartbeat").await;
    }
    // From here on nothing is read, so nothing is answered: as good as an unplugged cable.
    platform.registered().await;
}

#[actix_rt::test]
async fn g033_an_endless_answer_to_the_upgrade_is_cut_off() {
    use tokio::io::AsyncWriteExt;
    let (platform, _state, _worker) = started().await;
    let mut stream = platform.raw().await;
    let mut sent = 0_usize;
    let head = b"HTTP/1.1 101 Switching Protocols\r\nX-Filler: ";
    stream.write_all(head).await.unwrap();
    let filler = vec![b'a'; 4096];
    while within("a refusal", stream.write_all(&filler)).await.is_ok() {
        sent += filler.len();
        assert!(sent < 20 * 1024 * 1024, "the worker reads an endless head");
    }
    platform.registered().await;
}

#[actix_rt::test]
async fn leaving_closes_with_1001_and_does_not_come_back() {
    let (platform, _state, worker) = started().await;
    let (mut session, _) = platform.registered().await;
    let leaving = worker.connection.send(Leave);
    let (code, left) = futures_util::future::join(session.close_code(), leaving).await;
    assert_eq!(code, Some(1001));
    left.unwrap();
}
