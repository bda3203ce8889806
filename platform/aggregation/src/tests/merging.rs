//! What is merged, left out, and written.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use trainyard_engine::export::FloatType;

use super::*;
use crate::Elimination;

/// An adapter of several pieces and types whose values come from a seed.
pub(super) fn varied(seed: u32, scale: f32) -> Vec<Tensor> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 16_777_216.0 - 0.5
    };
    [
        ("a", [40_000, 1], FloatType::F32),
        ("b", [9, 57], FloatType::F16),
        ("c", [3, 11], FloatType::Bf16),
        ("d", [70, 7], FloatType::F32),
    ]
    .into_iter()
    .map(|(name, shape, float_type)| Tensor {
        name,
        shape: shape.to_vec(),
        float_type,
        values: (0..shape[0] * shape[1]).map(|_| scale * next()).collect(),
    })
    .collect()
}

#[test]
fn g107_a_result_that_went_much_further_than_the_others_is_left_out() {
    let mut round = Round::of(&scalar(0.0));
    for (name, value) in [("a", 1.0), ("b", 1.1), ("c", 0.9), ("d", 1e6)] {
        round.give(name, &scalar(value));
    }
    let merged = round.merge();
    assert_eq!(merged.kept, ["a", "b", "c"]);
    assert_eq!(merged.eliminated.len(), 1);
    assert_eq!(merged.eliminated[0].name, "d");
    let Elimination::Outlier { delta_norm, limit } = merged.eliminated[0].why else {
        panic!("{merged:?}");
    };
    assert_eq!(delta_norm, 1e6);
    assert!((limit - 5.0 * 1.05).abs() < 1e-6, "{limit}");
    assert!((round.merged_values()["a"][0] - 1.5).abs() < 1e-6);
    assert!((merged.update_norm - 1.5).abs() < 1e-6);
}

#[test]
fn g108_momentum_goes_on_from_round_to_round() {
    let mut round = Round::of(&scalar(0.0));
    round.give("ali", &scalar(1.0));
    round.merge();
    assert_eq!(round.merged_values()["a"], [1.5]);
    let mut round = round.go_on();
    round.give("ali", &scalar(2.5));
    round.merge();
    assert_eq!(round.merged_values()["a"], [3.25]);
}

#[test]
fn g109_the_sum_is_divided_by_the_number_of_results_that_were_merged() {
    let mut round = Round::of(&scalar(0.0));
    round.momentum = 0.0;
    round.give("ali", &scalar(1.0));
    round.give("veli", &scalar(3.0));
    round.merge();
    assert_eq!(round.merged_values()["a"], [2.0]);
}

#[test]
fn g110_every_order_of_arrival_and_number_of_threads_gives_the_same_bytes() {
    let global = varied(1, 1.0);
    let mut round = Round::of(&global);
    for (name, seed, scale) in [
        ("ali", 2, 1.0),
        ("veli", 3, 0.9),
        ("can", 4, 1.1),
        ("ece", 5, 1.05),
        ("kaya", 6, 60.0),
    ] {
        round.give(name, &varied(seed, scale));
    }
    let next = round.path("next.safetensors");
    let velocity = round.path("next_velocity.safetensors");
    let mut first = None;
    let mut orders = 0;
    let updates = round.updates.clone();
    for order in 0..5_usize.pow(5) {
        let places: Vec<usize> = (0..5).map(|digit| order / 5_usize.pow(digit) % 5).collect();
        if (0..5).any(|place| !places.contains(&place)) {
            continue;
        }
        round.updates = places.iter().map(|place| updates[*place].clone()).collect();
        for threads in [1, 2] {
            round.threads = threads;
            let merged = round.merge();
            assert_eq!(merged.eliminated[0].name, "kaya");
            assert_eq!(merged.kept, ["ali", "can", "ece", "veli"]);
            let made = (
                merged,
                fs::read(&next).unwrap(),
                fs::read(&velocity).unwrap(),
            );
            assert_eq!(*first.get_or_insert_with(|| made.clone()), made);
        }
        orders += 1;
    }
    assert_eq!(orders, 120);
}

