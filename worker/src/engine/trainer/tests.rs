//! Whole runs on a tiny model: steps, figures, checkpoints, going on, and how runs end.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::engine::checkpoint::{Manifest, newest_complete};
use crate::engine::golden;
use crate::engine::weights::SafetensorsFile;

/// A model, a data set and a place for results.
struct Bench {
    model: TempDir,
    output: TempDir,
    rows: String,
}

/// What a run told.
struct Told {
    outcome: Result<TrainingOutcome, EngineError>,
    steps: Vec<StepReport>,
    saved: Vec<u64>,
    started: Option<Started>,
    log: Vec<String>,
}

impl Bench {
    /// Chats of different lengths.
    fn new(rows: usize) -> Self {
        let mut text = String::new();
        for row in 0..rows {
            let (question, answer) = (
                "what ".repeat(1 + row % 3),
                format!("answer {row}{}", "!".repeat(row % 5)),
            );
            let chat = json!({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]});
            writeln!(text, "{chat}").unwrap();
        }
        Self {
            model: golden::model_with_tokenizer("tied"),
            output: tempfile::tempdir().unwrap(),
            rows: text,
        }
    }

    fn run(&self, config: TrainingConfig) -> Told {
        self.run_until(config, None, u64::MAX)
    }

    /// Runs, from a checkpoint where one is given, and stops once `last_step` is done.
    fn run_until(
        &self,
        config: TrainingConfig,
        resume_from: Option<PathBuf>,
        last_step: u64,
    ) -> Told {
        let dataset = self.output.path().join("rows.jsonl");
        std::fs::write(&dataset, &self.rows).unwrap();
        let model = ModelFiles::open(self.model.path()).unwrap();
        let run = TrainingRun {
            model: &model,
            base_model: "test/tiny".into(),
            dataset,
            max_bad_rows: 0,
            config,
            output_dir: self.output.path().to_owned(),
            resume_from,
        };
        let done = Cell::new(0);
        let mut told = Told {
            outcome: Ok(TrainingOutcome::Stopped {
                step: 0,
                checkpoint: None,
            }),
            steps: vec![],
            saved: vec![],
            started: None,
            log: vec![],
        };
        let outcome = train(
            &run,
            &|| done.get() >= last_step,
            &mut |event| match event {
                TrainingEvent::Started(started) => told.started = Some(started),
                TrainingEvent::Step(step) => {
                    done.set(step.step);
                    told.steps.push(step);
                }
                TrainingEvent::CheckpointSaved(saved) => told.saved.push(saved.step),
                TrainingEvent::Log { line, .. } => told.log.push(line),
            },
        );
        told.outcome = outcome;
        told
    }

    fn checkpoint(&self, step: u64) -> PathBuf {
        self.output
            .path()
            .join(CHECKPOINTS)
            .join(format!("step-{step}"))
    }

    /// The weights of the published adapter, in the order of their names.
    fn published(&self) -> Vec<f32> {
        weights(&self.output.path().join(FINAL))
    }
}

fn weights(folder: &Path) -> Vec<f32> {
    let file = SafetensorsFile::open(&folder.join(adapter::ADAPTER_WEIGHTS)).unwrap();
    let names: Vec<String> = file.names().map(str::to_owned).collect();
    names
        .iter()
        .flat_map(|name| file.tensor(name).unwrap())
        .collect()
}

fn config() -> TrainingConfig {
    TrainingConfig {
        packing: false,
        epochs: 1,
        batch_size: 2,
        learning_rate: 1e-2,
        lora_r: 4,
        lora_alpha: 8.0,
        max_length: 128,
        seed: 7,
        ..TrainingConfig::default()
    }
}

fn losses(steps: &[StepReport]) -> Vec<f64> {
    steps.iter().map(|step| step.loss.unwrap()).collect()
}

#[test]
fn g070_one_row_trains_one_step_an_epoch_and_changes_the_weights() {
    let bench = Bench::new(1);
    let told = bench.run(TrainingConfig {
        batch_size: 4,
        epochs: 2,
        ..config()
    });
    assert_eq!(
        (told.started.unwrap().total_steps, told.steps.len()),
        (2, 2)
    );
    assert!(bench.published().iter().any(|x| *x != 0.0));
    let b = SafetensorsFile::open(
        &bench
            .output
            .path()
            .join(FINAL)
            .join(adapter::ADAPTER_WEIGHTS),
    )
    .unwrap();
    let changed = b
        .names()
        .filter(|name| name.contains("lora_B"))
        .any(|name| b.tensor(name).unwrap().iter().any(|x| *x != 0.0));
    assert!(changed, "B is no longer zero");
}

