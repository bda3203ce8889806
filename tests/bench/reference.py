"""The reference in a process of its own: the same LoRA steps with transformers and PEFT.

Usage: reference.py MODEL_FOLDER DATA.jsonl JOB.json STEPS. Prints one JSON object: the loss and the seconds of every step.
"""

import json
import sys
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    model_folder, data, job, steps = sys.argv[1:]
    with open(job, encoding="utf-8") as f:
        job = json.load(f)
    torch.set_num_threads(job["threads"])
    torch.manual_seed(job["seed"])

    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    with open(data, encoding="utf-8") as f:
        texts = [json.loads(line)["text"] for line in f]
    ids = [tokenizer(text)["input_ids"][: job["max_length"]] for text in texts]
    assert all(len(row) == job["max_length"] for row in ids), "the data is meant to be dense"

    base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32, attn_implementation="sdpa")
    base.config.use_cache = False
    model = get_peft_model(base, LoraConfig(
        r=job["lora_r"], lora_alpha=job["lora_alpha"], lora_dropout=0.0, target_modules="all-linear",
        task_type="CAUSAL_LM"))
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=job["learning_rate"], weight_decay=0.0)

    losses, seconds = [], []
    for step in range(int(steps)):
        rows = [ids[(step * job["batch_size"] + i) % len(ids)] for i in range(job["batch_size"])]
        batch = torch.tensor(rows)
        begin = time.perf_counter()
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"losses": losses, "seconds": seconds}))


if __name__ == "__main__":
    main()
