"""Runs either side in a process of its own: what it is given, and what it reports."""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass

THREADS = 2
REFERENCE = pathlib.Path(__file__).with_name("reference.py")


@dataclass
class Run:
    """What a process did in its timed steps."""

    tokens_per_second: float
    peak_mb: float
    losses: list
    versions: dict


def measured(command, environment=()):
    """Runs a process of its own; returns its standard output and its peak memory in MiB."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "HF_HUB_OFFLINE": "1", **dict(environment)}
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{command[0]} ended with {process.returncode}")
        out.seek(0)
        return out.read(), usage.ru_maxrss / 1024


def reference(model, data, job, work):
    """A run of transformers. Dense steps by their median, an epoch as a whole."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"threads": THREADS, "compile": False, "sort": False, **job}, file)
        file.flush()
        # What torch.compile makes is kept, so that only the first turn waits for it.
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(work / "inductor")}
        output, peak = measured([sys.executable, str(REFERENCE), str(model), str(data), file.name], cache)
    result = json.loads(output.splitlines()[-1])
    return Run(rate(job, result["tokens"], result["seconds"]), peak, result["losses"], result["versions"])


def ours(worker, model, data, job, work):
    """A run of our worker on the same job. An epoch is timed in its second turn, as the reference has warmed up too."""
    is_epoch = job["steps"] is None
    config = {
        "batch_size": job["batch_size"], "max_length": job["max_length"], "packing": True, "seed": job["seed"],
        "learning_rate": job["learning_rate"], "lr_scheduler_type": "constant", "weight_decay": 0.0,
        "max_grad_norm": 1.0, "use_peft": job["adapter"],
    }
    if is_epoch:
        config["epochs"] = 2
    else:
        config["max_steps"] = config["epochs"] = job["warmup"] + job["steps"]
    if job["adapter"]:
        config |= {"lora_r": job["lora_r"], "lora_alpha": job["lora_alpha"]}
    file = work / "job.toml"
    settings = "\n".join(f"{name} = {json.dumps(value)}" for name, value in config.items())
    file.write_text(f"dataset = {json.dumps(str(data))}\nmodel = {json.dumps(str(model))}\n\n[config]\n{settings}\n")
    with tempfile.TemporaryDirectory(dir=work) as output:
        lines, peak = measured([str(worker), "--json", "train", str(file), "--output", output])
    steps = [event for event in map(json.loads, lines.splitlines()) if event["event"] == "step"]
    timed = [step for step in steps if step["epoch"] == 2] if is_epoch else steps[job["warmup"] :]
    tokens = [step["tokens"] for step in timed]
    seconds = [step["tokens"] / step["token_throughput"] for step in timed]
    version, _ = measured([str(worker), "--version"])
    return Run(rate(job, tokens, seconds), peak, [step["loss"] for step in steps], {"ours": version.strip()})


def rate(job, tokens, seconds):
    """Tokens a second: of steps the median; of an epoch all tokens without padding, also those that a side leaves out."""
    if job["steps"] is None:
        return job["epoch_tokens"] / sum(seconds)
    return statistics.median(count / time for count, time in zip(tokens, seconds))


def gemm_gflops():
    """The machine's f32 matrix products through torch, in 10^9 operations a second."""
    output, _ = measured([sys.executable, str(REFERENCE), "gemm"])
    return json.loads(output.splitlines()[-1])["gflops"]
