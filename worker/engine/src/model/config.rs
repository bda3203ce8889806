//! What a model's `config.json` (or GGUF header) says about its shape.

use crate::EngineError;
use crate::ops::attention::Heads;

/// Widest head that the kernels of attention have room for.
pub const MAX_HEAD_DIM: usize = 256;

/// Most decoder layers of a model.
pub const MAX_LAYERS: usize = 1000;

/// Widest residual stream and feed-forward layer of a model.
const MAX_WIDTH: usize = 1 << 20;

/// Most heads of a layer.
const MAX_HEADS: usize = 1 << 14;

/// Most tokens that a model knows.
const MAX_VOCABULARY: usize = 1 << 24;

/// Shape, constants and features of a Llama-family model; names as in Hugging Face's `config.json` where it has them.
///
/// What sets the architectures apart is here as data: nothing that computes asks for the architecture's name.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// By what name the model is known.
    pub architecture: Architecture,
    /// Number of tokens that the model knows.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Number of decoder layers.
    pub num_hidden_layers: usize,
    /// Number of query heads.
    pub num_attention_heads: usize,
    /// Number of key and value heads; divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// Width of one head; even, at most 256.
    pub head_dim: usize,
    /// Longest context that the model was made for, in tokens.
    pub max_position_embeddings: usize,
    /// Added to the mean square in RMSNorm.
    pub rms_norm_eps: f32,
    /// Base of the rotary embedding's frequencies.
    pub rope_theta: f64,
    /// How rotary frequencies are stretched for longer contexts.
    pub rope_scaling: RopeScaling,
    /// Whether the output projection is the embedding matrix itself.
    pub tie_word_embeddings: bool,
    /// The projections that add a bias to their output.
    pub biased: Vec<Projection>,
    /// Whether every head's queries and keys are normalised (RMSNorm over the head) before they are turned.
    pub qk_norm: bool,
    /// The layers whose tokens see only the keys near them, if there are any.
    pub sliding_window: Option<SlidingWindow>,
}

/// The names by which models of this family are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama, and what is computed as it is: SmolLM, TinyLlama, Yi, …
    Llama,
    /// Mistral: Llama with a sliding window.
    Mistral,
    /// Qwen2 and Qwen2.5: biases on queries, keys and values.
    Qwen2,
    /// Qwen3: normalised queries and keys.
    Qwen3,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Architecture; 4] = [Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3];

    /// What stands under `architectures` in a `config.json`.
    pub fn class_name(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// What stands under `model_type` in a `config.json`.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }
}

/// A window of keys that goes along with the tokens of some layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlidingWindow {
    /// How many keys a token sees at most: its own and those right before it.
    pub tokens: usize,
    /// By layer, whether it has the window; the others see everything before.
    pub layers: Vec<bool>,
}

/// How rotary frequencies are stretched; fields as in Hugging Face's `rope_scaling` / `rope_parameters`.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Frequencies as they are.
    Default,
    /// All frequencies divided by `factor`.
    Linear {
        /// How much longer the context becomes.
        factor: f64,
    },
    /// Llama 3's: low frequencies divided by `factor`, high ones kept, a smooth ramp between.
    Llama3 {
        /// How much longer the context becomes.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are stretched in full.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context that the model was first trained for, in tokens.
        original_max_position_embeddings: usize,
    },
    /// YaRN: low frequencies divided by `factor`, high ones kept, a ramp over the features between; cosines and
    /// sines multiplied by `attention_factor`.
    Yarn {
        /// How much longer the context becomes.
        factor: f64,
        /// Context that the model was first trained for, in tokens.
        original_max_position_embeddings: usize,
        /// Frequencies that turn more often than this in the first context are kept.
        beta_fast: f64,
        /// Frequencies that turn less often than this in the first context are stretched in full.
        beta_slow: f64,
        /// Whether the ramp begins and ends at whole features.
        truncate: bool,
        /// What queries and keys are multiplied with.
        attention_factor: f64,
    },
    /// Each frequency divided by a number of its own, as GGUF files of Llama 3 hold them.
    Divisors(Vec<f32>),
}

impl RopeScaling {
    /// YaRN's `beta_fast` where it is not given.
    pub const BETA_FAST: f64 = 32.0;
    /// YaRN's `beta_slow` where it is not given.
    pub const BETA_SLOW: f64 = 1.0;

    /// YaRN's factor of queries and keys for a context that is `factor` times as long.
    pub fn yarn_attention(factor: f64, mscale: f64) -> f64 {
        match factor > 1.0 {
            true => 0.1 * mscale * factor.ln() + 1.0,
            false => 1.0,
        }
    }
}

/// The linear layers of a decoder layer, each of which may carry a LoRA adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Projection {
    /// Queries of the attention.
    Q,
    /// Keys of the attention.
    K,
    /// Values of the attention.
    V,
    /// The attention's output.
    O,
    /// The feed-forward layer's gate.
    Gate,
    /// The feed-forward layer's input.
    Up,
    /// The feed-forward layer's output.
    Down,
}

impl Projection {
    /// All of them, in the order in which a layer runs them.
    pub const ALL: [Projection; 7] = [
        Projection::Q,
        Projection::K,
        Projection::V,
        Projection::O,
        Projection::Gate,
        Projection::Up,
        Projection::Down,
    ];

