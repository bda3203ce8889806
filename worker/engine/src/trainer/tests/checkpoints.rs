//! Checkpoints of runs, going on from them, and runs that fail.

use std::collections::BTreeSet;

use super::*;
use crate::checkpoint::newest_complete;

/// A run that is stopped at several steps and goes on each time gives the same losses and the same published files
/// as one that was never stopped.
fn goes_on_bit_for_bit(settings: &dyn Fn() -> TrainingConfig, stops: &[u64]) {
    let (whole, parts) = (Bench::new(8), Bench::new(8));
    let expected = whole.run(settings());
    assert!(expected.outcome.is_ok(), "{:?}", expected.outcome);
    let mut from = None;
    let mut found = Vec::new();
    for stop in stops.iter().copied().chain([u64::MAX]) {
        let begin = found.len() as u64;
        let told = parts.run_until(settings(), from.take(), stop);
        assert_eq!(told.started.unwrap().resumed_from_step, begin);
        assert!(
            told.log.iter().all(|line| !line.contains("from now on")),
            "{:?}",
            told.log
        );
        found.extend(figures(&told.steps));
        match told.outcome.unwrap() {
            TrainingOutcome::Stopped { step, checkpoint } => {
                assert_eq!(step, stop);
                from = checkpoint;
            }
            TrainingOutcome::Completed { .. } => assert_eq!(stop, u64::MAX),
        }
    }
    assert_eq!(found, figures(&expected.steps));
    assert_eq!(parts.published(), whole.published());
}

/// What must be the same, of every step.
fn figures(steps: &[StepReport]) -> Vec<(u64, u64, [Option<f64>; 5])> {
    let figures = |step: &StepReport| {
        let figures = [
            step.loss,
            step.loss_ema,
            step.grad_norm,
            Some(step.learning_rate),
            step.evaluation.and_then(|found| found.loss),
        ];
        (step.step, step.epoch, figures)
    };
    steps.iter().map(figures).collect()
}

/// Promise P9.
#[test]
fn g075_a_run_that_was_stopped_goes_on_bit_for_bit_in_every_mode() {
    let base = || TrainingConfig {
        epochs: 2,
        save_steps: 3,
        weight_decay: 0.01,
        ..config()
    };
    let modes: [(&str, &dyn Fn() -> TrainingConfig); 9] = [
        ("as it is", &base),
        ("dropout", &|| TrainingConfig {
            lora_dropout: 0.1,
            ..base()
        }),
        ("packing", &|| TrainingConfig {
            packing: true,
            batch_size: 1,
            epochs: 4,
            ..base()
        }),
        ("accumulation", &|| TrainingConfig {
            batch_size: 1,
            gradient_accumulation_steps: 2,
            ..base()
        }),
        ("gradient checkpointing", &|| TrainingConfig {
            gradient_checkpointing: true,
            lora_dropout: 0.1,
            ..base()
        }),
        ("a base model in four bits", &|| TrainingConfig {
            load_in_4bit: true,
            ..base()
        }),
        ("all weights", &|| TrainingConfig {
            use_peft: false,
            learning_rate: 1e-3,
            ..base()
        }),
        ("modules to save", &|| TrainingConfig {
            modules_to_save: vec!["lm_head".into(), "norm".into()],
            ..base()
        }),
        ("evaluation, early stopping, best weights", &|| {
            TrainingConfig {
                eval_split: 0.2,
                eval_steps: 2,
                epochs: 8,
                learning_rate: 3e-2,
                early_stopping_patience: Some(4),
                load_best_model_at_end: true,
                ..base()
            }
        }),
    ];
    for (mode, settings) in modes {
        println!("{mode}");
        goes_on_bit_for_bit(settings, &[1, 3, 5]);
    }
}

#[test]
fn a_quantised_base_model_learns_and_the_log_says_how_it_is_held() {
    for (config, held) in [
        (
            TrainingConfig {
                load_in_4bit: true,
                ..config()
            },
            "matrices in Q4_1",
        ),
        (
            TrainingConfig {
                load_in_8bit: true,
                ..config()
            },
            "matrices in Q8_0",
        ),
        (config(), "matrices in F32"),
    ] {
        let settings = TrainingConfig {
            epochs: 6,
            learning_rate: 1e-2,
            ..config
        };
        let told = Bench::new(12).run(settings);
        assert!(told.log.iter().any(|line| line.contains(held)), "{held}");
        let losses: Vec<f64> = told.steps.iter().filter_map(|step| step.loss).collect();
        let (first, last) = (losses[0], losses[losses.len() - 1]);
        assert!(last < 0.9 * first, "{held}: {first} to {last}");
    }
}

#[test]
fn a_run_stopped_before_its_first_step_leaves_no_checkpoint() {
    let bench = Bench::new(4);
    let told = bench.run_until(config(), None, 0);
    assert!(matches!(
        told.outcome,
        Ok(TrainingOutcome::Stopped {
            step: 0,
            checkpoint: None
        })
    ));
    assert!(!bench.output.path().join(CHECKPOINTS).exists());
}