#[test]
fn g073_the_last_step_is_the_total_whatever_the_accumulation() {
    for (gradient_accumulation_steps, total) in [(1, 9), (2, 6)] {
        let told = Bench::new(10).run(TrainingConfig {
            batch_size: 4,
            epochs: 3,
            gradient_accumulation_steps,
            ..config()
        });
        assert_eq!(told.started.unwrap().total_steps, total);
        let steps: Vec<u64> = told.steps.iter().map(|step| step.step).collect();
        assert_eq!(steps, (1..=total).collect::<Vec<_>>());
        assert_eq!(told.steps.last().unwrap().epoch, 3);
        assert!(
            matches!(told.outcome.unwrap(), TrainingOutcome::Completed { total_steps, .. } if total_steps == total)
        );
    }
}

#[test]
fn max_steps_ends_a_run_in_the_middle_of_an_epoch_and_goes_beyond_the_epochs() {
    for max_steps in [2, 8] {
        let told = Bench::new(10).run(TrainingConfig {
            max_steps: Some(max_steps),
            ..config()
        });
        assert_eq!(told.steps.last().unwrap().step, max_steps);
    }
}

#[test]
fn g071_accumulated_micro_batches_equal_one_batch() {
    let runs: Vec<(Vec<f64>, Vec<f32>)> = [(4, 1), (2, 2), (1, 4)]
        .into_iter()
        .map(|(batch_size, gradient_accumulation_steps)| {
            let bench = Bench::new(8);
            let told = bench.run(TrainingConfig {
                batch_size,
                gradient_accumulation_steps,
                ..config()
            });
            (losses(&told.steps), bench.published())
        })
        .collect();
    for (losses, weights) in &runs[1..] {
        for (loss, expected) in losses.iter().zip(&runs[0].0) {
            assert!(
                (loss / expected - 1.0).abs() < 1e-5,
                "loss {loss} is not {expected}"
            );
        }
        for (weight, expected) in weights.iter().zip(&runs[0].1) {
            assert!(
                (weight - expected).abs() < 1e-4,
                "weight {weight} is not {expected}"
            );
        }
    }
}

#[test]
fn packing_changes_how_many_rows_a_step_sees_and_nothing_else() {
    let together = Bench::new(6);
    let packed = together.run(TrainingConfig {
        packing: true,
        batch_size: 8,
        max_length: 512,
        ..config()
    });
    let alone = Bench::new(6);
    let unpacked = alone.run(TrainingConfig {
        batch_size: 6,
        ..config()
    });
    assert_eq!((packed.steps.len(), unpacked.steps.len()), (1, 1));
    assert!(
        (packed.steps[0].loss.unwrap() - unpacked.steps[0].loss.unwrap()).abs() < 1e-5,
        "rows do not see each other"
    );
}

#[test]
fn the_loss_falls_and_every_step_tells_its_figures() {
    let told = Bench::new(4).run(TrainingConfig {
        epochs: 20,
        batch_size: 4,
        ..config()
    });
    let losses = losses(&told.steps);
    assert!(losses[19] < 0.6 * losses[0], "{losses:?}");
    let last = told.steps.last().unwrap();
    assert_eq!(last.eta_seconds, Some(0.0));
    assert!((last.perplexity.unwrap() - last.loss.unwrap().exp()).abs() < 1e-9);
    assert!(
        last.loss_ema.unwrap() > last.loss.unwrap(),
        "the smoothed loss follows behind"
    );
    assert!(
        last.grad_norm.unwrap() > 0.0
            && last.throughput.unwrap() > 0.0
            && last.token_throughput.unwrap() > 0.0
    );
    let rates: Vec<f64> = told.steps[..2]
        .iter()
        .map(|step| step.learning_rate)
        .collect();
    assert_eq!(
        rates,
        [1e-2, 1e-2],
        "one step of warm-up, then the decay begins at the full rate"
    );
    assert!(
        told.log
            .iter()
            .any(|line| line.starts_with("step 10 of 20: loss ")),
        "{:?}",
        told.log
    );
    assert!(
        told.log.iter().any(|line| line.contains("ChatML")),
        "g086: the default template is announced"
    );
}

