"""Runs our LoRA training and the reference's in turns on one model, data and machine; prints the medians.

Options: --turns N, --steps N (timed, after one step to warm up), --json (last line: one JSON object).
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

BATCH, LENGTH, THREADS = 4, 512, 2
JOB = {
    "batch_size": BATCH, "max_length": LENGTH, "threads": THREADS, "seed": 42, "learning_rate": 2e-4,
    "lora_r": 16, "lora_alpha": 32,
}
WORDS = """yard track signal engine freight wagon brake switch tunnel bridge station whistle lantern rail steam coal
crane depot ledger timetable coupling axle driver shunter platform cargo timber grain iron copper the a of and to in
under over before after slowly quickly morning evening first second third last north south river hill valley""".split()


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


def make_data(path):
    """One batch of texts that each fill LENGTH tokens and more; every step trains on all of them."""
    choose = random.Random(7)
    with open(path, "w", encoding="utf-8") as f:
        for _ in range(BATCH):
            f.write(json.dumps({"text": " ".join(choose.choices(WORDS, k=LENGTH + 64))}) + "\n")


def measured(command):
    """Runs a process of its own; returns its standard output and its peak memory in MiB."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{command[0]} ended with {process.returncode}")
        out.seek(0)
        return out.read(), usage.ru_maxrss / 1024


def tokens_per_second(seconds):
    """From the steps after the first, which warms up."""
    return BATCH * LENGTH / statistics.median(seconds[1:])


def reference(model, data, steps):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as job:
        json.dump(JOB, job)
        job.flush()
        script = pathlib.Path(__file__).with_name("reference.py")
        output, peak = measured([sys.executable, str(script), str(model), str(data), job.name, str(steps)])
    result = json.loads(output.splitlines()[-1])
    return tokens_per_second(result["seconds"]), peak, result["losses"][0]


def ours(worker, model, data, steps, work):
    job = work / "job.toml"
    job.write_text(f"""
dataset = "{data}"
model = "{model}"

[config]
max_steps = {steps}
epochs = {steps}
batch_size = {BATCH}
max_length = {LENGTH}
packing = true
lora_r = {JOB["lora_r"]}
lora_alpha = {JOB["lora_alpha"]}
learning_rate = {JOB["learning_rate"]}
lr_scheduler_type = "constant"
weight_decay = 0.0
max_grad_norm = 1.0
seed = {JOB["seed"]}
""")
    with tempfile.TemporaryDirectory(dir=work) as output:
        lines, peak = measured([str(worker), "--json", "train", str(job), "--output", output])
    events = [json.loads(line) for line in lines.splitlines()]
    done = [event for event in events if event["event"] == "step"]
    assert len(done) == steps, f"{len(done)} steps instead of {steps}"
    return statistics.median(step["token_throughput"] for step in done[1:]), peak, done[0]["loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", type=pathlib.Path, required=True)
    parser.add_argument("--base", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    # Both sides inherit this, and take as many threads.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    options.work.mkdir(parents=True, exist_ok=True)
    model = make_model(options.base.resolve(), options.work.resolve() / "model")
    data = options.work.resolve() / "dense.jsonl"
    make_data(data)

    results = {"ours": [], "reference": []}
    for turn in range(options.turns):
        for side, run in (
            ("ours", lambda: ours(options.worker.resolve(), model, data, options.steps + 1, options.work.resolve())),
            ("reference", lambda: reference(model, data, options.steps + 1)),
        ):
            speed, peak, loss = run()
            results[side].append((speed, peak, loss))
            print(f"turn {turn + 1}, {side:9}: {speed:6.1f} tokens/s, peak {peak:6.0f} MiB, first loss {loss:.4f}")

    losses = [loss for rows in results.values() for _, _, loss in rows]
    if max(losses) - min(losses) > 0.002:
        sys.exit(f"the two do not compute the same: first losses {losses}")
    median = {side: [statistics.median(column) for column in zip(*rows)] for side, rows in results.items()}
    dense = {
        "ours_tokens_per_second": round(median["ours"][0], 1),
        "reference_tokens_per_second": round(median["reference"][0], 1),
        "ratio": round(median["ours"][0] / median["reference"][0], 3),
        "ours_peak_mb": round(median["ours"][1]),
        "reference_peak_mb": round(median["reference"][1]),
    }
    print(f"median: ours {dense['ours_tokens_per_second']} tokens/s in {dense['ours_peak_mb']} MiB, "
          f"reference {dense['reference_tokens_per_second']} tokens/s in {dense['reference_peak_mb']} MiB, "
          f"ratio {dense['ratio']}")
    if options.json:
        print(json.dumps({"dense": dense}))


if __name__ == "__main__":
    main()