#[test]
fn the_digest_and_length_are_those_of_the_file() {
    let mut round = Round::of(&varied(1, 1.0));
    round.give("ali", &varied(2, 1.0));
    let merged = round.merge();
    let found = trainyard_engine::files::digest(&round.path("next.safetensors")).unwrap();
    assert_eq!((merged.size_bytes, merged.sha256), found);
    assert_eq!(merged.size_bytes, round.global.size_bytes());
}

#[test]
fn the_mean_is_taken_in_f64_and_rounded_once() {
    let mut round = Round::of(&scalar(0.0)).with_rule(Rule::Mean);
    // In f32 the small one would be lost beside the large ones.
    for (name, value) in [("a", 3e7), ("b", 1.0), ("c", -3e7), ("d", 3e7), ("e", -3e7)] {
        round.give(name, &scalar(value));
    }
    round.merge();
    assert_eq!(round.merged_values()["a"], [0.2]);
}

#[test]
fn results_count_by_their_examples_where_they_are_weighted() {
    let mut round = Round::of(&scalar(0.0)).with_rule(Rule::WeightedMean);
    round.give("ali", &scalar(1.0));
    round.give("veli", &scalar(5.0));
    round.updates[0].weight = 30;
    round.updates[1].weight = 10;
    round.merge();
    assert_eq!(round.merged_values()["a"], [2.0]);
    for update in &mut round.updates {
        update.weight = 0;
    }
    round.merge();
    assert_eq!(round.merged_values()["a"], [3.0]);
}

#[test]
fn trimmed_mean_and_median_are_taken_value_by_value() {
    let uploads = [
        ("a", [1.0, 9.0]),
        ("b", [2.0, 8.0]),
        ("c", [4.0, 2.0]),
        ("d", [9.0, 1.0]),
    ];
    for (rule, expected) in [(Rule::TrimmedMean, [3.0, 5.0]), (Rule::Median, [3.0, 5.0])] {
        let mut round = Round::of(&[tensor("w", &[2], &[0.0, 0.0])]).with_rule(rule);
        for (name, values) in uploads {
            round.give(name, &[tensor("w", &[2], &values)]);
        }
        round.merge();
        assert_eq!(round.merged_values()["w"], expected, "{rule}");
        round.give("e", &[tensor("w", &[2], &[3.5, 0.0])]);
        round.merge();
        let expected = match rule {
            Rule::Median => [3.5, 2.0],
            _ => [9.5 / 3.0, 11.0 / 3.0],
        };
        assert_eq!(round.merged_values()["w"], expected, "{rule}");
    }
}

#[test]
fn krum_takes_one_result_as_it_is() {
    let mut round = Round::of(&varied(1, 1.0)).with_rule(Rule::Krum);
    let near = |shift: f32| {
        let mut tensors = varied(2, 1.0);
        for x in &mut tensors[0].values {
            *x += shift;
        }
        tensors
    };
    for (name, shift) in [("a", 0.1), ("b", 0.0), ("c", -0.1), ("d", 2.0), ("e", 2.0)] {
        round.give(name, &near(shift));
    }
    round.threads = 2;
    let merged = round.merge();
    assert_eq!(merged.chosen.as_deref(), Some("b"));
    assert_eq!(merged.kept.len(), 5);
    assert_eq!(round.merged_values(), values_of(&round.path("b.update")));
}

