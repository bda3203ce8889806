use std::collections::BTreeMap;

use trainyard_shared::message::{
    CheckpointSaved, CheckpointSavedData, FederatedUpdate, FederatedUpdateData, JobCompleted,
    JobCompletedData, JobFailed, JobFailedData, JobStarted, JobStartedData,
};

use super::*;

fn started(job: i64) -> FromWorker {
    FromWorker::JobStarted(JobStarted {
        worker_id: None,
        job_id: JobId(job),
        attempt: Some(1),
        message_id: Some(MessageId::random()),
        data: JobStartedData::default(),
    })
}

fn completed(job: i64) -> FromWorker {
    FromWorker::JobCompleted(JobCompleted {
        worker_id: None,
        job_id: JobId(job),
        attempt: Some(1),
        message_id: Some(MessageId::random()),
        data: JobCompletedData {
            final_loss: Some(0.25),
            ..JobCompletedData::default()
        },
    })
}

fn failed(job: i64) -> FromWorker {
    FromWorker::JobFailed(JobFailed {
        worker_id: None,
        job_id: JobId(job),
        attempt: Some(1),
        message_id: Some(MessageId::random()),
        data: JobFailedData {
            error: "no space".to_owned(),
            step: None,
            last_checkpoint: None,
            failure_kind: None,
        },
    })
}

fn checkpoint(step: u64) -> FromWorker {
    FromWorker::CheckpointSaved(CheckpointSaved {
        worker_id: None,
        job_id: JobId(1),
        attempt: Some(1),
        message_id: Some(MessageId::random()),
        data: CheckpointSavedData {
            step,
            epoch: None,
            path: format!("checkpoints/job-1/step-{step}/"),
            metrics: BTreeMap::new(),
            files: Vec::new(),
        },
    })
}

fn masked(session: i64, attempt: u64) -> FromWorker {
    FromWorker::FederatedUpdate(FederatedUpdate {
        worker_id: None,
        session_id: FederatedSessionId(session),
        message_id: Some(MessageId::random()),
        data: FederatedUpdateData {
            round: 1,
            num_examples: 4,
            steps: 5,
            loss: None,
            key: "key".to_owned(),
            sha256: "0".repeat(64),
            size_bytes: 8,
            attempt: Some(attempt),
        },
    })
}

fn artifact(content: &[u8]) -> ArtifactFile {
    ArtifactFile {
        key: "models/job-1/final/adapter_model.safetensors".to_owned(),
        size_bytes: content.len() as u64,
        sha256: "0".repeat(64),
    }
}

fn all(outbox: &Outbox) -> Vec<Entry> {
    let mut place = None;
    std::iter::from_fn(|| {
        let entry = outbox.next_after(place)?;
        place = Some(entry.place);
        Some(entry)
    })
    .collect()
}

#[test]
fn g012_messages_come_back_in_order_after_a_restart_with_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("outbox");
    let result = folder.path().join("adapter");
    fs::write(&result, b"weights").unwrap();

    let outbox = Outbox::open(&dir).unwrap();
    outbox.push(started(1), Vec::new()).unwrap();
    outbox
        .push(completed(1), vec![(artifact(b"weights"), result.clone())])
        .unwrap();
    let before = all(&outbox);
    drop(outbox);
    fs::remove_file(&result).unwrap();

    let again = Outbox::open(&dir).unwrap();
    let after = all(&again);
    assert_eq!(after, before);
    assert_eq!(fs::read(&after[1].files[0].path).unwrap(), b"weights");
    assert_eq!(again.undelivered_end(), Some((after[1].place, JobId(1))));
}

#[test]
fn an_acknowledged_message_and_its_files_are_gone_for_good() {
    let folder = tempfile::tempdir().unwrap();
    let result = folder.path().join("adapter");
    fs::write(&result, b"weights").unwrap();
    let dir = folder.path().join("outbox");
    let outbox = Outbox::open(&dir).unwrap();
    let message = completed(1);
    let id = message.message_id().unwrap();
    outbox
        .push(message, vec![(artifact(b"weights"), result)])
        .unwrap();
    assert!(outbox.remove(id));
    assert!(!outbox.remove(id), "a second ack finds nothing");
    assert!(Outbox::open(&dir).unwrap().is_empty());
    let first = outbox.push(started(2), Vec::new()).unwrap();
    assert!(
        outbox.next_after(Some(first)).is_none(),
        "no place is given twice"
    );
    outbox.remove(all(&outbox)[0].message.message_id().unwrap());
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn what_a_crash_leaves_half_made_is_swept_away() {
    let folder = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(folder.path()).unwrap();
    outbox.push(started(1), Vec::new()).unwrap();
    // Killed after the files were linked, before the message was written:
    fs::create_dir(folder.path().join("000000000002.files")).unwrap();
    fs::write(folder.path().join("000000000002.files/0"), b"weights").unwrap();
    // Killed while the message was written aside:
    fs::write(folder.path().join(".abc.tmp"), b"{\"frame\":\"{").unwrap();
    let again = Outbox::open(folder.path()).unwrap();
    assert_eq!(all(&again), all(&outbox));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_damaged_file_is_set_aside_and_the_others_are_delivered() {
    let folder = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(folder.path()).unwrap();
    outbox.push(started(1), Vec::new()).unwrap();
    outbox.push(completed(1), Vec::new()).unwrap();
    fs::write(folder.path().join("000000000001.json"), b"{\"frame\":\"{").unwrap();
    let again = Outbox::open(folder.path()).unwrap();
    assert_eq!(all(&again), all(&outbox)[1..]);
    assert!(folder.path().join("000000000001.json.damaged").exists());
}

#[test]
fn a_message_that_cannot_be_delivered_is_replaced_in_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(folder.path()).unwrap();
    let place = outbox.push(completed(1), Vec::new()).unwrap();
    outbox.push(started(2), Vec::new()).unwrap();
    outbox.replace(place, failed(1)).unwrap();
    let kinds: Vec<&str> = all(&Outbox::open(folder.path()).unwrap())
        .iter()
        .map(|entry| entry.message.wire_type())
        .collect();
    assert_eq!(kinds, ["job_failed", "job_started"]);
}

#[test]
fn a_masked_result_is_not_kept_waiting_by_those_of_older_attempts() {
    let folder = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(&folder.path().join("outbox")).unwrap();
    for (session, attempt) in [(1, 7), (2, 3), (1, 8), (1, 9)] {
        outbox.push(masked(session, attempt), Vec::new()).unwrap();
    }
    let attempts: Vec<_> = all(&outbox)
        .iter()
        .map(|entry| match &entry.message {
            FromWorker::FederatedUpdate(update) => (update.session_id.get(), update.data.attempt),
            other => panic!("{other:?}"),
        })
        .collect();
    // The first one may be on its way already.
    assert_eq!(attempts, [(1, Some(7)), (2, Some(3)), (1, Some(9))]);
}

#[test]
fn a_long_outage_keeps_only_the_newest_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(folder.path()).unwrap();
    for step in 1..=6 {
        outbox.push(checkpoint(step), Vec::new()).unwrap();
    }
    let steps: Vec<u64> = all(&Outbox::open(folder.path()).unwrap())
        .iter()
        .map(|entry| match &entry.message {
            FromWorker::CheckpointSaved(saved) => saved.data.step,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(steps, [1, 5, 6]);
}
