//! Products of every layout against their definition.

use super::*;
use crate::{
    device::padded_tokens,
    ops::test_values::{assert_close, blocks, values},
};

/// `x w^T` by rows, in f64.
fn reference(x: &[f32], w: &[f32], depth: usize) -> Vec<f64> {
    let dot = |a: &[f32], b: &[f32]| {
        a.iter()
            .zip(b)
            .map(|(a, b)| f64::from(*a) * f64::from(*b))
            .sum()
    };
    x.chunks(depth)
        .flat_map(|x| w.chunks(depth).map(move |w| dot(x, w)))
        .collect()
}

fn transposed(w: &[f32], columns: usize) -> Vec<f32> {
    (0..columns)
        .flat_map(|c| w[c..].iter().step_by(columns).copied())
        .collect()
}

/// Values of a weight, of f32 or, as published weights mostly are, of bf16: each has products of its own.
fn weights(seed: u64, len: usize, are_bf16: bool) -> Vec<f32> {
    let mut weights = values(seed, len);
    if are_bf16 {
        weights
            .iter_mut()
            .for_each(|w| *w = half::bf16::from_f32(*w).to_f32());
    }
    weights
}

#[test]
fn products_of_every_layout_agree_with_their_definition() {
    let shapes = [
        (1, 1, 1),
        (33, 16, 24),
        (70, 40, 64),
        (96, 13, 7),
        (40, 192, 100),
        (32, 30, 36),
    ];
    for (are_bf16, (tokens, rows, depth)) in shapes
        .iter()
        .flat_map(|shape| [(false, *shape), (true, *shape)])
    {
        let x = values(1, tokens * depth);
        let w = weights(2, rows * depth, are_bf16);
        let expected = reference(&x, &w, depth);
        let x = blocks(&x, tokens);
        let input = Activations::new(&x, depth);
        let wt = transposed(&w, depth);
        let weight = WeightMatrix::from_f32(&w, rows, depth).unwrap();
        let weight_t = WeightMatrix::from_f32(&wt, depth, rows).unwrap();
        for matrix in [
            Matrix::Weight(&weight),
            Matrix::WeightTransposed(&weight_t),
            Matrix::Rows(&w, depth),
            Matrix::RowsTransposed(&wt, rows),
        ] {
            let mut y = vec![f32::NAN; padded_tokens(tokens) * rows];
            let mut y = ActivationsMut::new(&mut y, rows);
            multiply(&mut y, Start::Zero, &[Product { matrix, input }], 1.0);
            assert_close(
                "product",
                &y.view().to_rows(tokens),
                &expected,
                1e-6 * depth as f64,
            );
        }
    }
}

#[test]
fn sums_of_products_start_where_they_are_told() {
    let (tokens, rows, depth, rank) = (45, 26, 20, 6);
    let (x, w) = (values(1, tokens * depth), values(2, rows * depth));
    let (u, b) = (values(3, tokens * rank), values(4, rows * rank));
    let start = values(5, tokens * rows);
    let sum = |scale: f64, starts: f64| -> Vec<f64> {
        let terms = reference(&x, &w, depth)
            .into_iter()
            .zip(reference(&u, &b, rank));
        let sums = terms
            .zip(&start)
            .map(|((a, b), s)| scale * (a + b + starts * f64::from(*s)));
        sums.collect()
    };
    let weight = WeightMatrix::from_f32(&w, rows, depth).unwrap();
    let (xb, ub, sb) = (
        blocks(&x, tokens),
        blocks(&u, tokens),
        blocks(&start, tokens),
    );
    let products = [
        Product {
            matrix: Matrix::Weight(&weight),
            input: Activations::new(&xb, depth),
        },
        Product {
            matrix: Matrix::Rows(&b, rank),
            input: Activations::new(&ub, rank),
        },
    ];
    let mut data = sb.clone();
    let mut y = ActivationsMut::new(&mut data, rows);
    multiply(
        &mut y,
        Start::From(Activations::new(&sb, rows)),
        &products,
        0.5,
    );
    assert_close(
        "product",
        &y.view().to_rows(tokens),
        &sum(0.5, 1.0),
        1e-6 * depth as f64,
    );
    multiply(&mut y, Start::Zero, &products, 2.0);
    assert_close(
        "product",
        &y.view().to_rows(tokens),
        &sum(2.0, 0.0),
        1e-6 * depth as f64,
    );
}

