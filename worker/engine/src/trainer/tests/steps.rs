//! Steps and their figures, and what comes of them.

use safetensors::{Dtype, serialize_to_file, tensor::TensorView};
use trainyard_shared::training::ScheduleKind;

use super::*;

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
        &model.digest().unwrap(),
        &format!("{:.4}", final_loss.unwrap()),
        "\"lora_r\": 4",
    ] {
        assert!(card.contains(part), "{part} is not in the card");
    }
    assert_eq!(started.trainable_parameters, bench.published().len() as u64);
}

#[test]
fn what_is_published_of_all_weights_is_a_model_to_go_on_from() {
    let bench = Bench::new(4);
    let told = bench.run(TrainingConfig {
        use_peft: false,
        epochs: 6,
        batch_size: 4,
        learning_rate: 1e-3,
        ..config()
    });
    let losses = losses(&told.steps);
    assert!(losses[5] < 0.9 * losses[0], "{losses:?}");
    let folder = bench.output.path().join(FINAL);
    Manifest::check(&folder).unwrap();
    let base = ModelFiles::open(bench.model.path()).unwrap();
    let model = ModelFiles::open(&folder).unwrap();
    assert_eq!(model.config, base.config);
    assert!(model.tokenizer().is_ok());
    let started = told.started.unwrap();
    assert_eq!(started.trainable_parameters, base.config.parameter_count());
    assert_eq!(started.total_parameters, started.trainable_parameters);
    let card = std::fs::read_to_string(folder.join("README.md")).unwrap();
    assert!(card.contains("library_name: transformers") && !card.contains("rank"));
    let mut bench = bench;
    bench.model = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, bench.model.path().join(path.file_name().unwrap())).unwrap();
    }
    let again = bench.run(TrainingConfig {
        batch_size: 4,
        ..config()
    });
    assert!(again.steps[0].loss.unwrap() < losses[5]);
}

#[test]
fn g064_a_bad_row_fails_the_run_by_its_line() {
    let mut bench = Bench::new(2);
    bench.rows += "{\"foo\":1}\n";
    let told = bench.run(config());
    assert!(told.outcome.unwrap_err().to_string().contains("line 3"));
}

/// Rewrites the model's weights as BF16, one of them as `value`.
pub(super) fn store_a_value(model: &Path, value: f32) {
    let path = model.join("model.safetensors");
    let file = SafetensorsFile::open(&path).unwrap();
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = file
        .names()
        .map(|name| {
            let mut values = file.tensor(name).unwrap();
            if name == "model.layers.0.mlp.up_proj.weight" {
                values[0] = value;
            }
            let bytes = values
                .iter()
                .flat_map(|x| half::bf16::from_f32(*x).to_le_bytes());
            (
                name.to_owned(),
                file.shape(name).unwrap().to_vec(),
                bytes.collect(),
            )
        })
        .collect();
    drop(file);
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(Dtype::BF16, shape.clone(), bytes).unwrap();
        (name.as_str(), view)
    });
    serialize_to_file(views, None, &path).unwrap();
}

#[test]
fn g060_a_value_beyond_half_precision_trains_in_f32_whatever_precision_is_asked_for() {
    let losses = |mixed_precision, low_memory| {
        let bench = Bench::new(4);
        // Half precision cannot hold it.
        store_a_value(bench.model.path(), 70_000.0);
        let told = bench.run(TrainingConfig {
            mixed_precision,
            low_memory,
            ..config()
        });
        let warned = told.log.iter().any(|line| line.contains("mixed_precision"));
        assert_eq!(warned, mixed_precision != MixedPrecision::F32);
        assert!(bench.published().iter().all(|x| x.is_finite()));
        let losses: Vec<f64> = told.steps.iter().map(|step| step.loss.unwrap()).collect();
        losses
    };
    let expected = losses(MixedPrecision::F32, false);
    assert!(expected.iter().all(|loss| loss.is_finite()));
    for low_memory in [false, true] {
        for precision in [MixedPrecision::Fp16, MixedPrecision::Bf16] {
            assert_eq!(losses(precision, low_memory), expected, "{precision:?}");
        }
    }
}

#[test]
fn g078_a_run_without_a_finite_step_has_diverged_and_publishes_nothing() {
    let bench = Bench::new(2);
    store_a_value(bench.model.path(), f32::NAN);
    let told = bench.run(config());
    assert_eq!((told.steps.len(), told.steps[0].loss), (1, None));
    let error = told.outcome.unwrap_err();
    assert!(
        matches!(error, EngineError::Diverged { step: 1, .. }),
        "{error}"
    );
    assert!(!bench.output.path().join(FINAL).exists());
}

#[test]
fn g078_a_run_that_ends_in_a_skipped_step_completes_with_the_last_finite_loss() {
    let run = |max_steps| {
        let bench = Bench::new(20);
        let told = bench.run(TrainingConfig {
            learning_rate: 1e30,
            lr_scheduler_type: ScheduleKind::Constant,
            warmup_ratio: 0.0,
            max_steps,
            ..config()
        });
        (bench, told)
    };
    let (_, whole) = run(None);
    let first = whole.steps.iter().find(|step| step.skipped).unwrap().step;
    let (bench, told) = run(Some(first));
    let last = told.steps.last().unwrap();
    assert_eq!(
        (last.step, last.skipped, last.grad_norm),
        (first, true, None)
    );
    let mut finite = told.steps.iter().filter(|step| !step.skipped);
    let expected = finite.next_back().unwrap().loss;
    let Ok(TrainingOutcome::Completed {
        final_loss,
        total_steps,
        ..
    }) = told.outcome
    else {
        panic!("{:?}", told.outcome)
    };
    assert_eq!(total_steps, first);
    assert!(final_loss.is_some_and(f64::is_finite));
    if last.loss.is_none() {
        assert_eq!(final_loss, expected);
    }
    assert!(bench.published().iter().all(|x| x.is_finite()));
}

#[test]
fn a_learning_rate_above_one_is_warned_of() {
    for (learning_rate, is_warned_of) in [(1.0, false), (1.5, true)] {
        let told = Bench::new(2).run(TrainingConfig {
            learning_rate,
            ..config()
        });
        let warned = told
            .log
            .iter()
            .any(|line| line.contains("a learning_rate of 1.5 is far above"));
        assert_eq!(warned, is_warned_of, "{learning_rate}");
    }
}

#[test]
fn g086_the_log_says_that_a_model_has_no_template_and_texts_train_without_one() {
    let mut bench = Bench::new(2);
    let chats = bench.run(config());
    let said = |told: &Told| {
        told.log
            .iter()
            .any(|line| line.contains("rendered as ChatML"))
    };
    assert!(chats.outcome.is_ok() && said(&chats), "{:?}", chats.log);
    bench.rows = "{\"text\":\"plain text\"}\n".repeat(2);
    let texts = bench.run(config());
    assert!(texts.outcome.is_ok(), "{:?}", texts.outcome);
    assert_eq!(texts.steps.len(), 1);
}
