//! The operations that models are made of, one folder each: its formula, forward beside backward, and its kernels.
//!
//! Everywhere: outputs come first; gradients are named `d` and what they belong to; gradients of parameters are
//! added up (`+=`), gradients of activations are set unless a function says otherwise. `mod.rs` holds the formula
//! and the shapes, `cpu.rs` the kernels for the CPU.

pub mod adamw;
pub mod attention;
pub mod bias;
pub mod cross_entropy;
pub mod dropout;
pub mod embedding;
pub mod gradient_norm;
pub mod linear;
pub mod rms_norm;
pub mod rotary;
pub mod swiglu;
#[cfg(test)]
pub(crate) mod test_values;