#[test]
fn a_pair_is_the_same_bits_within_its_products_tasks_and_apart_from_them() {
    for (rank, are_bf16) in [(5, false), (5, true), (40, true)] {
        check_pair(rank, are_bf16);
    }
}

fn check_pair(rank: usize, are_bf16: bool) {
    let (tokens, rows, depth) = (130, 110, 3000);
    let (x, w) = (
        values(1, tokens * depth),
        weights(2, rows * depth, are_bf16),
    );
    let (a, b) = (values(3, rank * depth), values(4, rows * rank));
    let xb = blocks(&x, tokens);
    let input = Activations::new(&xb, depth);
    let weight = WeightMatrix::from_f32(&w, rows, depth).unwrap();
    let main = Product {
        matrix: Matrix::Weight(&weight),
        input,
    };
    let on = |threads: usize| {
        let mut y = vec![f32::NAN; padded_tokens(tokens) * rows];
        let mut u = vec![f32::NAN; padded_tokens(tokens) * rank];
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        pool.build().unwrap().install(|| {
            multiply_with_inner(
                &mut ActivationsMut::new(&mut y, rows),
                Start::Zero,
                main,
                &mut ActivationsMut::new(&mut u, rank),
                (&a, &b, 0.5),
            );
        });
        (y, u)
    };
    // In vectors: one thread has five blocks for its one task, four have less than two for each of theirs.
    let (y, u) = on(1);
    assert!((&y, &u) == (&on(4).0, &on(4).1), "bits");
    let inner: Vec<f64> = reference(&x, &a, depth).iter().map(|u| 0.5 * u).collect();
    let u = Activations::new(&u, rank).to_rows(tokens);
    assert_close("u", &u, &inner, 1e-6 * depth as f64);
    let outer = reference(&u, &b, rank);
    let sums = reference(&x, &w, depth).into_iter().zip(outer);
    let expected: Vec<f64> = sums.map(|(main, pair)| main + pair).collect();
    let y = Activations::new(&y, rows).to_rows(tokens);
    assert_close("y", &y, &expected, 1e-6 * depth as f64);
}

#[test]
fn sums_of_several_weights_and_pairs_agree_with_their_definition_beyond_what_is_done_at_once() {
    [false, true].into_iter().for_each(check_long_sum);
}

fn check_long_sum(are_bf16: bool) {
    let (tokens, rows) = (67 * LANES - 5, 2370);
    let depths = [(70, false), (1600, true), (5, false), (16, true)];
    let start = values(9, tokens * rows);
    let sides = depths.map(|(depth, _)| {
        let seed = depth as u64;
        let w = weights(seed + 1, rows * depth, are_bf16);
        (values(seed, tokens * depth), w)
    });
    let held: Vec<WeightMatrix> = depths[..2]
        .iter()
        .zip(&sides)
        .map(|(&(depth, is_transposed), (_, w))| match is_transposed {
            false => WeightMatrix::from_f32(w, rows, depth).unwrap(),
            true => WeightMatrix::from_f32(&transposed(w, depth), depth, rows).unwrap(),
        })
        .collect();
    let last = transposed(&sides[3].1, depths[3].0);
    let matrices = [
        Matrix::Weight(&held[0]),
        Matrix::WeightTransposed(&held[1]),
        Matrix::Rows(&sides[2].1, depths[2].0),
        Matrix::RowsTransposed(&last, rows),
    ];
    let inputs = sides.each_ref().map(|(x, _)| blocks(x, tokens));
    let mut products = ProductList::new();
    for ((matrix, input), (depth, _)) in matrices.into_iter().zip(&inputs).zip(depths) {
        products.push(matrix, Activations::new(input, depth));
    }
    let mut y = blocks(&start, tokens);
    let before = y.clone();
    multiply(
        &mut ActivationsMut::new(&mut y, rows),
        Start::From(Activations::new(&before, rows)),
        products.as_slice(),
        1.0,
    );
    let y = Activations::new(&y, rows).to_rows(tokens);
    for at in (0..tokens * rows).step_by(7919).chain([tokens * rows - 1]) {
        let (token, row) = (at / rows, at % rows);
        let mut expected = f64::from(start[at]);
        for ((x, w), (depth, _)) in sides.iter().zip(depths) {
            let (x, w) = (&x[token * depth..][..depth], &w[row * depth..][..depth]);
            expected += reference(x, w, depth)[0];
        }
        let error = (f64::from(y[at]) - expected).abs();
        assert!(error < 1e-4, "{token}, {row}: {} for {expected}", y[at]);
    }
}
