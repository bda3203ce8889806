//! AdamW: Adam with decoupled weight decay, as torch.optim.AdamW computes it.
//!
//! ```text
//! w  = w * (1 - lr * weight_decay)
//! m  = beta1 * m + (1 - beta1) * g
//! v  = beta2 * v + (1 - beta2) * g^2
//! w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
//! ```

mod cpu;

use crate::profile::{Operation, Timed};

/// Settings of one AdamW step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// lr.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decay of the weights per unit of learning rate.
    pub weight_decay: f64,
    /// t: the number of this step, from 1.
    pub step: u64,
}

/// Updates weights `w` and moments `m` and `v` by gradients `g * gradient_scale`; all four of one length.
///
/// `gradient_scale` is the factor of gradient clipping, 1 without.
pub fn adamw_step(
    w: &mut [f32],
    m: &mut [f32],
    v: &mut [f32],
    g: &[f32],
    gradient_scale: f32,
    settings: &AdamW,
) {
    assert!(
        w.len() == g.len() && m.len() == g.len() && v.len() == g.len(),
        "weights, moments and gradients of one length"
    );
    let _timed = Timed::begin(Operation::AdamW, 0);
    let bias = |beta: f64| 1.0 - beta.powf(settings.step as f64);
    cpu::step(
        w,
        m,
        v,
        g,
        &cpu::Factors {
            gradient: gradient_scale,
            decay: (1.0 - settings.learning_rate * settings.weight_decay) as f32,
            beta1: settings.beta1 as f32,
            one_minus_beta1: (1.0 - settings.beta1) as f32,
            beta2: settings.beta2 as f32,
            one_minus_beta2: (1.0 - settings.beta2) as f32,
            step_size: (settings.learning_rate / bias(settings.beta1)) as f32,
            inverse_root_bias2: (1.0 / bias(settings.beta2).sqrt()) as f32,
            epsilon: settings.epsilon as f32,
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_the_formula_in_f64() {
        let settings = |step| AdamW {
            learning_rate: 1e-2,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.1,
            step,
        };
        let len = 1000;
        let gradient = |i: usize, step: u64| ((i as f64 * 0.37 + step as f64).sin() * 0.1) as f32;
        let mut w: Vec<f32> = (0..len).map(|i| (i as f32 * 0.11).cos()).collect();
        let mut exact: Vec<[f64; 3]> = w.iter().map(|&w| [f64::from(w), 0.0, 0.0]).collect();
        let (mut m, mut v) = (vec![0.0; len], vec![0.0; len]);
        for t in 1..=5 {
            let g: Vec<f32> = (0..len).map(|i| gradient(i, t)).collect();
            adamw_step(&mut w, &mut m, &mut v, &g, 0.5, &settings(t));
            let s = settings(t);
            for ([w, m, v], g) in exact.iter_mut().zip(&g) {
                let g = f64::from(*g) * 0.5;
                *w *= 1.0 - s.learning_rate * s.weight_decay;
                *m = s.beta1 * *m + (1.0 - s.beta1) * g;
                *v = s.beta2 * *v + (1.0 - s.beta2) * g * g;
                let root = v.sqrt() / (1.0 - s.beta2.powi(t as i32)).sqrt() + s.epsilon;
                *w -= s.learning_rate / (1.0 - s.beta1.powi(t as i32)) * *m / root;
            }
        }
        for (w, exact) in w.iter().zip(&exact) {
            assert!(
                (f64::from(*w) - exact[0]).abs() < 1e-6,
                "{w}, not {}",
                exact[0]
            );
        }
    }
}
