"""The reference in a process of its own: the same steps with transformers, PEFT and torch.

Usage: reference.py MODEL_FOLDER DATA.jsonl JOB.json. The job says what: `adapter` or all weights, `compile`, `sort` rows by
length, `warmup` and timed `steps` of `batch_size` rows, in order and from the front again (no `steps`: one epoch).
Prints one JSON object: per timed step the loss, the seconds, and the tokens without padding.
With `gemm` in the job's place: the machine's f32 matrix products through torch, in 10^9 operations a second.
"""

import json
import statistics
import sys
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

IGNORED = -100


def texts(tokenizer, rows, job):
    """Rows of ids cut at `max_length`, every token a label."""
    ids = [tokenizer(row["text"])["input_ids"][: job["max_length"]] for row in rows]
    return [(row, list(row)) for row in ids]


def chats(tokenizer, rows, job):
    """Rendered chats; labels on answers and the token that ends them, found by rendering the chat's beginnings."""
    def render(messages, prompt):
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    examples = []
    for messages in (row["messages"] for row in rows):
        ids = render(messages, False)
        labels = [IGNORED] * len(ids)
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                begin, end = len(render(messages[:i], True)), len(render(messages[: i + 1], False)) - 1  # not its newline
                labels[begin:end] = ids[begin:end]
        examples.append((ids, labels))
    return examples


def padded(examples, pad):
    """The batch as a data collator makes it: all rows as long as the longest."""
    longest = max(len(ids) for ids, _ in examples)
    fill = lambda row, value: row + [value] * (longest - len(row))
    return {
        "input_ids": torch.tensor([fill(ids, pad) for ids, _ in examples]),
        "labels": torch.tensor([fill(labels, IGNORED) for _, labels in examples]),
        "attention_mask": torch.tensor([fill([1] * len(ids), 0) for ids, _ in examples]),
    }


def load(folder, job):
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    base.config.use_cache = False
    model = base
    if job["adapter"]:
        model = get_peft_model(base, LoraConfig(
            r=job["lora_r"], lora_alpha=job["lora_alpha"], lora_dropout=0.0, target_modules="all-linear",
            task_type="CAUSAL_LM"))
    model.train()
    return model


def train(folder, data, job):
    torch.set_num_threads(job["threads"])
    torch.manual_seed(job["seed"])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with open(data, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    is_chats = "messages" in rows[0]
    examples = (chats if is_chats else texts)(tokenizer, rows, job)
    if job["sort"]:
        examples.sort(key=lambda example: len(example[0]))
    size = job["batch_size"]
    batches = [examples[i : i + size] for i in range(0, len(examples), size)]
    timed = job["steps"] or len(batches)
    steps = [batches[i % len(batches)] for i in range(-job["warmup"], timed)]

    model = load(folder, job)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=job["learning_rate"], weight_decay=0.0)
    forward = torch.compile(model) if job["compile"] else model
    pad = tokenizer.pad_token_id or 0
    results = {"losses": [], "seconds": [], "tokens": []}
    for step in steps:
        begin = time.perf_counter()
        batch = padded(step, pad)
        if not is_chats:
            del batch["attention_mask"]  # nothing is padded, and sdpa is quicker without
        loss = forward(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        results["losses"].append(loss.item())
        results["seconds"].append(time.perf_counter() - begin)
        results["tokens"].append(sum(len(ids) for ids, _ in step))
    results["versions"] = versions()
    for name in ("seconds", "tokens"):
        results[name] = results[name][job["warmup"] :]
    print(json.dumps(results))


def gemm():
    """The median over matrix products of the model's and of square shapes, each by its fastest quarter."""
    torch.set_num_threads(2)
    rates = []
    for m, k, n in [(2048, 576, 1536), (2048, 1536, 576), (2048, 576, 576), (1024, 1024, 1024), (2048, 2048, 2048)]:
        a, b = torch.randn(m, k), torch.randn(n, k)
        seconds = []
        for _ in range(20):
            begin = time.perf_counter()
            torch.nn.functional.linear(a, b)
            seconds.append(time.perf_counter() - begin)
        rates.append(2 * m * k * n / statistics.median(sorted(seconds)[:5]) / 1e9)
    print(json.dumps({"gflops": statistics.median(rates), "versions": versions()}))


def versions():
    import peft
    import transformers

    return {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__}


if __name__ == "__main__":
    if sys.argv[-1] == "gemm":
        gemm()
    else:
        with open(sys.argv[3], encoding="utf-8") as f:
            train(sys.argv[1], sys.argv[2], json.load(f))
