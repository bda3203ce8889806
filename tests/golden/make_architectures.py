#!/usr/bin/env python3
"""Makes the golden values of every architecture that the engine reads, by transformers and PEFT, and of rotary scalings.

    make_architectures.py FOLDER        as make_golden.py; FOLDER is `architectures` beside this file

Tiny random models of odd shapes, run in f32 on one thread with eager attention: logits, loss, every gradient, the
gradients of a LoRA adapter, AdamW steps of both, and a greedy continuation. Sequences are longer than windows and than
the engine's blocks of 32 tokens. Weights are stored in F32, F16 and BF16 in one file, and are exact in their type.
"""
import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

from make_golden import greedy, save, train, trainable, with_adapter

VOCABULARY = 64
LENGTHS = (70, 41)
GREEDY = 40

# What sets each model apart; the others fill in transformers' defaults.
MODELS = {
    "llama": transformers.LlamaConfig(
        hidden_size=20, intermediate_size=28, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        attention_bias=True, mlp_bias=True, tie_word_embeddings=False,
        rope_parameters={"rope_type": "llama3", "rope_theta": 5e3, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 64}),
    "mistral": transformers.MistralConfig(
        hidden_size=30, intermediate_size=44, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
        head_dim=12, sliding_window=7, tie_word_embeddings=False, rope_parameters={"rope_theta": 1e6}),
    "qwen2": transformers.Qwen2Config(
        hidden_size=32, intermediate_size=52, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=1,
        use_sliding_window=True, sliding_window=40, max_window_layers=1, tie_word_embeddings=True,
        rope_parameters={"rope_type": "yarn", "rope_theta": 1e3, "factor": 4.0,
                         "original_max_position_embeddings": 32}),
    "qwen3": transformers.Qwen3Config(
        hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=14, tie_word_embeddings=True,
        rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "beta_fast": 4.0, "beta_slow": 0.5,
                         "mscale": 0.8, "mscale_all_dim": 0.3, "truncate": False,
                         "original_max_position_embeddings": 40}),
}
# Rotary frequencies and attention factors for heads of 32 features.
ROPES = {
    "default": {"rope_theta": 1e6},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5},
    "llama3": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    "yarn": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768},
    "yarn with its own ramp": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "beta_fast": 20,
                               "beta_slow": 3, "truncate": False, "original_max_position_embeddings": 512},
    "yarn with an attention factor": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "attention_factor": 0.7,
                                      "original_max_position_embeddings": 4096},
    "yarn with both mscales": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "mscale": 0.707,
                               "mscale_all_dim": 1.1, "original_max_position_embeddings": 4096},
    "yarn whose factor is the ratio": {"rope_type": "yarn", "rope_theta": 1e4, "factor": None,
                                       "original_max_position_embeddings": 2048},
}
ROPE_POSITIONS = [0, 1, 77, 4097, 120000]


def stored_type(name):
    if "norm" in name or name.endswith("bias"):
        return torch.float32
    return torch.bfloat16 if "embed" in name or "head" in name else torch.float16


def base_model(config):
    """Weights that are exact in the type they are stored in, and large enough that a wrong mask or norm shows."""
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    random = torch.Generator().manual_seed(4321)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=random)
            if "norm" in name:
                noise = 1.0 + 0.2 * noise
            else:
                noise *= 0.5 if "embed" in name or "head" in name else 0.2
            weight.copy_(noise.to(stored_type(name)).float())
    return model


def batch():
    """Two rows of different length, padded on the right, the first tokens of each without a label."""
    random = torch.Generator().manual_seed(77)
    ids = torch.randint(3, VOCABULARY, (2, max(LENGTHS)), generator=random)
    mask = torch.ones_like(ids)
    for row, length in enumerate(LENGTHS):
        ids[row, length:] = 0
        mask[row, length:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :9] = -100
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def golden_of(model, data, prefix):
    output = model(**data)
    output.loss.backward()
    gradients = {f"{prefix}.grad.{name}": weight.grad for name, weight in trainable(model).items()}
    return output, gradients


def write_config(folder, config, name):
    fields = json.loads(config.to_json_string(use_diff=True))
    fields.update(architectures=[type(config).__name__.replace("Config", "ForCausalLM")])
    if name == "qwen2":
        # As transformers 4 wrote it.
        rope = fields.pop("rope_parameters")
        fields.update(rope_theta=rope.pop("rope_theta"), rope_scaling=rope, torch_dtype="float32")
        rope["type"] = rope.pop("rope_type")
        fields.pop("layer_types")
    (folder / "config.json").write_text(json.dumps(fields, indent=1, sort_keys=True) + "\n")


def architecture(folder, name, config, data):
    folder.mkdir(parents=True, exist_ok=True)
    config.update({"vocab_size": VOCABULARY, "max_position_embeddings": 256, "use_cache": False,
                   "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "rms_norm_eps": 1e-5})
    write_config(folder, config, name)
    model = base_model(config)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    save_file({key: value.to(stored_type(key)).contiguous() for key, value in model.state_dict().items()
               if key not in tied}, folder / "model.safetensors", metadata={"format": "pt"})

    full, full_gradients = golden_of(model, data, "full")
    adapted = with_adapter(base_model(config))
    weights = {f"adapter.{key}": value.detach().clone() for key, value in trainable(adapted).items()}
    lora, lora_gradients = golden_of(adapted, data, "lora")
    logits = full.logits[data["attention_mask"].bool()]
    save(folder / "golden.safetensors", {"logits": logits, **full_gradients, **lora_gradients, **weights})
    steps = {"full": train(base_model(config), data, 5, set(), None),
             "lora": train(with_adapter(base_model(config)), data, 5, set(), None)}
    with torch.no_grad():
        prompt = data["input_ids"][:1, :12]
        tokens = greedy(model, prompt, GREEDY)
        whole = torch.cat([prompt, torch.tensor([tokens])], dim=1)
        best = model(input_ids=whole).logits[0, 11:-1].topk(2).values
        assert (best[:, 0] - best[:, 1]).min() > 1e-3, "a greedy choice hangs on a rounding"
    return {"full_loss": full.loss.item(), "lora_loss": lora.loss.item(), "steps": steps, "greedy_from_12_of_row_0": tokens}


def rope_facts(rope):
    config = transformers.LlamaConfig(hidden_size=64, num_attention_heads=2, max_position_embeddings=8192,
                                      rope_parameters=dict(rope))
    rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    cos, sin = rotary(torch.zeros(1), torch.tensor([ROPE_POSITIONS]))
    return {"rope_parameters": rope, "inv_freq": rotary.inv_freq.tolist(),
            "attention_factor": rotary.attention_scaling, "cos": cos[0, :, :16].tolist(),
            "sin": sin[0, :, :16].tolist()}


def main():
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    data = batch()
    meta = {"versions": {module.__name__: module.__version__ for module in (torch, transformers)},
            "lengths": LENGTHS, **{name: tensor.tolist() for name, tensor in data.items()},
            "models": {name: architecture(out / name, name, config, data) for name, config in MODELS.items()}}
    (out / "meta.json").write_text(json.dumps(meta, separators=(",", ":")) + "\n")
    ropes = {"positions": ROPE_POSITIONS, "ropes": {name: rope_facts(rope) for name, rope in ROPES.items()}}
    (out / "ropes.json").write_text(json.dumps(ropes, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