    /// The module's name within a layer, as Hugging Face writes it: `self_attn.q_proj`.
    pub fn module_name(self) -> &'static str {
        match self {
            Projection::Q => "self_attn.q_proj",
            Projection::K => "self_attn.k_proj",
            Projection::V => "self_attn.v_proj",
            Projection::O => "self_attn.o_proj",
            Projection::Gate => "mlp.gate_proj",
            Projection::Up => "mlp.up_proj",
            Projection::Down => "mlp.down_proj",
        }
    }

    /// The last part of the name, which PEFT's `target_modules` match: `q_proj`.
    pub fn short_name(self) -> &'static str {
        let name = self.module_name();
        name.rsplit('.').next().unwrap_or(name)
    }

    /// The full name in layer `layer`: `model.layers.3.self_attn.q_proj`.
    pub fn full_name(self, layer: usize) -> String {
        format!("model.layers.{layer}.{}", self.module_name())
    }
}

impl ModelConfig {
    /// Output and input width of a projection's weight, which is stored as `[out, in]`.
    pub fn projection_shape(&self, projection: Projection) -> [usize; 2] {
        let (hidden, queries, keys) =
            (self.hidden_size, self.query_width(), self.key_value_width());
        match projection {
            Projection::Q => [queries, hidden],
            Projection::K | Projection::V => [keys, hidden],
            Projection::O => [hidden, queries],
            Projection::Gate | Projection::Up => [self.intermediate_size, hidden],
            Projection::Down => [hidden, self.intermediate_size],
        }
    }

    /// Width of all query heads together.
    pub fn query_width(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Width of all key heads together, and of all value heads.
    pub fn key_value_width(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }

    /// Whether a projection adds a bias.
    pub fn is_biased(&self, projection: Projection) -> bool {
        self.biased.contains(&projection)
    }

    /// How many keys a token sees at most in a layer; none where it sees everything before.
    pub fn window(&self, layer: usize) -> Option<usize> {
        let window = self.sliding_window.as_ref()?;
        window.layers[layer].then_some(window.tokens)
    }

    /// Number and width of the attention's heads.
    pub(super) fn heads(&self) -> Heads {
        Heads {
            queries: self.num_attention_heads,
            keys: self.num_key_value_heads,
            dim: self.head_dim,
        }
    }

    /// Number of weights, tied ones counted once.
    pub fn parameter_count(&self) -> u64 {
        let projections: usize = Projection::ALL
            .iter()
            .map(|&p| self.projection_shape(p).iter().product::<usize>())
            .sum();
        let biases: usize = self
            .biased
            .iter()
            .map(|&p| self.projection_shape(p)[0])
            .sum();
        let head_norms = if self.qk_norm { 2 * self.head_dim } else { 0 };
        let layer = projections + biases + head_norms + 2 * self.hidden_size;
        let embeddings = if self.tie_word_embeddings { 1 } else { 2 };
        let total = self.num_hidden_layers * layer
            + embeddings * self.vocab_size * self.hidden_size
            + self.hidden_size;
        total as u64
    }

    /// That a model has no more layers than any real one; asked before anything is made for each layer.
    ///
    /// # Errors
    /// What is wrong, with the name of the field.
    pub(crate) fn check_layers(num_hidden_layers: usize) -> Result<(), String> {
        match num_hidden_layers <= MAX_LAYERS {
            true => Ok(()),
            false => Err(format!(
                "num_hidden_layers is {num_hidden_layers} (at most {MAX_LAYERS})"
            )),
        }
    }

    /// The first number that is above what any real model has.
    fn above_bounds(&self) -> Option<String> {
        let bounds = [
            ("num_hidden_layers", self.num_hidden_layers, MAX_LAYERS),
            ("vocab_size", self.vocab_size, MAX_VOCABULARY),
            ("hidden_size", self.hidden_size, MAX_WIDTH),
            ("intermediate_size", self.intermediate_size, MAX_WIDTH),
            ("num_attention_heads", self.num_attention_heads, MAX_HEADS),
            ("num_key_value_heads", self.num_key_value_heads, MAX_HEADS),
            ("head_dim", self.head_dim, MAX_HEAD_DIM),
        ];
        let (name, value, most) = bounds.into_iter().find(|(_, value, most)| value > most)?;
        Some(format!("a {name} of {value} (at most {most})"))
    }

    /// Checks that the numbers fit together, and that none is beyond all real models: what is sized by them later stays
    /// within bounds.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] naming the first one that does not.
    pub fn validate(&self) -> Result<(), EngineError> {
        let problem = if let Some(problem) = self.above_bounds() {
            problem
        } else if [
            self.vocab_size,
            self.hidden_size,
            self.intermediate_size,
            self.num_hidden_layers,
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim,
            self.max_position_embeddings,
        ]
        .contains(&0)
        {
            "a model with a width or count of zero".to_owned()
        } else if !self
            .num_attention_heads
            .is_multiple_of(self.num_key_value_heads)
        {
            format!(
                "{} query heads over {} key/value heads",
                self.num_attention_heads, self.num_key_value_heads
            )
        } else if !self.head_dim.is_multiple_of(2) {
            format!("an odd head_dim of {}", self.head_dim)
        } else if !(self.rope_theta.is_finite() && self.rope_theta > 0.0) {
            format!("a rope_theta of {}", self.rope_theta)
        } else if let Some(window) = &self.sliding_window
            && (window.tokens == 0 || window.layers.len() != self.num_hidden_layers)
        {
            format!(
                "a sliding window of {} tokens over {} of {} layers",
                window.tokens,
                window.layers.len(),
                self.num_hidden_layers
            )
        } else if !(self.rms_norm_eps.is_finite() && self.rms_norm_eps >= 0.0) {
            format!("an rms_norm_eps of {}", self.rms_norm_eps)
        } else {
            return Ok(());
        };
        Err(EngineError::Unsupported(problem))
    }
}
