"""Merges 32 adapters from files, ours and others' in turns on one machine; prints the medians.

Ours checks every upload, merges them (nesterov, and mean) and saves the result durably. numpy and torch do less: they
read the files, take the mean and save it. The last line with --json is one JSON object; `ratio` is the time of the faster
of them by our time of nesterov. What is measured how: README.md in this folder.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import sys

from merge_reference import SIDES
from sides import THREADS, measured

UPLOADS, RANK, LAYERS = 32, 16, 30
HIDDEN, KEYS, INNER = 576, 192, 1536
# Outputs and inputs of SmolLM2-135M's projections.
PROJECTIONS = {
    "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KEYS, HIDDEN), "self_attn.v_proj": (KEYS, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
RULES = ("nesterov", "mean")
REFERENCE = pathlib.Path(__file__).with_name("merge_reference.py")


def shapes():
    """Names and shapes of the adapter's tensors."""
    for layer in range(LAYERS):
        for projection, (outputs, inputs) in PROJECTIONS.items():
            module = f"base_model.model.model.layers.{layer}.{projection}"
            yield f"{module}.lora_A.weight", (RANK, inputs)
            yield f"{module}.lora_B.weight", (outputs, RANK)


def write_adapters(folder):
    """A global adapter and uploads near it, always the same; returns the number of values."""
    import numpy
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    random = numpy.random.default_rng(42)
    start = {name: random.standard_normal(shape, dtype=numpy.float32) * 0.05 for name, shape in shapes()}
    for number in range(-1, UPLOADS):
        path = folder / ("global.safetensors" if number < 0 else f"update-{number:02}.safetensors")
        tensors = start
        if number >= 0:
            step = numpy.float32(0.01)
            tensors = {name: x + step * random.standard_normal(x.shape, dtype=numpy.float32)
                       for name, x in start.items()}
        if not path.exists():
            save_file(tensors, path.with_suffix(".part"), metadata={"format": "pt"})
            path.with_suffix(".part").rename(path)
    return sum(x.size for x in start.values())


def ours(program, folder, rule, runs):
    """Seconds of each run, their two parts, and the process's peak memory in MiB."""
    (folder / "velocity.safetensors").unlink(missing_ok=True)
    output, peak = measured([str(program), str(folder), str(THREADS), rule, str(runs)])
    result = json.loads(output.splitlines()[-1])
    return {
        "seconds": [sum(parts) for parts in zip(result["check"], result["merge"])][1:],
        "check": result["check"][1:], "merge": result["merge"][1:], "peak_mb": peak,
    }


def reference(side, source, folder, runs):
    """The same of numpy or torch, from files or of values in memory."""
    output, peak = measured([sys.executable, str(REFERENCE), side, source, str(folder), str(THREADS), str(runs)])
    result = json.loads(output.splitlines()[-1])
    return {"seconds": result["seconds"][1:], "peak_mb": peak, "versions": result["versions"]}


def in_memory(side):
    return f"{side}, in memory"


def check_results(folder):
    """Our mean must be the references', or nothing is worth comparing."""
    import numpy
    from safetensors.numpy import load_file

    found = load_file(folder / "merged.safetensors")
    for side in SIDES:
        for name, expected in load_file(folder / f"{side}.safetensors").items():
            if not numpy.allclose(found[name], expected, rtol=1e-5, atol=1e-6):
                sys.exit(f"{name}: our mean is not that of {side}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--runs", type=int, default=5, help="timed runs of a process, after one that warms up")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    # All processes inherit this, and take as many threads.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    folder = (options.work / "merge").resolve()
    values = write_adapters(folder)
    print(f"{UPLOADS} adapters of {values} f32 values, {THREADS} threads", flush=True)

    sides = {f"ours, {rule}": lambda rule=rule: ours(options.ours.resolve(), folder, rule, options.runs + 1)
             for rule in RULES}
    for side in SIDES:
        sides[side] = lambda side=side: reference(side, "files", folder, options.runs + 1)
        sides[in_memory(side)] = lambda side=side: reference(side, "memory", folder, options.runs + 1)
    runs = {name: [] for name in sides}
    for turn in range(options.turns):
        for name, run in sides.items():
            done = run()
            runs[name].append(done)
            print(f"turn {turn + 1}, {name:16}: {1000 * statistics.median(done['seconds']):6.1f} ms, "
                  f"peak {done['peak_mb']:4.0f} MiB", flush=True)
    check_results(folder)

    def median_ms(name, part="seconds"):
        return round(1000 * statistics.median(statistics.median(run[part]) for run in runs[name]), 1)

    def peak_mb(name):
        return round(statistics.median(run["peak_mb"] for run in runs[name]))

    versions = {"python": platform.python_version()}
    result = {"adapters": UPLOADS, "values": values, "threads": THREADS}
    for rule in RULES:
        name = f"ours, {rule}"
        result[rule] = {"total_ms": median_ms(name), "check_ms": median_ms(name, "check"),
                        "merge_ms": median_ms(name, "merge"), "peak_mb": peak_mb(name)}
    for side in SIDES:
        result[side] = {"total_ms": median_ms(side), "mean_in_memory_ms": median_ms(in_memory(side)),
                        "peak_mb": peak_mb(side)}
        versions |= runs[side][0]["versions"]
    faster = min(result[side]["total_ms"] for side in SIDES)
    result["ratio"] = round(faster / result["nesterov"]["total_ms"], 3)
    result["mean_ratio"] = round(faster / result["mean"]["total_ms"], 3)
    bytes_merged = 4 * values * UPLOADS
    result["merge_gb_per_second"] = round(bytes_merged / result["mean"]["merge_ms"] / 1e6, 1)
    print("medians: " + ", ".join(f"{name} {value}" for name, value in result.items()))
    print("versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    if options.json:
        print(json.dumps({**result, "versions": versions}))


if __name__ == "__main__":
    main()
