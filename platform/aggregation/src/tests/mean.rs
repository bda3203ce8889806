//! Results that were summed elsewhere.

use super::merging::varied;
use super::*;
use crate::{WrittenMean, write_mean};

fn all_values(path: &Path, of: &[Tensor]) -> Vec<f64> {
    let values = values_of(path);
    let in_order = of.iter().flat_map(|tensor| &values[tensor.name]);
    in_order.map(|x| f64::from(*x)).collect()
}

/// The mean of the round's updates by its mean change, and what is merged with that as the only result.
fn merge_by_sum(round: &mut Round, global: &[Tensor]) -> (WrittenMean, Merged) {
    let before = all_values(round.global.path(), global);
    let updates: Vec<Vec<f64>> = round
        .updates
        .iter()
        .map(|update| all_values(&update.path, global))
        .collect();
    let out = round.path("mean.safetensors");
    let changes = |first: u64, into: &mut [f64]| {
        for (place, change) in (first as usize..).zip(into) {
            let sum: f64 = updates.iter().map(|x| x[place] - before[place]).sum();
            *change = sum / updates.len() as f64;
        }
        Ok::<(), AggregationError>(())
    };
    let mean = write_mean(&round.global, changes, &out).unwrap();
    let checked = check(&out, &round.global, None).unwrap();
    assert_eq!(checked.delta_norm, mean.delta_norm);
    round.updates = vec![Update {
        name: "all".to_owned(),
        path: out,
        weight: 1,
        delta_norm: mean.delta_norm,
    }];
    (mean, round.merge())
}

#[test]
fn a_round_of_which_only_the_sum_is_known_becomes_the_same_bytes() {
    for rule in [Rule::Nesterov, Rule::Mean] {
        let global = varied(1, 1.0);
        let mut round = Round::of(&global).with_rule(rule);
        for (seed, name) in (2..).zip(["a", "b", "c", "d"]) {
            round.give(name, &varied(seed, 1.0));
        }
        let merged = round.merge();
        let next = fs::read(round.path("next.safetensors")).unwrap();
        let (mean, by_sum) = merge_by_sum(&mut round, &global);
        assert_eq!(by_sum.sha256, merged.sha256, "{rule}");
        assert_eq!(fs::read(round.path("next.safetensors")).unwrap(), next);
        let written = fs::metadata(round.path("mean.safetensors")).unwrap();
        assert_eq!(mean.size_bytes, written.len());
    }
}

#[test]
fn a_mean_that_would_not_be_finite_is_not_written() {
    let round = Round::of(&scalar(1.0));
    let out = round.path("mean.safetensors");
    let endless = |_: u64, into: &mut [f64]| {
        into.fill(1e300);
        Ok::<(), AggregationError>(())
    };
    let error = write_mean(&round.global, endless, &out).unwrap_err();
    assert!(matches!(error, AggregationError::NotFinite), "{error}");
    assert!(!out.exists());
}
