use super::*;
use crate::{
    golden,
    model::{Adapter, ModelConfig, TrainModel, golden_tests},
};

fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len())
        .max_by(|a, b| logits[*a].total_cmp(&logits[*b]))
        .unwrap() as u32
}

fn context(config: &ModelConfig, adapter: Option<&Adapter>) -> Context {
    let adapter = match adapter {
        Some(adapter) => LoadedAdapter::new(config, adapter),
        None => LoadedAdapter::none(config),
    };
    Context::new(config, Arc::new(adapter.unwrap()), CacheRoom::unlimited())
}

/// Runs all but the last token in parts of `part`, and gives the logits of what follows the last one.
fn run_prompt(decoder: &mut Decoder, context: &mut Context, ids: &[u32], part: usize) -> Vec<f32> {
    let (last, before) = ids.split_last().unwrap();
    for part in before.chunks(part) {
        let done = decoder.prefill(context, part, &|| false).unwrap();
        assert_eq!(done, Prefill::Done);
    }
    step(decoder, context, *last)
}

fn step(decoder: &mut Decoder, context: &mut Context, token: u32) -> Vec<f32> {
    context.make_room(1).unwrap();
    decoder.step(&mut [(context, token)]).unwrap().to_vec()
}

#[test]
fn greedy_continuation_matches_transformers() {
    for variant in ["tied", "untied"] {
        let meta = golden::meta();
        let prompt: Vec<u32> = golden::numbers(&meta["input_ids"][0])[..8]
            .iter()
            .map(|&id| id as u32)
            .collect();
        let expected = golden::numbers(&meta["variants"][variant]["greedy_from_first_8_of_row_0"]);
        let mut decoder = Decoder::new(Arc::new(golden_tests::model(variant)));
        let mut context = context(decoder.model().config(), None);
        let mut next = argmax(&run_prompt(&mut decoder, &mut context, &prompt, 32));
        for expected in expected {
            assert_eq!(f64::from(next), expected, "{variant}");
            next = argmax(&step(&mut decoder, &mut context, next));
        }
        assert_eq!(context.tokens(), 24);
    }
}

#[test]
fn tokens_one_by_one_give_the_logits_of_a_whole_batch() {
    let model = Arc::new(golden_tests::model("untied"));
    let adapter = golden_tests::adapter("untied", model.config(), 2.0);
    let ids: Vec<u32> = (0..70).map(|i| (i * 37 + 5) % 128).collect();
    let mut batch = Batch::default();
    batch.push_sequence(&ids, &vec![IGNORE; ids.len()]);
    let all = TrainModel::new(model.clone(), &adapter)
        .unwrap()
        .logits(&batch)
        .unwrap();
    let mut context = context(model.config(), Some(&adapter));
    let mut decoder = Decoder::new(model);
    let mut found = run_prompt(&mut decoder, &mut context, &ids[..40], 32);
    for (position, id) in ids.iter().enumerate().skip(40) {
        for (found, expected) in found.iter().zip(&all[(position - 1) * 128..]) {
            assert!(
                (found - expected).abs() < 1e-4,
                "position {position}: {found}, not {expected}"
            );
        }
        found = step(&mut decoder, &mut context, *id);
    }
}

#[test]
fn however_a_prompt_is_cut_what_follows_is_the_same_bit_for_bit() {
    let model = Arc::new(golden_tests::model("tied"));
    let adapter = golden_tests::adapter("tied", model.config(), 2.0);
    let ids: Vec<u32> = (0..150).map(|i| (i * 31 + 7) % 128).collect();
    let mut decoder = Decoder::new(model.clone());
    let mut run = |part| {
        let mut context = context(model.config(), Some(&adapter));
        run_prompt(&mut decoder, &mut context, &ids, part)
    };
    let whole = run(160);
    assert_eq!(run(32), whole);
    assert_eq!(run(96), whole);
}

