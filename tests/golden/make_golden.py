#!/usr/bin/env python3
"""Remakes the golden values that the engine's tests compare with, by transformers and PEFT.

    make_golden.py FOLDER        needs torch 2.15, transformers 5.24, peft 0.21 and safetensors

Two tiny random Llama models (`tied` and `untied` output embedding) are run in f32 on one thread with
eager attention: the model itself, a LoRA adapter on it, AdamW steps of both, and other rotary scalings.
Every random number comes from torch's CPU generator with a fixed seed, so a second run gives the
same files.
"""
import json
import os
import sys
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

import peft
import torch
import transformers
from safetensors.torch import save_file

RANK, ALPHA = 4, 8
PROJECTIONS = [f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")]
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
MAX_GRAD_NORM = 1.0
ROPES = {
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64},
    "linear": {"rope_type": "linear", "factor": 4.0},
}


def base_model(tied, rope=None):
    """A model whose weights are large enough that a wrong mask, norm or rotation shows."""
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=tied,
        rope_parameters={**(rope or {"rope_type": "default"}), "rope_theta": 10000.0}, use_cache=False,
        bos_token_id=1, eos_token_id=2, pad_token_id=0, attn_implementation="eager")
    model = transformers.LlamaForCausalLM(config).float()
    random = torch.Generator().manual_seed(1234)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=random)
            if "norm" in name:
                weight.copy_(1.0 + 0.2 * noise)
            else:
                weight.copy_(noise * (0.5 if "embed" in name else 0.15))
    return model


def with_adapter(model, **options):
    """The model with a random LoRA adapter on every projection (B is not zero, so all gradients show)."""
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
                             target_modules=PROJECTIONS, **options)
    model = peft.get_peft_model(model, config)
    random = torch.Generator().manual_seed(99)
    with torch.no_grad():
        for _, weight in sorted(trainable(model).items()):
            weight.copy_(0.1 * torch.randn(weight.shape, generator=random))
    return model


def batch():
    """Two rows: one with a prompt that has no label, one padded on the right."""
    ids = torch.randint(3, 128, (2, 16), generator=torch.Generator().manual_seed(42))
    ids[1, 12:] = 0
    mask = torch.ones_like(ids)
    mask[1, 12:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[0, :5] = -100
    labels[1, :3] = -100
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def trainable(model):
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def save(path, tensors):
    """PEFT's own names in a running model carry `.default`, which its files leave out."""
    save_file({name.replace(".default", ""): tensor.detach().clone().contiguous()
               for name, tensor in tensors.items()}, path)


def losses_and_gradients(model, data, path):
    output = model(**data)
    output.loss.backward()
    gradients = {f"grad.{name}": weight.grad for name, weight in trainable(model).items()}
    save(path, {"logits": output.logits, **gradients})
    return output


def decay_groups(model):
    """Weights in two groups, as transformers' Trainer makes them: norms and biases do not decay."""
    decaying = set(transformers.Trainer.get_decay_parameter_names(None, model))
    weights = trainable(model).items()
    return [{"params": [weight for name, weight in weights if name in decaying]},
            {"params": [weight for name, weight in weights if name not in decaying], "weight_decay": 0.0}]


def train(model, data, steps, keep, path):
    """AdamW with clipping; writes the weights after each step of `keep` and returns what was logged."""
    weights = trainable(model)
    optimizer = torch.optim.AdamW(decay_groups(model), **ADAMW)
    log = []
    for step in range(1, steps + 1):
        loss = model(**data).loss
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(list(weights.values()), MAX_GRAD_NORM)
        optimizer.step()
        log.append({"step": step, "loss_before": loss.item(), "grad_norm_before_clip": norm.item()})
        if step in keep:
            save(path(step), weights)
    return log


def greedy(model, ids, count):
    for _ in range(count):
        ids = torch.cat([ids, model(input_ids=ids).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    return ids[0, -count:].tolist()


def older_config(folder):
    """The same config as transformers 4 wrote it."""
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config.update(rope_theta=rope["rope_theta"], rope_scaling=None, torch_dtype=config.pop("dtype"),
                  transformers_version="4.57.0")
    (folder / "config_v4.json").write_text(json.dumps(config, indent=2))


def variant(folder, tied, data):
    model = base_model(tied)
    model.save_pretrained(folder)
    older_config(folder)
    facts = {}

    output = losses_and_gradients(model, data, folder / "full.safetensors")
    exact_model = base_model(tied).double()
    exact = exact_model(**data)
    exact.loss.backward()
    pairs = list(zip(model.parameters(), exact_model.parameters()))
    facts["full_loss"] = output.loss.item()
    facts["full_grad_norm"] = torch.stack([weight.grad.norm() for weight in model.parameters()]).norm().item()
    facts["full_loss_f64"] = exact.loss.item()
    facts["f32_vs_f64_max_abs"] = {
        "logits": (output.logits - exact.logits).abs().max().item(),
        "grads": max((weight.grad - reference.grad).abs().max().item() for weight, reference in pairs)}
    facts["full_adamw"] = train(base_model(tied), data, 5, {5}, lambda step: folder / f"full_step{step}.safetensors")

    adapted = with_adapter(base_model(tied))
    adapted.save_pretrained(folder / "adapter")
    output = losses_and_gradients(adapted, data, folder / "lora.safetensors")
    facts["lora_loss"] = output.loss.item()
    facts["lora_adamw"] = train(with_adapter(base_model(tied)), data, 20, {1, 5, 20},
                                lambda step: folder / f"lora_step{step}.safetensors")
    with torch.no_grad():
        merged = with_adapter(base_model(tied)).merge_and_unload()(**data)
        stabilised = with_adapter(base_model(tied), use_rslora=True)(**data)
        facts["merged_vs_lora_logits_max_abs"] = (merged.logits - output.logits).abs().max().item()
        save(folder / "rslora_logits.safetensors", {"logits": stabilised.logits})
        facts["rslora_loss"] = stabilised.loss.item()
        facts["greedy_from_first_8_of_row_0"] = greedy(model, data["input_ids"][:1, :8], 16)
        facts["rope"] = {}
        for name, rope in ROPES.items():
            scaled_model = base_model(tied, rope)
            scaled = scaled_model(**data)
            save(folder / f"rope_{name}_logits.safetensors", {"logits": scaled.logits})
            facts["rope"][name] = {"rope_scaling": rope, "loss": scaled.loss.item(),
                                   "inv_freq": scaled_model.model.rotary_emb.inv_freq.tolist()}
    facts["default_inv_freq"] = model.model.rotary_emb.inv_freq.tolist()
    return facts


def main():
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    data = batch()
    meta = {
        "versions": {module.__name__: module.__version__ for module in (torch, transformers, peft)},
        **{name: tensor.tolist() for name, tensor in data.items()},
        "lora": {"r": RANK, "alpha": ALPHA, "scaling": ALPHA / RANK, "targets": PROJECTIONS},
        "adamw": ADAMW, "clip": MAX_GRAD_NORM, "variants": {}}
    for name, tied in (("tied", True), ("untied", False)):
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        meta["variants"][name] = variant(folder, tied, data)
    (out / "meta.json").write_text(json.dumps(meta, indent=1))


if __name__ == "__main__":
    main()
