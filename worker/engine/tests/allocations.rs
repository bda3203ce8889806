//! A warm step, of training and of generation, allocates nothing.
//!
//! A file of its own with one test, because the count is of the whole process.

use std::path::Path;
use std::sync::Arc;

use peak_alloc::PeakAlloc;
use trainyard_engine::adapter;
use trainyard_engine::device::{run, set_threads};
use trainyard_engine::model::{
    Batch, CacheRoom, Context, Decoder, Llama, LoadedAdapter, Masks, TrainModel,
};
use trainyard_engine::optimizer::Optimizer;
use trainyard_engine::weights::ModelFiles;
use trainyard_shared::training::TrainingConfig;

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

/// The most that was allocated at once during some work beyond what was there before.
fn allocated_bytes(work: impl FnOnce()) -> usize {
    let before = ALLOCATED.current_usage();
    ALLOCATED.reset_peak_usage();
    work();
    ALLOCATED.peak_usage() - before
}

#[test]
fn a_warm_step_of_training_or_generation_allocates_nothing() {
    // One thread, which is warm once it has done everything; others might get their first task of a kind later.
    set_threads(1).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tied");
    let files = ModelFiles::open(&folder).unwrap();
    let model = Arc::new(Llama::load(&files).unwrap());
    let (pairs, _) = adapter::load(&folder.join("adapter"), model.config()).unwrap();
    let ids: Vec<u32> = (0..100).map(|i| i * 7 % 128).collect();
    let targets: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    let mut batch = Batch::default();
    batch.push_sequence(&ids[..60], &targets[..60]);
    batch.push_sequence(&ids[60..], &targets[60..]);

    // Pairs, and all weights.
    let own = Llama::load(&files).unwrap();
    for mut training in [
        TrainModel::new(model.clone(), &pairs).unwrap(),
        TrainModel::full(own).unwrap(),
    ] {
        let config = TrainingConfig::default();
        let mut optimizer = Optimizer::new(&config, &training.parameters_mut());
        let mut step = || {
            training.zero_gradients();
            training
                .forward_backward(&batch, 0.01, Masks::of(1))
                .unwrap();
            optimizer.update(&mut training, 1e-4);
        };
        // On the engine's threads throughout: its queue takes a small block for every 63 calls from outside.
        run(|| (0..3).for_each(|_| step()));
        assert_eq!(run(|| allocated_bytes(|| (0..5).for_each(|_| step()))), 0);
    }

    let loaded = Arc::new(LoadedAdapter::new(model.config(), &pairs).unwrap());
    let mut contexts = [(); 3].map(|()| {
        let mut context = Context::new(model.config(), loaded.clone(), CacheRoom::unlimited());
        context.make_room(64).unwrap();
        context
    });
    let mut decoder = Decoder::new(model);
    let [first, second, third] = &mut contexts;
    let mut next = [(first, 5), (second, 6), (third, 7)];
    let mut step = || {
        decoder.step(&mut next).unwrap();
    };
    run(|| (0..3).for_each(|_| step()));
    assert_eq!(run(|| allocated_bytes(|| (0..20).for_each(|_| step()))), 0);
}