#[test]
fn sequences_with_other_adapters_beside_them_get_the_same_logits_bit_for_bit() {
    let model = Arc::new(golden_tests::model("untied"));
    let config = model.config();
    let adapters = [
        None,
        Some(golden_tests::adapter("untied", config, 2.0)),
        Some(golden_tests::adapter("untied", config, 40.0)),
    ];
    let prompts: Vec<Vec<u32>> = [5, 40, 64]
        .map(|len| (0..len).map(|i| (i * 29 + len) % 128).collect())
        .into();
    let mut decoder = Decoder::new(model.clone());
    let mut alone = Vec::new();
    for (prompt, adapter) in prompts.iter().zip(&adapters) {
        let mut context = context(config, adapter.as_ref());
        let mut rows = vec![run_prompt(&mut decoder, &mut context, prompt, 32)];
        for _ in 0..5 {
            let next = argmax(rows.last().unwrap());
            rows.push(step(&mut decoder, &mut context, next));
        }
        alone.push(rows);
    }
    let mut contexts: Vec<Context> = adapters
        .iter()
        .map(|adapter| context(config, adapter.as_ref()))
        .collect();
    for ((context, prompt), alone) in contexts.iter_mut().zip(&prompts).zip(&alone) {
        assert_eq!(run_prompt(&mut decoder, context, prompt, 32), alone[0]);
    }
    for at in 0..5 {
        let mut next: Vec<(&mut Context, u32)> = contexts
            .iter_mut()
            .zip(&alone)
            .map(|(context, alone)| (context, argmax(&alone[at])))
            .collect();
        for (context, _) in &mut next {
            context.make_room(1).unwrap();
        }
        let rows = decoder.step(&mut next).unwrap();
        for (row, alone) in rows.chunks(config.vocab_size).zip(&alone) {
            assert_eq!(row, alone[at + 1], "step {at}");
        }
    }
}

#[test]
fn what_cannot_run_is_refused_and_leaves_the_context_as_it_was() {
    let model = Arc::new(golden_tests::model("tied"));
    let config = model.config();
    let mut decoder = Decoder::new(model.clone());
    let mut context = context(config, None);
    assert!(decoder.prefill(&mut context, &[], &|| false).is_err());
    assert!(decoder.prefill(&mut context, &[128], &|| false).is_err());
    assert_eq!(
        decoder.prefill(&mut context, &[1; 31], &|| true).unwrap(),
        Prefill::Stopped
    );
    assert_eq!(context.tokens(), 0);
    decoder.prefill(&mut context, &[1; 31], &|| false).unwrap();
    assert!(
        decoder.prefill(&mut context, &[1], &|| false).is_err(),
        "within a block"
    );
    assert!(decoder.step(&mut [(&mut context, 128)]).is_err());
    decoder.step(&mut [(&mut context, 1)]).unwrap();
    assert!(
        decoder.step(&mut [(&mut context, 1)]).is_err(),
        "the last block is full"
    );
    assert_eq!(context.tokens(), 32);
}

#[test]
fn contexts_hold_no_more_together_than_their_room_and_give_it_back() {
    let model = Arc::new(golden_tests::model("tied"));
    let config = model.config();
    let block = 2 * config.num_hidden_layers * LANES * config.key_value_width() * 4;
    let room = CacheRoom::new(3 * block);
    let adapter = Arc::new(LoadedAdapter::none(config).unwrap());
    let new = || Context::new(config, adapter.clone(), room.clone());
    let (mut first, mut second) = (new(), new());
    first.make_room(40).unwrap();
    second.make_room(32).unwrap();
    assert_eq!(room.used_bytes(), 3 * block);
    let refused = second.make_room(33).unwrap_err();
    assert!(
        matches!(refused, EngineError::OutOfMemory { .. }),
        "{refused}"
    );
    drop(first);
    second.make_room(33).unwrap();
    drop(second);
    assert_eq!(room.used_bytes(), 0);
}
