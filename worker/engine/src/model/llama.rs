//! A Llama model's weights, packed for the CPU, frozen unless they are trained in full.

use std::cell::RefCell;

use crate::{
    EngineError,
    device::WeightMatrix,
    ops::{attention::Heads, rotary::Rotary},
    weights::ModelFiles,
};

use super::{
    ModelConfig, Projection,
    holding::{Held, Holding, MatrixKind},
};

/// A base model, ready to run.
#[derive(Debug)]
pub struct Llama {
    config: ModelConfig,
    pub(super) rotary: Rotary,
    pub(super) embedding: WeightMatrix,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Vec<f32>,
    /// The output projection, where it is not the embedding itself.
    pub(super) head: Option<WeightMatrix>,
}

/// One decoder layer.
#[derive(Debug)]
pub(super) struct Layer {
    pub attention_norm: Vec<f32>,
    pub mlp_norm: Vec<f32>,
    /// By `Projection as usize`.
    pub projections: [WeightMatrix; 7],
    /// By `Projection as usize`; none where the projection has no bias.
    pub biases: [Option<Vec<f32>>; 7],
    /// The norm of every query head, where heads are normalised.
    pub query_norm: Option<Vec<f32>>,
    /// The norm of every key head, where heads are normalised.
    pub key_norm: Option<Vec<f32>>,
}

/// One weight of a model, by its place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    Embedding,
    AttentionNorm(usize),
    MlpNorm(usize),
    Projection(usize, Projection),
    Bias(usize, Projection),
    QueryNorm(usize),
    KeyNorm(usize),
    Norm,
    Head,
}

impl Weight {
    /// All weights of a model; a tied output projection is none of its own.
    pub(crate) fn all(config: &ModelConfig) -> Vec<Weight> {
        let mut all = vec![Weight::Embedding];
        for layer in 0..config.num_hidden_layers {
            all.push(Weight::AttentionNorm(layer));
            for p in Projection::ALL {
                all.push(Weight::Projection(layer, p));
                all.extend(config.is_biased(p).then_some(Weight::Bias(layer, p)));
            }
            if config.qk_norm {
                all.extend([Weight::QueryNorm(layer), Weight::KeyNorm(layer)]);
            }
            all.push(Weight::MlpNorm(layer));
        }
        all.push(Weight::Norm);
        if !config.tie_word_embeddings {
            all.push(Weight::Head);
        }
        all
    }

    /// Its Hugging Face name.
    pub(crate) fn name(self) -> String {
        match self {
            Weight::Embedding => "model.embed_tokens.weight".to_owned(),
            Weight::AttentionNorm(layer) => format!("model.layers.{layer}.input_layernorm.weight"),
            Weight::MlpNorm(layer) => {
                format!("model.layers.{layer}.post_attention_layernorm.weight")
            }
            Weight::Projection(layer, projection) => {
                format!("{}.weight", projection.full_name(layer))
            }
            Weight::Bias(layer, projection) => format!("{}.bias", projection.full_name(layer)),
            Weight::QueryNorm(layer) => format!("model.layers.{layer}.self_attn.q_norm.weight"),
            Weight::KeyNorm(layer) => format!("model.layers.{layer}.self_attn.k_norm.weight"),
            Weight::Norm => "model.norm.weight".to_owned(),
            Weight::Head => "lm_head.weight".to_owned(),
        }
    }

    /// The module that it belongs to: its name without the last part.
    pub(crate) fn module(self) -> String {
        let name = self.name();
        name.rsplit_once('.')
            .map(|(module, _)| module.to_owned())
            .unwrap_or(name)
    }