/// Promise P9.
#[test]
fn g075_a_run_that_was_stopped_goes_on_bit_for_bit() {
    let settings = || TrainingConfig {
        epochs: 3,
        lora_dropout: 0.1,
        save_steps: 5,
        weight_decay: 0.01,
        ..config()
    };
    let (whole, parts) = (Bench::new(12), Bench::new(12));
    let expected = whole.run(settings());
    let first = parts.run_until(settings(), None, 8);
    let Ok(TrainingOutcome::Stopped {
        step: 8,
        checkpoint: Some(checkpoint),
    }) = first.outcome
    else {
        panic!("{:?}", first.outcome)
    };
    assert_eq!(
        (checkpoint.as_path(), first.saved),
        (parts.checkpoint(8).as_path(), vec![5, 8])
    );
    let second = parts.run_until(settings(), Some(checkpoint), u64::MAX);
    assert_eq!(second.started.unwrap().resumed_from_step, 8);
    let figures = |steps: &[StepReport]| -> Vec<_> {
        steps
            .iter()
            .map(|step| {
                (
                    step.step,
                    step.epoch,
                    step.loss,
                    step.loss_ema,
                    step.grad_norm,
                    step.learning_rate,
                )
            })
            .collect()
    };
    assert_eq!(figures(&first.steps), figures(&expected.steps[..8]));
    assert_eq!(figures(&second.steps), figures(&expected.steps[8..]));
    assert_eq!(parts.published(), whole.published());
    assert!(
        second.log.iter().all(|line| !line.contains("from now on")),
        "{:?}",
        second.log
    );
}

/// Promise P9.
#[test]
fn the_same_seed_gives_the_same_run_and_another_one_another() {
    let run = |seed| {
        losses(
            &Bench::new(6)
                .run(TrainingConfig {
                    seed,
                    lora_dropout: 0.2,
                    ..config()
                })
                .steps,
        )
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
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
fn g069_a_data_set_with_nothing_to_learn_fails_before_the_model_is_loaded() {
    let mut bench = Bench::new(1);
    bench.rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}\n".into();
    let told = bench.run(config());
    let Err(EngineError::InvalidData(message)) = told.outcome else {
        panic!("{:?}", told.outcome)
    };
    assert!(message.contains("no trainable tokens"), "{message}");
    assert!(told.started.is_none());
}

#[test]
fn a_target_that_matches_nothing_fails_before_the_model_is_loaded() {
    let target_modules = trainyard_shared::training::TargetModules::Names(vec!["FAKE".into()]);
    let told = Bench::new(1).run(TrainingConfig {
        target_modules,
        ..config()
    });
    assert!(matches!(
        told.outcome,
        Err(EngineError::InvalidSetting {
            field: "target_modules",
            ..
        })
    ));
    assert!(told.started.is_none());
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
        "other layers, ranks or scales",
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

#[test]
fn what_is_published_is_a_peft_adapter_with_its_card() {
    let bench = Bench::new(4);
    let told = bench.run(config());
    let Ok(TrainingOutcome::Completed {
        folder, final_loss, ..
    }) = told.outcome
    else {
        panic!("{:?}", told.outcome)
    };
    assert_eq!(folder, bench.output.path().join(FINAL));
    Manifest::check(&folder).unwrap();
    let model = ModelFiles::open(bench.model.path()).unwrap();
    let (_, adapter_config) = adapter::load(&folder, &model.config).unwrap();
    assert_eq!(
        (
            adapter_config.r,
            adapter_config.base_model_name_or_path.as_deref()
        ),
        (4, Some("test/tiny"))
    );
    let card = std::fs::read_to_string(folder.join("README.md")).unwrap();
    let started = told.started.unwrap();
    for part in [
        "base_model: \"test/tiny\"",
        &started.dataset.sha256,
        &model.digest(),
        &format!("{:.4}", final_loss.unwrap()),
        "\"lora_r\": 4",
    ] {
        assert!(card.contains(part), "{part} is not in the card");
    }
    assert_eq!(started.trainable_parameters, bench.published().len() as u64);
}

#[test]
fn g064_a_bad_row_fails_the_run_by_its_line() {
    let mut bench = Bench::new(2);
    bench.rows += "{\"foo\":1}\n";
    let told = bench.run(config());
    assert!(told.outcome.unwrap_err().to_string().contains("line 3"));
}
