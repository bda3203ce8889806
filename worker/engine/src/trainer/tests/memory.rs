//! Runs with less memory than the config asks for.

use super::steps::store_a_value;
use super::*;
use crate::device::LimitedAllocations;
use crate::model::PassSize;

fn run_with(available_bytes: u64, config: TrainingConfig) -> Told {
    let mut bench = Bench::new(8);
    bench.available_bytes = available_bytes;
    bench.run(config)
}

fn settings() -> TrainingConfig {
    TrainingConfig {
        batch_size: 4,
        ..config()
    }
}

/// The least memory, to a KiB, with which micro-batches of so many sequences run.
fn least_for(micro_batch_size: u32, checkpointing: bool) -> u64 {
    let (mut low, mut high) = (128 << 20, 256 << 20);
    while high - low > 1024 {
        let middle = low + (high - low) / 2;
        let fits = fits_into(middle).is_ok_and(|fit| {
            fit.micro_batch_size >= micro_batch_size
                && (checkpointing || !fit.gradient_checkpointing)
        });
        (low, high) = if fits { (low, middle) } else { (middle, high) };
    }
    high
}

fn fits_into(available_bytes: u64) -> Result<Fit, EngineError> {
    let mut bench = Bench::new(8);
    bench.available_bytes = available_bytes;
    let model = ModelFiles::open(bench.model.path()).unwrap();
    let run = bench.training_run(&model, settings(), None);
    let (order, state) = order_and_state(&run);
    fit(&run, &Method::of(&run.config, ""), &order, &state)
}

fn order_and_state(run: &TrainingRun<'_>) -> (Order, TrainerState) {
    let (examples, report) = run
        .rows(Local::now().fixed_offset())
        .read(&|| false, &mut |_, _| {})
        .unwrap();
    let rows = (0..examples.len() as u32).collect();
    let identity = RunIdentity {
        base_model: String::new(),
        dataset_sha256: report.sha256,
        examples: report.examples,
        config: run.config.to_map(),
    };
    let order = Order::new(&examples, rows, &run.config);
    (order, TrainerState::new(Local::now(), identity))
}

#[test]
fn a_batch_that_does_not_fit_is_halved_and_gives_the_same_steps() {
    let expected = Bench::new(8).run(settings());
    for (micro_batch_size, checkpointing, accumulation) in
        [(2, false, 2), (1, false, 4), (1, true, 4)]
    {
        let told = run_with(least_for(micro_batch_size, checkpointing), settings());
        assert!(told.outcome.is_ok(), "{:?}", told.outcome);
        assert_eq!(told.steps.len(), expected.steps.len());
        for (step, expected) in told.steps.iter().zip(&expected.steps) {
            assert_eq!(step.micro_batch_size, micro_batch_size);
            assert_eq!(step.gradient_accumulation_steps, accumulation);
            let (loss, expected) = (step.loss.unwrap(), expected.loss.unwrap());
            assert!(
                (loss / expected - 1.0).abs() < 1e-5,
                "sums in another order"
            );
        }
        let said = told
            .log
            .iter()
            .find(|line| line.contains("to fit into memory"));
        let said = said.expect("it is said in the log");
        assert_eq!(said.contains("gradient checkpointing"), checkpointing);
    }
}

#[test]
fn a_run_that_fits_in_no_way_is_refused_with_the_figures_and_what_would_fit() {
    let told = run_with(1 << 20, settings());
    let Err(error @ EngineError::TooLarge(_)) = told.outcome else {
        panic!("{:?}", told.outcome)
    };
    let text = error.to_string();
    for part in [
        "MiB are needed and 1 MiB are available",
        "for weights",
        "would fit",
    ] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    assert!(told.started.is_none(), "before the model is loaded");
    let nearly = fits_into(least_for(1, true) - (2 << 10))
        .unwrap_err()
        .to_string();
    assert!(nearly.contains("tokens would fit (max_length)"), "{nearly}");
}

