//! A model's weights with an adapter merged into them, one weight after the other.

use std::collections::HashMap;

use rayon::prelude::*;

use super::Watch;
use crate::EngineError;
use crate::adapter::SavedAdapter;
use crate::device::run;
use crate::model::{LoraModule, ModelConfig, Projection, Weight};
use crate::weights::ModelFiles;

/// The weights of a model with an adapter merged into them, or as they are.
pub(super) struct MergedWeights<'a, 'w> {
    base: &'a ModelFiles,
    /// The merged model's: the base model's, but for an embedding and an output projection that are no longer tied.
    config: ModelConfig,
    /// By the name of the weight that a pair is added to.
    modules: HashMap<String, &'a LoraModule>,
    /// Weights that the adapter replaces, by name.
    replaced: HashMap<String, &'a [f32]>,
    watch: &'a mut Watch<'w>,
    written: u64,
    total: u64,
}

impl<'a, 'w> MergedWeights<'a, 'w> {
    pub fn new(
        base: &'a ModelFiles,
        adapter: Option<&'a SavedAdapter>,
        watch: &'a mut Watch<'w>,
    ) -> Self {
        let mut config = base.config.clone();
        let (mut modules, mut replaced) = (HashMap::new(), HashMap::new());
        if let Some(adapter) = adapter {
            modules = pairs(adapter, &config);
            for (weight, values) in &adapter.whole.0 {
                replaced.insert(weight.name(), values.as_slice());
                if matches!(weight, Weight::Embedding | Weight::Head) {
                    config.tie_word_embeddings = false;
                }
            }
        }
        Self {
            total: config.parameter_count(),
            base,
            config,
            modules,
            replaced,
            watch,
            written: 0,
        }
    }

    /// The merged model's shape and constants.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The values of a weight, row-major: those that the adapter has in its place, or `W + scale * B A` where it has
    /// a pair for it.
    ///
    /// # Errors
    /// What the model's files say of the weight; [`EngineError::Stopped`].
    pub fn values(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, EngineError> {
        self.watch.check_stop()?;
        let mut values = match self.replaced.get(name) {
            Some(values) => values.to_vec(),
            None => self.base.tensor(&self.name_in_base(name), shape)?,
        };
        if let Some(module) = self.modules.get(name) {
            add_pair(&mut values, module);
        }
        self.base.release_memory();
        self.written += values.len() as u64;
        self.watch.tell(self.written, self.total);
        Ok(values)
    }

    /// An output projection that was tied is the embedding.
    fn name_in_base(&self, name: &str) -> String {
        match self.base.config.tie_word_embeddings && name == Weight::Head.name() {
            true => Weight::Embedding.name(),
            false => name.to_owned(),
        }
    }
}

fn pairs<'a>(adapter: &'a SavedAdapter, config: &ModelConfig) -> HashMap<String, &'a LoraModule> {
    let mut modules = HashMap::new();
    for layer in 0..config.num_hidden_layers {
        for projection in Projection::ALL {
            if let Some(module) = adapter.pairs.module(layer, projection) {
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
