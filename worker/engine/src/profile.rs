//! Where a training step's time goes: for each kind of operation calls, time and counted arithmetic.
//!
//! Off unless [`start`] is called; then an operation costs one load of a flag. On, it costs two looks at the clock
//! and no memory. There is one profile in the process: whoever starts it lets one run at a time compute.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Kinds of operations, in the order in which a step runs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Weights brought into the layout of products, in full training.
    Packing,
    /// Rows of the embedding.
    Embedding,
    /// Norms, forward and again in the backward pass.
    Norm,
    /// Linear layers with their pairs; with dropout, with their pairs' B.
    Linear,
    /// Biases of linear layers.
    Bias,
    /// The pairs' A, where it sees other inputs than the layer because of dropout.
    LoraInner,
    /// Rotary embedding, both ways.
    Rotary,
    /// Attention.
    Attention,
    /// SwiGLU.
    Swiglu,
    /// The output projection, its loss and both their gradients.
    CrossEntropy,
    /// Gradients of norms.
    NormGradient,
    /// Gradients of the linear layers' inputs.
    LinearInputGradient,
    /// Gradients of full weights.
    WeightGradient,
    /// Gradients of biases.
    BiasGradient,
    /// Gradients of the pairs.
    LoraGradient,
    /// Gradient of attention.
    AttentionGradient,
    /// Gradient of SwiGLU.
    SwigluGradient,
    /// Gradient of the embedding's rows.
    EmbeddingGradient,
    /// Gradients set to zero before a step.
    ZeroGradients,
    /// The norm of all gradients.
    GradientNorm,
    /// The optimizer's update.
    AdamW,
}

/// All kinds.
const ALL: [Operation; 21] = [
    Operation::Packing,
    Operation::Embedding,
    Operation::Norm,
    Operation::Linear,
    Operation::Bias,
    Operation::LoraInner,
    Operation::Rotary,
    Operation::Attention,
    Operation::Swiglu,
    Operation::CrossEntropy,
    Operation::NormGradient,
    Operation::LinearInputGradient,
    Operation::WeightGradient,
    Operation::BiasGradient,
    Operation::LoraGradient,
    Operation::AttentionGradient,
    Operation::SwigluGradient,
    Operation::EmbeddingGradient,
    Operation::ZeroGradients,
    Operation::GradientNorm,
    Operation::AdamW,
];

impl Operation {
    /// Its name in tables and events.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Packing => "weight packing",
            Operation::Embedding => "embedding",
            Operation::Norm => "norm",
            Operation::Linear => "linear",
            Operation::Bias => "bias",
            Operation::LoraInner => "lora inner",
            Operation::Rotary => "rotary",
            Operation::Attention => "attention",
            Operation::Swiglu => "swiglu",
            Operation::CrossEntropy => "head and loss",
            Operation::NormGradient => "norm gradient",
            Operation::LinearInputGradient => "linear input gradient",
            Operation::WeightGradient => "weight gradient",
            Operation::BiasGradient => "bias gradient",
            Operation::LoraGradient => "lora gradient",
            Operation::AttentionGradient => "attention gradient",
            Operation::SwigluGradient => "swiglu gradient",
            Operation::EmbeddingGradient => "embedding gradient",
            Operation::ZeroGradients => "zero gradients",
            Operation::GradientNorm => "gradient norm",
            Operation::AdamW => "adamw",
        }
    }
}

static ON: AtomicBool = AtomicBool::new(false);
static COUNTERS: [Counter; ALL.len()] = [const { Counter::new() }; ALL.len()];

/// What one kind came to.
struct Counter {
    calls: AtomicU64,
    nanoseconds: AtomicU64,
    flops: AtomicU64,
}

impl Counter {
    const fn new() -> Self {
        Self {
            calls: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
            flops: AtomicU64::new(0),
        }
    }

    fn all(&self) -> [&AtomicU64; 3] {
        [&self.calls, &self.nanoseconds, &self.flops]
    }
}

/// Sets all counters to zero and counts from now on.
pub fn start() {
    for counter in COUNTERS.iter().flat_map(Counter::all) {
        counter.store(0, Relaxed);
    }
    ON.store(true, Relaxed);
}

/// One kind's part in a profile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// Which.
    pub operation: Operation,
    /// How often it ran.
    pub calls: u64,
    /// How long it took altogether, as the step saw it.
    pub time: Duration,
    /// Floating-point operations of its products: two for each multiplication and addition. Elementwise work is not
    /// counted, nor is what attention's mask hides.
    pub flops: u64,
}

/// Ends counting; gives the kinds that ran, the longest first.
pub fn finish() -> Vec<Share> {
    ON.store(false, Relaxed);
    let shares = ALL.into_iter().zip(&COUNTERS).map(|(operation, counter)| {
        let [calls, nanoseconds, flops] = counter.all().map(|value| value.load(Relaxed));
        Share {
            operation,
            calls,
            time: Duration::from_nanos(nanoseconds),
            flops,
        }
    });
    let mut ran: Vec<Share> = shares.filter(|share| share.calls > 0).collect();
    ran.sort_by_key(|share| std::cmp::Reverse(share.time));
    ran
}

/// Counts one run of an operation from here until it is dropped. Operations that are counted do not contain others.
#[must_use = "the operation is timed until this is dropped"]
pub(crate) struct Timed(Option<(Operation, u64, Instant)>);

impl Timed {
    /// Begins an operation whose products take `flops`.
    #[inline]
    pub(crate) fn begin(operation: Operation, flops: usize) -> Self {
        Self(
            ON.load(Relaxed)
                .then(|| (operation, flops as u64, Instant::now())),
        )
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        if let Some((operation, flops, begun)) = self.0 {
            let counter = &COUNTERS[operation as usize];
            let nanoseconds = begun.elapsed().as_nanos() as u64;
            counter.calls.fetch_add(1, Relaxed);
            counter.nanoseconds.fetch_add(nanoseconds, Relaxed);
            counter.flops.fetch_add(flops, Relaxed);
        }
    }
}