    /// Its shape as stored: one dimension for norms and biases, else `[out, in]`.
    pub(crate) fn shape(self, config: &ModelConfig) -> Vec<usize> {
        match self {
            Weight::Embedding | Weight::Head => vec![config.vocab_size, config.hidden_size],
            Weight::AttentionNorm(_) | Weight::MlpNorm(_) | Weight::Norm => {
                vec![config.hidden_size]
            }
            Weight::Projection(_, projection) => config.projection_shape(projection).to_vec(),
            Weight::Bias(_, projection) => vec![config.projection_shape(projection)[0]],
            Weight::QueryNorm(_) | Weight::KeyNorm(_) => vec![config.head_dim],
        }
    }
}

impl Llama {
    /// Reads all weights of a model and holds them in f32.
    ///
    /// # Errors
    /// What [`Llama::from_tensors`] says, and what the files say of their tensors.
    pub fn load(files: &ModelFiles) -> Result<Self, EngineError> {
        Self::load_as(files, Holding::Unpacked)
    }

    /// Reads all weights of a model; matrices are held as `holding` says.
    ///
    /// # Errors
    /// What [`Llama::from_tensors`] says, and what the files say of their tensors;
    /// [`EngineError::Unsupported`] naming a weight that cannot be quantised.
    pub fn load_as(files: &ModelFiles, holding: Holding) -> Result<Self, EngineError> {
        Self::from_weights(
            files.config.clone(),
            |name, shape, kind| holding.matrix(files, kind, name, shape),
            |name, shape| files.tensor(name, shape),
        )
    }

    /// Packs all weights of a model in f32; `tensor` gives each by Hugging Face name and shape, row-major.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] for a configuration that contradicts itself, [`EngineError::OutOfMemory`], and
    /// whatever `tensor` answers.
    pub fn from_tensors(
        config: ModelConfig,
        tensor: impl FnMut(&str, &[usize]) -> Result<Vec<f32>, EngineError>,
    ) -> Result<Self, EngineError> {
        let tensor = RefCell::new(tensor);
        let get = |name: &str, shape: &[usize]| (tensor.borrow_mut())(name, shape);
        Self::from_weights(
            config,
            |name, shape, _| WeightMatrix::from_f32(&get(name, &shape)?, shape[0], shape[1]),
            get,
        )
    }

    /// All weights of a model: `matrix` and `vector` give each by Hugging Face name and shape.
    fn from_weights(
        config: ModelConfig,
        mut matrix: impl FnMut(&str, [usize; 2], MatrixKind) -> Result<WeightMatrix, EngineError>,
        mut vector: impl FnMut(&str, &[usize]) -> Result<Vec<f32>, EngineError>,
    ) -> Result<Self, EngineError> {
        config.validate()?;
        let mut values = |weight: Weight| vector(&weight.name(), &weight.shape(&config));
        let mut matrix = |weight: Weight, kind| {
            let shape = weight.shape(&config);
            matrix(&weight.name(), [shape[0], shape[1]], kind)
        };
        let embedding = matrix(Weight::Embedding, MatrixKind::Embedding)?;
        let mut layers = Vec::with_capacity(config.num_hidden_layers);
        for layer in 0..config.num_hidden_layers {
            let mut projection =
                |p: Projection| matrix(Weight::Projection(layer, p), MatrixKind::Projection);
            let [q, k, v, o, gate, up, down] = Projection::ALL;
            let projections = [
                projection(q)?,
                projection(k)?,
                projection(v)?,
                projection(o)?,
                projection(gate)?,
                projection(up)?,
                projection(down)?,
            ];
            let mut biases = [const { None }; 7];
            for &p in &config.biased {
                biases[p as usize] = Some(values(Weight::Bias(layer, p))?);
            }
            let mut head_norm = |weight| config.qk_norm.then(|| values(weight)).transpose();
            layers.push(Layer {
                query_norm: head_norm(Weight::QueryNorm(layer))?,
                key_norm: head_norm(Weight::KeyNorm(layer))?,
                attention_norm: values(Weight::AttentionNorm(layer))?,
                mlp_norm: values(Weight::MlpNorm(layer))?,
                projections,
                biases,
            });
        }
        let norm = values(Weight::Norm)?;
        let head = match config.tie_word_embeddings {
            true => None,
            false => Some(matrix(Weight::Head, MatrixKind::Embedding)?),
        };
        Ok(Self {
            rotary: Rotary::new(&config),
            config,
            embedding,
            layers,
            norm,
            head,
        })
    }

