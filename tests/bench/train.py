"""Runs our training and the reference's in turns on one model, data and machine; prints the medians.

Parts: dense (LoRA steps of full sequences), chats (an epoch of chats of mixed length), full (steps over all weights).
The last line with --json is one JSON object with a member for each part. What is measured how: README.md in this folder.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import sys

from data import write_chats, write_dense
from sides import THREADS, gemm_gflops, ours, reference

PARTS = ("dense", "chats", "full")
BATCH, LENGTH, CHATS = 4, 512, 64
LORA = {"adapter": True, "lora_r": 16, "lora_alpha": 32, "learning_rate": 2e-4}
FULL = {"adapter": False, "learning_rate": 2e-5}
SHARED = {"batch_size": BATCH, "max_length": LENGTH, "seed": 42, "warmup": 1}


def make_model(base, folder):
    """The base model in the Hugging Face form with f32 weights, which both sides read."""
    if (base / "config.json").exists():
        return base
    if not (folder / "config.json").exists():
        import torch
        from safetensors.torch import save_file
        from transformers import AutoModelForCausalLM, AutoTokenizer

        gguf = base.with_name(f"{base.name}.gguf")
        print(f"unpacking {gguf.name} to f32", file=sys.stderr)
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        weights = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}  # tied
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        model.config.architectures = ["LlamaForCausalLM"]
        del model.config.quantization_config
        model.config.save_pretrained(folder)
    return folder


def operations_per_token(model, length):
    """Counted operations of a dense LoRA step per token, two for each multiplication and addition.

    The frozen weights twice (forward, gradient of the input), the pairs three times (also their own gradients), and
    attention's two products forward and five backward, over the pairs of tokens that see each other. Nothing is
    counted for what is elementwise, for scores that the mask hides, or for what a side computes again.
    """
    config = json.loads((model / "config.json").read_text())
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    heads = config["num_attention_heads"]
    dim = config.get("head_dim") or hidden // heads
    queries, keys = heads * dim, config["num_key_value_heads"] * dim
    shapes = [(queries, hidden), (keys, hidden), (keys, hidden), (hidden, queries)]
    shapes += [(inner, hidden), (inner, hidden), (hidden, inner)]
    weights = layers * sum(rows * columns for rows, columns in shapes)
    pairs = layers * LORA["lora_r"] * sum(rows + columns for rows, columns in shapes)
    # The layer at the bottom passes no gradient on to the embedding, so its first three layers compute none.
    unneeded = sum(rows * columns + LORA["lora_r"] * columns for rows, columns in shapes[:3])
    head = config["vocab_size"] * hidden * (length - 1) / length  # a row's last token has no label
    seen = (length + 1) / 2
    return 4 * (weights + head) + 6 * pairs - 2 * unneeded + layers * 7 * 2 * seen * queries


def run_turns(sides, turns):
    """Each side's runs, taken in turns."""
    runs = {name: [] for name in sides}
    for turn in range(turns):
        for name, run in sides.items():
            done = run()
            runs[name].append(done)
            print(f"turn {turn + 1}, {name:22}: {done.tokens_per_second:6.1f} tokens/s, peak {done.peak_mb:6.0f} MiB, "
                  f"first loss {done.losses[0]:.4f}", flush=True)
    return runs


def compared(runs, against="reference"):
    """The medians of ours and another side."""
    speed = {name: statistics.median(run.tokens_per_second for run in runs[name]) for name in ("ours", against)}
    peak = {name: statistics.median(run.peak_mb for run in runs[name]) for name in ("ours", against)}
    return {
        "ours_tokens_per_second": round(speed["ours"], 1),
        "reference_tokens_per_second": round(speed[against], 1),
        "ratio": round(speed["ours"] / speed[against], 3),
        "ours_peak_mb": round(peak["ours"]),
        "reference_peak_mb": round(peak[against]),
    }


def check_first_losses(runs):
    """Both sides compute the same before anything is trained, or nothing is worth comparing."""
    losses = [run.losses[0] for side in runs.values() for run in side]
    if max(losses) - min(losses) > 0.002:
        sys.exit(f"the sides do not compute the same: first losses {losses}")


def dense(options, model, work):
    data = work / "dense.jsonl"
    write_dense(data, BATCH, LENGTH)
    job = {**SHARED, **LORA, "steps": options.steps}
    sides = {
        "ours": lambda: ours(options.worker, model, data, job, work),
        "reference": lambda: reference(model, data, job, work),
    }
    if options.compile:
        compiled = {**job, "compile": True, "warmup": 3}
        sides["reference, compiled"] = lambda: reference(model, data, compiled, work)
    peaks = [gemm_gflops()]
    runs = run_turns(sides, options.turns)
    peaks.append(gemm_gflops())
    check_first_losses(runs)
    result = compared(runs)
    gemm, per_token = statistics.median(peaks), operations_per_token(model, LENGTH)
    result["gemm_gflops"] = round(gemm, 1)
    result["gflop_per_token"] = round(per_token / 1e9, 4)
    result["share_of_gemm_peak"] = round(result["ours_tokens_per_second"] * per_token / 1e9 / gemm, 3)
    if options.compile:
        against = compared(runs, "reference, compiled")
        result["compile_tokens_per_second"] = against["reference_tokens_per_second"]
        result["compile_ratio"] = against["ratio"]
        result["compile_peak_mb"] = against["reference_peak_mb"]
    return result, runs


def rendered_tokens(model, data):
    """Tokens of all chats as they are rendered: what is useful in an epoch, however it is batched or cut."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    with open(data, encoding="utf-8") as f:
        chats = [tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=False) for line in f]
    return sum(len(tokenizer(chat, add_special_tokens=False)["input_ids"]) for chat in chats)


def chats(options, model, work):
    data = work / "chats.jsonl"
    write_chats(data, CHATS)
    job = {**SHARED, **LORA, "steps": None, "epoch_tokens": rendered_tokens(model, data)}
    runs = run_turns({
        "ours": lambda: ours(options.worker, model, data, job, work),
        "reference": lambda: reference(model, data, job, work),
        "reference, sorted": lambda: reference(model, data, {**job, "sort": True}, work),
    }, options.turns)
    result = compared(runs)
    against = compared(runs, "reference, sorted")
    result["sorted_tokens_per_second"] = against["reference_tokens_per_second"]
    result["sorted_ratio"] = against["ratio"]
    return result, runs


def full(options, model, work):
    data = work / "dense.jsonl"
    write_dense(data, BATCH, LENGTH)
    job = {**SHARED, **FULL, "steps": options.steps}
    runs = run_turns({
        "ours": lambda: ours(options.worker, model, data, job, work),
        "reference": lambda: reference(model, data, job, work),
    }, options.turns)
    check_first_losses(runs)
    return compared(runs), runs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", type=pathlib.Path, required=True)
    parser.add_argument("--base", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--parts", default=",".join(PARTS), help="which of %(default)s")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="timed steps of dense and full")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="leave torch.compile out")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))} is none of {', '.join(PARTS)}")

    # All processes inherit this, and take as many threads.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    options.worker = options.worker.resolve()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    model = make_model(options.base.resolve(), work / "model")

    results, versions = {}, {"python": platform.python_version()}
    for part in parts:
        print(f"{part}:", flush=True)
        results[part], runs = {"dense": dense, "chats": chats, "full": full}[part](options, model, work)
        for side in runs.values():
            versions |= side[0].versions
        print(f"{part}, medians: " + ", ".join(f"{name} {value}" for name, value in results[part].items()), flush=True)
    print("versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    if options.json:
        print(json.dumps({**results, "versions": versions}))


if __name__ == "__main__":
    main()
