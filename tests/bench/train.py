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
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "RAYON_NUM_THREADS": str(THREADS),
                   "HF_HUB_OFFLINE": "1"}
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