    /// The model's shape and constants.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// What its matrices take up in memory.
    pub fn held(&self) -> Held {
        let projections = self.layers.iter().flat_map(|layer| &layer.projections);
        let matrices = std::iter::once(&self.embedding).chain(projections);
        Held::of(matrices.chain(&self.head))
    }

    /// The output projection.
    pub(super) fn head(&self) -> &WeightMatrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// One projection's weight.
    pub(super) fn projection(&self, layer: usize, projection: Projection) -> &WeightMatrix {
        &self.layers[layer].projections[projection as usize]
    }

    /// Number and width of the attention's heads.
    pub(super) fn heads(&self) -> Heads {
        self.config.heads()
    }

    /// Makes sure that a weight can take any values: it is held in f32, and the embedding and an output projection
    /// that was tied to it are two of their own.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`].
    pub(crate) fn unpack(&mut self, weight: Weight) -> Result<(), EngineError> {
        let shape = weight.shape(&self.config);
        let unpacked = |values: Vec<f32>| WeightMatrix::from_f32(&values, shape[0], shape[1]);
        match weight {
            Weight::Embedding => {
                let values = self.get(weight);
                if self.head.is_none() {
                    self.head = Some(std::mem::replace(&mut self.embedding, unpacked(values)?));
                } else {
                    self.embedding = unpacked(values)?;
                }
            }
            Weight::Head => self.head = Some(unpacked(self.get(weight))?),
            Weight::Projection(layer, p) => {
                self.layers[layer].projections[p as usize] = unpacked(self.get(weight))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Replaces one weight by row-major values of its shape.
    pub(crate) fn set(&mut self, weight: Weight, values: &[f32]) {
        let set = |vector: Option<&mut Vec<f32>>| {
            if let Some(vector) = vector {
                vector.copy_from_slice(values);
            }
        };
        match weight {
            Weight::Embedding => self.embedding.repack(values),
            Weight::AttentionNorm(layer) => set(Some(&mut self.layers[layer].attention_norm)),
            Weight::MlpNorm(layer) => set(Some(&mut self.layers[layer].mlp_norm)),
            Weight::Projection(layer, p) => {
                self.layers[layer].projections[p as usize].repack(values)
            }
            Weight::Bias(layer, p) => set(self.layers[layer].biases[p as usize].as_mut()),
            Weight::QueryNorm(layer) => set(self.layers[layer].query_norm.as_mut()),
            Weight::KeyNorm(layer) => set(self.layers[layer].key_norm.as_mut()),
            Weight::Norm => set(Some(&mut self.norm)),
            Weight::Head => {
                if let Some(head) = &mut self.head {
                    head.repack(values);
                }
            }
        }
    }

    /// One weight's values, row-major.
    pub(super) fn get(&self, weight: Weight) -> Vec<f32> {
        let vector = |values: &Option<Vec<f32>>| values.clone().unwrap_or_default();
        let matrix =
            |panels: &WeightMatrix| (0..panels.rows()).flat_map(|row| panels.row(row)).collect();
        match weight {
            Weight::Embedding => matrix(&self.embedding),
            Weight::AttentionNorm(layer) => self.layers[layer].attention_norm.clone(),
            Weight::MlpNorm(layer) => self.layers[layer].mlp_norm.clone(),
            Weight::Projection(layer, p) => matrix(self.projection(layer, p)),
            Weight::Bias(layer, p) => vector(&self.layers[layer].biases[p as usize]),
            Weight::QueryNorm(layer) => vector(&self.layers[layer].query_norm),
            Weight::KeyNorm(layer) => vector(&self.layers[layer].key_norm),
            Weight::Norm => self.norm.clone(),
            Weight::Head => matrix(self.head()),
        }
    }
}