#[test]
fn a_run_that_goes_on_and_is_stopped_at_once_is_where_it_was() {
    let bench = Bench::new(6);
    bench.run_until(config(), None, 1);
    let told = bench.run_until(config(), Some(bench.checkpoint(1)), 0);
    let Ok(TrainingOutcome::Stopped {
        step: 1,
        checkpoint,
    }) = told.outcome
    else {
        panic!("{:?}", told.outcome)
    };
    assert_eq!(checkpoint, Some(bench.checkpoint(1)));
}

#[test]
fn a_finished_run_that_is_gone_on_from_is_published_again_without_a_step() {
    let bench = Bench::new(4);
    let told = bench.run_until(config(), None, 2);
    assert!(
        matches!(&told.outcome, Ok(TrainingOutcome::Completed { .. })),
        "the stop came after the last step"
    );
    let settings = || TrainingConfig {
        save_steps: 1,
        ..config()
    };
    let bench = Bench::new(4);
    bench.run(settings());
    let again = bench.run_until(
        TrainingConfig {
            max_steps: Some(1),
            ..settings()
        },
        Some(bench.checkpoint(1)),
        u64::MAX,
    );
    assert!(again.steps.is_empty());
    assert!(matches!(
        again.outcome,
        Ok(TrainingOutcome::Completed { total_steps: 1, .. })
    ));
}

#[test]
fn only_so_many_checkpoints_are_kept_and_none_is_saved_at_the_very_end() {
    let bench = Bench::new(12);
    let told = bench.run(TrainingConfig {
        save_steps: 1,
        save_total_limit: 2,
        ..config()
    });
    assert_eq!(told.saved, [1, 2, 3, 4, 5]);
    let left: BTreeSet<String> = std::fs::read_dir(bench.output.path().join(CHECKPOINTS))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(left, ["step-4".to_owned(), "step-5".to_owned()].into());
}

#[test]
fn g077_a_run_that_diverges_ends_with_its_last_finite_checkpoint_and_publishes_nothing() {
    let bench = Bench::new(20);
    let told = bench.run(TrainingConfig {
        learning_rate: 1e30,
        warmup_ratio: 0.0,
        save_steps: 1,
        ..config()
    });
    let Err(EngineError::Diverged { step, .. }) = told.outcome else {
        panic!("{:?}", told.outcome)
    };
    let skipped: Vec<&StepReport> = told.steps.iter().filter(|step| step.skipped).collect();
    assert_eq!((skipped.len(), told.steps.last().unwrap().step), (3, step));
    assert!(
        skipped.iter().all(|step| step.grad_norm.is_none()),
        "null, not NaN"
    );
    assert!(!bench.output.path().join(FINAL).exists());
    let newest = newest_complete(&bench.output.path().join(CHECKPOINTS))
        .unwrap()
        .folder
        .unwrap();
    assert!(weights(&newest).iter().all(|x| x.is_finite()));
    assert!(told.log.iter().any(|line| line.contains("are not finite")));
}

#[test]
fn g078_weights_that_are_not_finite_at_the_end_fail_the_run() {
    for use_peft in [true, false] {
        let bench = Bench::new(2);
        let told = bench.run(TrainingConfig {
            learning_rate: 1e39,
            use_peft,
            ..config()
        });
        assert_eq!(told.steps.len(), 1);
        assert!(!told.steps[0].skipped, "its loss and gradients were finite");
        assert!(matches!(
            told.outcome,
            Err(EngineError::Diverged { step: 1, .. })
        ));
        assert!(!bench.output.path().join(FINAL).exists());
    }
}

#[test]
fn a_checkpoint_of_another_run_is_refused_and_changed_settings_are_named() {
    let mut bench = Bench::new(6);
    bench.run_until(config(), None, 1);
    let from = || Some(bench.checkpoint(1));
    let refused = |told: Told, why: &str| {
        let error = told.outcome.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    refused(
        bench.run_until(
            TrainingConfig {
                lora_r: 2,
                ..config()
            },
            from(),
            9,
        ),
        "other layers, ranks, scales or modules_to_save",
    );
    let told = bench.run_until(
        TrainingConfig {
            learning_rate: 1e-3,
            ..config()
        },
        from(),
        9,
    );
    assert!(told.outcome.is_ok());
    assert!(
        told.log
            .contains(&"learning_rate was 0.01 up to step 1 and is 0.001 from now on".to_owned()),
        "{:?}",
        told.log
    );
    let checkpoint = from();
    bench.rows += "{\"text\":\"one more\"}\n";
    refused(bench.run_until(config(), checkpoint, 9), "another data set");
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error_that_names_it() {
    let bench = Bench::new(6);
    std::fs::write(bench.output.path().join(CHECKPOINTS), b"a file in the way").unwrap();
    let told = bench.run(TrainingConfig {
        save_steps: 1,
        ..config()
    });
    let Err(EngineError::Io { action, path, .. }) = told.outcome else {
        panic!("{:?}", told.outcome)
    };
    assert_eq!(
        (action, path),
        ("write", bench.output.path().join(CHECKPOINTS))
    );
}