#[test]
fn what_would_not_be_finite_costs_the_largest_change_its_place() {
    let mut half = scalar(60_000.0);
    half[0].float_type = FloatType::F16;
    let with = |value: f32| {
        let mut tensors = half.clone();
        tensors[0].values[0] = value;
        tensors
    };
    let mut round = Round::of(&half);
    round.lr = 4.0;
    round.give("ali", &with(60_032.0));
    round.give("veli", &with(65_000.0));
    let merged = round.merge();
    assert_eq!(merged.kept, ["ali"]);
    assert_eq!(merged.eliminated[0].name, "veli");
    assert_eq!(merged.eliminated[0].why, Elimination::NotFinite);
    assert_eq!(round.merged_values()["a"], [60_192.0]);
}

#[test]
fn a_round_that_no_result_can_improve_leaves_the_adapter_as_it_is() {
    let mut round = Round::of(&scalar(-3e38));
    round.give("ali", &scalar(3e38));
    let merged = round.merge();
    assert!(merged.kept.is_empty());
    assert_eq!(merged.eliminated.len(), 1);
    assert_eq!(merged.update_norm, 0.0);
    assert_eq!(
        fs::read(round.path("next.safetensors")).unwrap(),
        fs::read(round.global.path()).unwrap()
    );
    assert_eq!(
        values_of(&round.path("next_velocity.safetensors"))["a"],
        [0.0]
    );
}

#[test]
fn a_round_of_hundreds_of_results_keeps_few_files_open() {
    let mut round = Round::of(&scalar(0.0)).with_rule(Rule::Mean);
    for number in 0..300_u16 {
        round.give(&format!("{number}"), &scalar(f32::from(number % 3) + 1.0));
    }
    assert_eq!(round.merge().kept.len(), 300);
    assert_eq!(round.merged_values()["a"], [2.0]);
}

#[test]
fn a_merge_that_is_not_wanted_any_more_ends_at_the_next_piece_and_leaves_no_file() {
    for rule in Rule::ALL {
        let mut round = Round::of(&varied(1, 1.0)).with_rule(rule);
        for (name, seed) in [("a", 2), ("b", 3), ("c", 4)] {
            round.give(name, &varied(seed, 1.0));
        }
        let pieces = AtomicUsize::new(0);
        let stopped = round.try_merge_until(&|| pieces.fetch_add(1, Ordering::Relaxed) > 0);
        assert!(
            matches!(stopped, Err(AggregationError::Stopped)),
            "{rule}: {stopped:?}"
        );
        let left = fs::read_dir(round.folder.path()).unwrap().count();
        assert_eq!(left, 4, "{rule}: the global adapter and three uploads");
    }
}

#[test]
fn a_merge_that_cannot_be_made_leaves_no_file() {
    let mut round = Round::of(&scalar(0.0));
    assert!(matches!(
        round.try_merge(),
        Err(AggregationError::NoUpdates)
    ));
    round.give("ali", &scalar(1.0));
    round.give("ali", &scalar(1.0));
    let twice = round.try_merge().unwrap_err();
    assert!(matches!(twice, AggregationError::TwoUpdates(name) if name == "ali"));

    round.updates.pop();
    fs::write(round.path("ali.update"), b"rot").unwrap();
    let changed = round.try_merge().unwrap_err();
    assert!(matches!(changed, AggregationError::Changed { name, .. } if name == "ali"));

    round.updates.clear();
    round.give("veli", &scalar(1.0));
    round.give("ali", &scalar(1.0));
    fs::remove_file(round.path("ali.update")).unwrap();
    let lost = round.try_merge().unwrap_err();
    assert!(matches!(lost, AggregationError::Unreadable { name, .. } if name == "ali"));
    fs::remove_file(round.path("veli.update")).unwrap();

    round.updates.clear();
    round.give("ali", &scalar(1.0));
    let other = file_of(&[tensor("b", &[1], &[0.0])]);
    fs::write(round.path("velocity.safetensors"), other).unwrap();
    let foreign = round.try_merge().unwrap_err();
    assert!(foreign.to_string().contains("velocity"), "{foreign}");

    let left = fs::read_dir(round.folder.path()).unwrap().count();
    assert_eq!(left, 3, "the global adapter, an upload and the velocity");
}