#[test]
fn the_order_of_very_many_rows_is_part_of_what_is_needed() {
    const ROWS: usize = 1_000_000;
    let mut bench = Bench::new(1);
    bench.available_bytes = least_for(4, false) + (16 << 20);
    let model = ModelFiles::open(bench.model.path()).unwrap();
    let run = bench.training_run(&model, settings(), None);
    let read = run
        .rows(Local::now().fixed_offset())
        .read(&|| false, &mut |_, _| {});
    let (examples, _) = read.unwrap();
    let (few, state) = order_and_state(&run);
    let many = Order::new(&examples, vec![0; ROWS], &run.config);
    let fit = |order: &Order| fit(&run, &Method::of(&run.config, ""), order, &state);
    assert!(fit(&few).is_ok());
    let error = fit(&many).unwrap_err().to_string();
    assert!(error.contains("46 for the order of rows"), "{error}");
}

#[test]
fn room_is_counted_for_a_base_model_as_it_is_held() {
    let bench = Bench::new(8);
    store_a_value(bench.model.path(), 0.5);
    let model = ModelFiles::open(bench.model.path()).unwrap();
    let bytes = |low_memory| {
        let config = TrainingConfig {
            low_memory,
            ..settings()
        };
        bench
            .training_run(&model, config, None)
            .holding()
            .bytes(&model)
    };
    let (stored, unpacked) = (bytes(true), bytes(false));
    // Its matrices are bf16, its norms are held in f32.
    assert!(
        2 * stored > unpacked && 2 * stored < unpacked + unpacked / 8,
        "{stored} of {unpacked}"
    );
}

#[test]
fn smaller_micro_batches_are_kept_when_the_run_goes_on_with_more_memory() {
    let (whole, mut parts) = (Bench::new(12), Bench::new(12));
    let little = least_for(2, false);
    let small = TrainingConfig {
        batch_size: 2,
        gradient_accumulation_steps: 2,
        ..settings()
    };
    let expected = whole.run(small);
    parts.available_bytes = little;
    let first = parts.run_until(settings(), None, 2);
    assert!(first.steps.iter().all(|step| step.micro_batch_size == 2));
    parts.available_bytes = u64::MAX;
    let second = parts.run_until(settings(), Some(parts.checkpoint(2)), u64::MAX);
    assert_eq!(second.steps[0].micro_batch_size, 2);
    let losses = losses(&[first.steps, second.steps].concat());
    assert_eq!(losses, super::losses(&expected.steps));
    assert_eq!(parts.published(), whole.published());
}

#[test]
fn an_allocation_that_fails_in_a_run_halves_the_micro_batch_and_the_step_is_made_again() {
    let expected = Bench::new(8).run(settings());
    let bench = Bench::new(8);
    let model = ModelFiles::open(bench.model.path()).unwrap();
    let run = bench.training_run(&model, settings(), None);
    let ranks = Method::of(&run.config, "").ranks(&model.config).unwrap();
    let for_two = PassSize {
        tokens: order_and_state(&run).0.most_tokens(2),
        ranks: &ranks,
        dropout: false,
        trains_weights: false,
        gradient_checkpointing: false,
    };
    let told = {
        let _limit = LimitedAllocations::up_to(for_two.bytes(&model.config));
        bench.run(settings())
    };
    assert!(told.outcome.is_ok(), "{:?}", told.outcome);
    let sizes: Vec<u32> = told
        .steps
        .iter()
        .map(|step| step.micro_batch_size)
        .collect();
    assert_eq!(sizes, [2, 2]);
    for (step, expected) in told.steps.iter().zip(&expected.steps) {
        let (loss, expected) = (step.loss.unwrap(), expected.loss.unwrap());
        assert!(
            (loss / expected - 1.0).abs() < 1e-5,
            "sums in another order"
        );
    }
}
