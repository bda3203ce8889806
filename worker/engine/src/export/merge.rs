//! A model's weights with an adapter's pairs added to them, one weight after the other.

use std::collections::HashMap;

use rayon::prelude::*;

use super::Watch;
use crate::EngineError;
use crate::device::run;
use crate::model::{Adapter, LoraModule, ModelConfig, Projection, Weight};
use crate::weights::ModelFiles;

/// The weights of a model with an adapter merged into them, or as they are.
pub(super) struct MergedWeights<'a, 'w> {
    base: &'a ModelFiles,
    /// By the name of the weight that a pair is added to.
    modules: HashMap<String, &'a LoraModule>,
    watch: &'a mut Watch<'w>,
    written: u64,
    total: u64,
}

impl<'a, 'w> MergedWeights<'a, 'w> {
    pub fn new(
        base: &'a ModelFiles,
        adapter: Option<&'a Adapter>,
        watch: &'a mut Watch<'w>,
    ) -> Self {
        Self {
            modules: adapter.map_or_else(HashMap::new, |adapter| modules(adapter, &base.config)),
            base,
            watch,
            written: 0,
            total: base.config.parameter_count(),
        }
    }

    /// The values of a weight, row-major: `W + scale * B A` where the adapter has a pair for it.
    ///
    /// # Errors
    /// What the model's files say of the weight; [`EngineError::Stopped`].
    pub fn values(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, EngineError> {
        self.watch.check_stop()?;
        let mut values = self.base.tensor(name, shape)?;
        if let Some(module) = self.modules.get(name) {
            add_pair(&mut values, module);
        }
        self.base.release_memory();
        self.written += values.len() as u64;
        self.watch.tell(self.written, self.total);
        Ok(values)
    }
}

fn modules<'a>(adapter: &'a Adapter, config: &ModelConfig) -> HashMap<String, &'a LoraModule> {
    let mut modules = HashMap::new();
    for layer in 0..config.num_hidden_layers {
        for projection in Projection::ALL {
            if let Some(module) = adapter.module(layer, projection) {
                modules.insert(Weight::Projection(layer, projection).name(), module);
            }
        }
    }
    modules
}

/// `w [out, in] += scale * b [out, rank] a [rank, in]`, in f32.
fn add_pair(w: &mut [f32], module: &LoraModule) {
    let LoraModule { rank, scale, a, b } = module;
    let inputs = a.len() / rank;
    run(|| {
        w.par_chunks_mut(inputs)
            .zip(b.par_chunks(*rank))
            .for_each_init(
                || vec![0f32; inputs],
                |sum, (w, b)| {
                    sum.fill(0.0);
                    for (b, a) in b.iter().zip(a.chunks_exact(inputs)) {
                        for (sum, a) in sum.iter_mut().zip(a) {
                            *sum += b * a;
                        }
                    }
                    for (w, sum) in w.iter_mut().zip(sum) {
                        *w += scale * *sum;
                    }
                },
            );
    });
}
