//! A tiny random Llama in the Hugging Face form, made on the spot: two layers, byte-level tokens, ChatML.

use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Value, json};
use tempfile::TempDir;

const HIDDEN: usize = 64;
const INTERMEDIATE: usize = 128;
const LAYERS: usize = 2;
const HEADS: usize = 4;
const KEY_VALUE_HEADS: usize = 2;
const SPECIAL_TOKENS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const VOCABULARY: usize = 256 + SPECIAL_TOKENS.len();

/// The id under which jobs name the model.
pub const TINY_MODEL_ID: &str = "yard/tiny";

const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + \
    message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// A models folder that holds the tiny model.
pub struct TinyModel {
    folder: TempDir,
}

impl TinyModel {
    /// Makes the model; the same weights every time.
    pub fn create() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let model = folder.path().join(TINY_MODEL_ID);
        std::fs::create_dir_all(&model).expect("the folder can be made");
        write_json(&model.join("config.json"), &config());
        write_json(&model.join("tokenizer.json"), &tokenizer());
        write_json(&model.join("tokenizer_config.json"), &tokenizer_config());
        write_weights(&model.join("model.safetensors"));
        Self { folder }
    }

    /// The folder to give a worker as MODELS_DIR.
    pub fn models_dir(&self) -> &Path {
        self.folder.path()
    }

    /// The model's own folder.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join(TINY_MODEL_ID)
    }
}

/// The names of the adapter's tensors when LoRA goes on every linear layer, as PEFT calls them, sorted.
pub fn adapter_keys() -> Vec<String> {
    let mut keys = Vec::new();
    for layer in 0..LAYERS {
        for linear in [
            "mlp.down_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
            "self_attn.k_proj",
            "self_attn.o_proj",
            "self_attn.q_proj",
            "self_attn.v_proj",
        ] {
            for side in ["lora_A", "lora_B"] {
                keys.push(format!(
                    "base_model.model.model.layers.{layer}.{linear}.{side}.weight"
                ));
            }
        }
    }
    keys
}

fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "attention_bias": false, "mlp_bias": false, "hidden_act": "silu",
        "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS, "head_dim": HIDDEN / HEADS,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "rope_scaling": null, "tie_word_embeddings": true, "vocab_size": VOCABULARY,
        "bos_token_id": 257, "eos_token_id": 258, "pad_token_id": 258,
        "torch_dtype": "float32", "transformers_version": "4.42.3"
    })
}

/// Byte-level BPE without merges: every byte is a token, in the usual GPT-2 alphabet.
fn tokenizer() -> Value {
    let mut vocabulary = serde_json::Map::new();
    for (id, letter) in byte_alphabet().into_iter().enumerate() {
        vocabulary.insert(letter.to_string(), json!(id));
    }
    let added: Vec<Value> = (256..)
        .zip(SPECIAL_TOKENS)
        .map(|(id, content)| {
            vocabulary.insert(content.to_owned(), json!(id));
            json!({"id": id, "content": content, "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false, "special": true})
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                            "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
                  "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocabulary, "merges": []}
    })
}

fn tokenizer_config() -> Value {
    json!({
        "add_prefix_space": false, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>", "unk_token": "<|endoftext|>", "chat_template": CHATML,
        "clean_up_tokenization_spaces": false, "model_max_length": 2048,
        "tokenizer_class": "GPT2Tokenizer"
    })
}

/// GPT-2's printable stand-in for each byte: printable ones stand for themselves, others follow from U+0100.
fn byte_alphabet() -> Vec<char> {
    let mut next_stand_in = 256;
    (0..=255_u32)
        .map(|byte| {
            let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            let code = if printable {
                byte
            } else {
                next_stand_in += 1;
                next_stand_in - 1
            };
            char::from_u32(code).expect("below the surrogates")
        })
        .collect()
}

fn write_weights(path: &Path) {
    let mut random = Random(0x5eed);
    let key_value = HIDDEN / HEADS * KEY_VALUE_HEADS;
    let mut tensors = vec![
        random.tensor(
            "model.embed_tokens.weight".to_owned(),
            &[VOCABULARY, HIDDEN],
            0.2,
        ),
        ones("model.norm.weight".to_owned()),
    ];
    for layer in 0..LAYERS {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        tensors.push(ones(name("input_layernorm")));
        tensors.push(ones(name("post_attention_layernorm")));
        for (part, rows, columns) in [
            ("self_attn.q_proj", HIDDEN, HIDDEN),
            ("self_attn.k_proj", key_value, HIDDEN),
            ("self_attn.v_proj", key_value, HIDDEN),
            ("self_attn.o_proj", HIDDEN, HIDDEN),
            ("mlp.gate_proj", INTERMEDIATE, HIDDEN),
            ("mlp.up_proj", INTERMEDIATE, HIDDEN),
            ("mlp.down_proj", HIDDEN, INTERMEDIATE),
        ] {
            tensors.push(random.tensor(name(part), &[rows, columns], 0.1));
        }
    }
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes).expect("shape and bytes fit");
        (name.clone(), view)
    });
    serialize_to_file(views, None, path).expect("the weights can be written");
}

type Tensor = (String, Vec<usize>, Vec<u8>);

fn ones(name: String) -> Tensor {
    (name, vec![HIDDEN], 1.0_f32.to_le_bytes().repeat(HIDDEN))
}

/// A small generator (xorshift), so that the weights are the same everywhere.
struct Random(u64);

impl Random {
    fn tensor(&mut self, name: String, shape: &[usize], spread: f32) -> Tensor {
        let values = shape.iter().product();
        let bytes = (0..values)
            .flat_map(|_| (self.unit() * 2.0 * spread - spread).to_le_bytes())
            .collect();
        (name, shape.to_vec(), bytes)
    }

    /// A number from 0 to 1.
    fn unit(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1_u64 << 24) as f32
    }
}

fn write_json(path: &Path, value: &Value) {
    std::fs::write(path, value.to_string()).expect("the file can be written");
}
