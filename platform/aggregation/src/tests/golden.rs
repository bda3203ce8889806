//! The outer step over three rounds, against torch's SGD (`tests/golden/make_outer_nesterov.py`).

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
struct Golden {
    outer_lr: f32,
    momentum: f32,
    global_start: Values,
    rounds: Vec<GoldenRound>,
}

#[derive(Deserialize)]
struct GoldenRound {
    local: Vec<Values>,
    delta_norms: Vec<f64>,
    kept: Vec<usize>,
    global_after: Values,
    momentum_after: Values,
}

#[derive(Deserialize)]
struct Values {
    a: Vec<Vec<f32>>,
    b: Vec<f32>,
}

impl Values {
    fn tensors(&self) -> Vec<Tensor> {
        let shape = [self.a.len(), self.a[0].len()];
        vec![
            tensor("a", &shape, &self.a.concat()),
            tensor("b", &[self.b.len()], &self.b),
        ]
    }

    fn assert_near(&self, found: &BTreeMap<String, Vec<f32>>) {
        for expected in self.tensors() {
            for (x, y) in found[expected.name].iter().zip(&expected.values) {
                assert!((x - y).abs() < 2e-6 * y.abs().max(1.0), "{x} is not {y}");
            }
        }
    }
}

#[test]
fn three_rounds_of_outer_steps_are_those_of_torch() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/outer_nesterov.json");
    let golden: Golden = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let mut round = Round::of(&golden.global_start.tensors());
    round.lr = golden.outer_lr;
    round.momentum = golden.momentum;
    for expected in golden.rounds {
        for (number, (local, norm)) in expected.local.iter().zip(&expected.delta_norms).enumerate()
        {
            let found = round.give(&number.to_string(), &local.tensors());
            assert!((found - norm).abs() < 1e-5 * norm, "{found} is not {norm}");
        }
        let merged = round.merge();
        let kept: Vec<usize> = merged
            .kept
            .iter()
            .map(|name| name.parse().unwrap())
            .collect();
        assert_eq!(kept, expected.kept);
        expected.global_after.assert_near(&round.merged_values());
        let velocity = values_of(&round.path("next_velocity.safetensors"));
        expected.momentum_after.assert_near(&velocity);
        round = round.go_on();
    }
}
