//! Which checkpoints are kept.

use super::*;

fn checkpoint_with_files(step: u64) -> Report {
    evaluated_checkpoint(step, None)
}

fn evaluated_checkpoint(step: u64, eval_loss: Option<f64>) -> Report {
    let eval_loss = eval_loss.map(|loss| ("eval_loss".to_owned(), Some(loss)));
    Report::CheckpointSaved(CheckpointSavedData {
        step,
        epoch: None,
        path: format!("checkpoints/job-7/step-{step}/"),
        metrics: eval_loss.into_iter().collect(),
        files: vec![ArtifactFile {
            key: format!("checkpoints/job-7/step-{step}/x"),
            size_bytes: 1,
            sha256: "0".repeat(64),
        }],
    })
}

#[test]
fn only_the_newest_checkpoints_are_kept_and_the_one_that_is_gone_on_from() {
    let mut run = Run::running(0);
    run.job.save_total_limit = 2;
    for step in [100, 200, 300] {
        run.says(A, checkpoint_with_files(step));
    }
    let steps = |run: &Run| -> Vec<u64> { run.job.checkpoints.keys().map(|key| key.1).collect() };
    assert_eq!(steps(&run), [200, 300]);
    let late = run.says(A, checkpoint_with_files(150));
    assert!(matches!(late, Answer::Ignored(_)));
    assert_eq!(steps(&run), [200, 300]);

    run.event(Event::WorkerLost(A));
    run.event(Event::ResumeAsked);
    run.event(Event::Assign(B));
    run.says(B, Report::Started(JobStartedData::default()));
    for step in [400, 500, 600] {
        run.says(B, checkpoint_with_files(step));
    }
    assert_eq!(
        steps(&run),
        [300, 500, 600],
        "300 is what attempt 2 goes on from"
    );
}

#[test]
fn the_checkpoint_with_the_lowest_evaluation_loss_is_kept_beside_the_newest() {
    let mut run = Run::running(0);
    run.job.save_total_limit = 1;
    let steps = |run: &Run| -> Vec<u64> { run.job.checkpoints.keys().map(|key| key.1).collect() };
    for (step, eval_loss, kept) in [
        (100, 2.0, vec![100]),
        (200, 1.0, vec![200]),
        (300, 1.5, vec![200, 300]),
        (400, 1.0, vec![200, 400]),
        (500, 0.5, vec![500]),
    ] {
        run.says(A, evaluated_checkpoint(step, Some(eval_loss)));
        assert_eq!(steps(&run), kept);
    }
    run.says(A, checkpoint_with_files(600));
    assert_eq!(steps(&run), [500, 600]);
}

#[test]
fn a_checkpoint_without_files_does_not_push_out_one_with_files() {
    let mut run = Run::running(0);
    run.job.save_total_limit = 1;
    run.says(A, checkpoint_with_files(100));
    for step in [200, 300] {
        run.says(
            A,
            Report::CheckpointSaved(CheckpointSavedData {
                step,
                epoch: None,
                path: "x".to_owned(),
                metrics: Default::default(),
                files: Vec::new(),
            }),
        );
    }
    assert_eq!(run.job.resumable_checkpoint(), Some((1, 100)));
}
