//! Rows kept for evaluation: what is measured, when a run ends early, and which weights it ends with.

use super::*;

/// A rate at which a tiny model first learns and then loses what the kept rows have in common with the others.
fn overfitting() -> TrainingConfig {
    TrainingConfig {
        epochs: 20,
        eval_split: 0.25,
        eval_steps: 2,
        save_steps: 100,
        learning_rate: 3e-2,
        ..config()
    }
}

/// Evaluation losses by step.
fn evaluations(told: &Told) -> Vec<(u64, f64)> {
    let steps = told.steps.iter();
    steps
        .filter_map(|step| Some((step.step, step.evaluation?.loss?)))
        .collect()
}

fn best(found: &[(u64, f64)]) -> (u64, f64) {
    let best = found.iter().min_by(|(_, a), (_, b)| a.total_cmp(b));
    *best.unwrap()
}

#[test]
fn rows_are_kept_for_evaluation_and_measured_every_so_many_steps_and_at_the_end() {
    let told = Bench::new(8).run(TrainingConfig {
        epochs: 1,
        eval_split: 0.25,
        eval_steps: 2,
        save_steps: 2,
        ..config()
    });
    let started = told.started.as_ref().unwrap();
    assert_eq!((started.training_rows, started.evaluation_rows), (6, 2));
    assert_eq!(started.total_steps, 3);
    let found = evaluations(&told);
    assert_eq!(
        found.iter().map(|(step, _)| *step).collect::<Vec<_>>(),
        [2, 3]
    );
    let report = told.steps[1].evaluation.unwrap();
    let perplexity = report.perplexity.unwrap();
    assert!((perplexity - found[0].1.exp()).abs() < 1e-9);
    assert_eq!(told.metrics[0]["eval_loss"], Some(found[0].1));
    assert_eq!(told.metrics[0]["eval_perplexity"], Some(perplexity));
    assert!(
        told.log
            .iter()
            .any(|line| line.starts_with("evaluation after step 2: loss ")),
        "{:?}",
        told.log
    );
}

#[test]
fn a_run_ends_once_evaluations_find_nothing_better_and_keeps_the_best_checkpoint() {
    let bench = Bench::new(12);
    let told = bench.run(TrainingConfig {
        early_stopping_patience: Some(3),
        save_total_limit: 1,
        save_steps: 3,
        ..overfitting()
    });
    let found = evaluations(&told);
    let (best_step, _) = best(&found);
    let last = told.steps.last().unwrap();
    assert_eq!(last.step, best_step + 3 * 2, "three evaluations later");
    assert!(
        told.steps
            .iter()
            .rev()
            .skip(1)
            .all(|step| step.total_steps > last.step)
    );
    assert_eq!(last.total_steps, last.step, "the last step is told as such");
    let Ok(TrainingOutcome::Completed { total_steps, .. }) = told.outcome else {
        panic!("{:?}", told.outcome)
    };
    assert_eq!(total_steps, last.step);
    assert!(told.log.iter().any(|line| line.contains("stopped early")));
    assert!(
        bench.checkpoint(best_step).exists(),
        "kept beside the newest"
    );
    let kept = std::fs::read_dir(bench.output.path().join(CHECKPOINTS)).unwrap();
    assert_eq!(kept.count(), 2);
}

#[test]
fn the_result_has_the_best_weights_where_the_config_asks_for_them() {
    for use_peft in [true, false] {
        let bench = Bench::new(12);
        let told = bench.run(TrainingConfig {
            early_stopping_patience: Some(2),
            load_best_model_at_end: true,
            use_peft,
            learning_rate: if use_peft { 3e-2 } else { 3e-3 },
            ..overfitting()
        });
        let (best_step, loss) = best(&evaluations(&told));
        assert!(best_step < told.steps.last().unwrap().step);
        let saved = weights(&bench.checkpoint(best_step));
        assert_eq!(bench.published(), saved);
        let card = std::fs::read_to_string(bench.output.path().join("final/README.md")).unwrap();
        assert!(card.contains(&format!("{loss:.4} at best, after step {best_step}")));
    }
}

#[test]
fn an_evaluation_that_a_stop_has_cut_off_is_made_up_for() {
    let settings = || TrainingConfig {
        eval_split: 0.25,
        eval_steps: 1,
        early_stopping_patience: Some(1),
        epochs: 4,
        ..config()
    };
    let (whole, parts) = (Bench::new(8), Bench::new(8));
    let expected = whole.run(settings());
    // Asked before each of the rows, behind them, before the step's micro-batch, then within the evaluation after it.
    let asked = AtomicU64::new(0);
    let is_stopped = || asked.fetch_add(1, Ordering::Relaxed) > 8 + 1;
    let first = parts.run_with(settings(), None, &is_stopped);
    assert_eq!(first.steps.len(), 1);
    assert!(evaluations(&first).is_empty());
    let second = parts.run_until(settings(), Some(parts.checkpoint(1)), u64::MAX);
    assert!(
        second
            .log
            .iter()
            .any(|line| line.starts_with("evaluation after step 1: "))
    );
    assert_eq!(evaluations(&second), evaluations(&expected));
    let (again, at_first) = (&second.steps[0], &first.steps[0]);
    assert_eq!(
        (again.step, again.loss, again.grad_norm, again.learning_rate),
        (1, at_first.loss, at_first.grad_norm, at_first.learning_rate)
    );
    assert_eq!(parts.published(), whole.published());
}
