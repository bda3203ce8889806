//! Packing and the kernel against their definition. Where there is no matrix unit there is nothing to test.

use super::*;
use crate::{
    device::{LANES, Panels},
    ops::test_values::values,
};

/// `w` `[rows, depth]` times `x` `[depth][lane]`, in f64, with the sum of all terms' sizes.
fn reference(w: &[f32], x: &[f32], depth: usize) -> Vec<(f64, f64)> {
    let mut out = Vec::new();
    for row in w.chunks(depth) {
        for lane in 0..LANES {
            let terms = row
                .iter()
                .zip(x[lane..].iter().step_by(LANES))
                .map(|(w, x)| f64::from(*w) * f64::from(*x));
            out.push((terms.clone().sum(), terms.map(f64::abs).sum()));
        }
    }
    out
}

/// `w x + start`, by the kernel, with `w` packed from panels as it is or from its transpose.
fn product(w: &[f32], x: &[f32], depth: usize, len: usize, is_transposed: bool) -> Vec<f32> {
    let rows = w.len() / depth;
    assert!(rows <= SIDE);
    let panels = match is_transposed {
        false => Panels::pack(w, rows, depth),
        true => {
            let columns: Vec<f32> = (0..depth)
                .flat_map(|c| w[c..].iter().step_by(depth).copied())
                .collect();
            Panels::pack(&columns, depth, rows)
        }
    }
    .unwrap();
    let part = PanelPart {
        panels: panels.packed(),
        columns: panels.columns(),
    };
    let chunks = depth.div_ceil(STEPS);
    let mut y = vec![1.0; SIDE * LANES];
    with_shared_memory(chunks * (len + THREE_PARTS), |memory| {
        memory.fill(0x7FC0);
        let (a, b) = memory.split_at_mut(chunks * len);
        for (chunk, out) in a.chunks_mut(len).enumerate() {
            let steps = (chunk * STEPS, depth.min((chunk + 1) * STEPS));
            // SAFETY: the caller has seen that the matrix unit is there.
            unsafe {
                match is_transposed {
                    false => pack_panels(out, part, 0, steps),
                    true => pack_panels_transposed(out, part, steps.0, (0, rows)),
                }
            }
        }
        for (out, x) in b.chunks_mut(THREE_PARTS).zip(x.chunks(STEPS * LANES)) {
            // SAFETY: as above.
            unsafe { pack_inputs(out, x) };
        }
        let counts = if len == ONE_PART {
            (chunks, 0)
        } else {
            (0, chunks)
        };
        // SAFETY: as above; all parts are as long as `counts` says.
        unsafe {
            let (y, tiles) = (y.as_mut_ptr(), Tiles::set_up());
            tiles.multiply((a.as_ptr(), b.as_ptr()), counts, y, y);
        }
    });
    y.truncate(rows * LANES);
    y
}

#[test]
fn products_are_as_exact_as_sums_in_f32_for_every_shape_and_layout() {
    if !is_there() {
        return;
    }
    for (rows, depth) in [(32, 96), (32, 32), (5, 71), (17, 13), (29, 576)] {
        let w: Vec<f32> = values(1, rows * depth).iter().map(|w| w * 0.37).collect();
        let x: Vec<f32> = values(2, depth * LANES).iter().map(|x| x * 1.3e3).collect();
        for is_transposed in [false, true] {
            let y = product(&w, &x, depth, THREE_PARTS, is_transposed);
            for (i, (y, (sum, size))) in y.iter().zip(reference(&w, &x, depth)).enumerate() {
                let error = (f64::from(*y) - (sum + 1.0)).abs();
                let allowed = 4.0 * f64::from(f32::EPSILON) * size.max(1.0);
                assert!(
                    error <= allowed,
                    "{rows} x {depth} at {i}: {y}, not {sum} + 1"
                );
            }
        }
    }
}

#[test]
fn weights_that_are_bf16_give_the_same_bits_in_one_part_as_in_three() {
    if !is_there() {
        return;
    }
    let (rows, depth) = (30, 100);
    let bf16 = |w: &f32| f32::from_bits(w.to_bits() & 0xFFFF_0000);
    let w: Vec<f32> = values(1, rows * depth).iter().map(bf16).collect();
    let x = values(2, depth * LANES);
    let [one, three] = [ONE_PART, THREE_PARTS].map(|len| product(&w, &x, depth, len, false));
    let bits = |y: Vec<f32>| y.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(one), bits(three));
}

#[test]
fn values_that_are_not_finite_stay_so() {
    if !is_there() {
        return;
    }
    for bad in [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::from_bits(0x7FFF_FFFF),
    ] {
        for len in [ONE_PART, THREE_PARTS] {
            let (mut w, mut x) = (vec![0.5; SIDE * STEPS], vec![0.25; STEPS * LANES]);
            x[20 * LANES + 7] = bad;
            let y = product(&w, &x, STEPS, len, false);
            for (i, y) in y.iter().enumerate() {
                assert_eq!(y.is_finite(), i % LANES != 7, "{bad} in lane {}", i % LANES);
            }
            if len == ONE_PART && bad.to_bits() << 16 != 0 {
                continue; // No weight of one part has it.
            }
            x.fill(0.25);
            w[3 * STEPS + 20] = bad;
            let y = product(&w, &x, STEPS, len, false);
            for (i, y) in y.iter().enumerate() {
                assert_eq!(y.is_finite(), i / LANES != 3, "{bad} in row {}", i / LANES);
            }
        }
    }
}
