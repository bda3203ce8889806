"""Runs our generation, llama.cpp's and transformers' in turns on one model and machine; prints the medians.

Options: --turns N, --types LIST, --json (last line: one JSON object).
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

THREADS, PROMPT, SHORT_PROMPT, GENERATED, REPEATS = 2, 512, 62, 64, 3


def tokens(length):
    """The same as in inference_speed.rs."""
    return [i * 7919 % 40_000 + 100 for i in range(length)]


def best(measure):
    """The best of a few; the others were disturbed."""
    return max(measure() for _ in range(REPEATS))


def llama_cpp(model, extra_buffers):
    """Prints llama.cpp's figures for a GGUF file."""
    import llama_cpp
    from llama_cpp import llama_cpp as low

    defaults = low.llama_model_default_params
    if not extra_buffers:

        def without_extra_buffers():
            parameters = defaults()
            parameters.use_extra_bufts = False
            return parameters

        low.llama_model_default_params = without_extra_buffers
    llama = llama_cpp.Llama(model, n_ctx=1024, n_batch=PROMPT, n_threads=THREADS, n_threads_batch=THREADS,
                            verbose=False)

    def prompt():
        llama.reset()
        start = time.perf_counter()
        llama.eval(tokens(PROMPT))
        return PROMPT / (time.perf_counter() - start)

    def decode():
        llama.reset()
        llama.eval(tokens(SHORT_PROMPT))
        start = time.perf_counter()
        for _ in range(GENERATED):
            llama.eval([llama.sample(temp=0.0)])
        return GENERATED / (time.perf_counter() - start)

    print(json.dumps({"prompt": best(prompt), "decode": best(decode)}))


def transformers(model):
    """Prints transformers' figures for a GGUF file, computed in f32."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(THREADS)
    path = pathlib.Path(model)
    network = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()

    def prompt():
        start = time.perf_counter()
        network(torch.tensor([tokens(PROMPT)]), logits_to_keep=1)
        return PROMPT / (time.perf_counter() - start)

    def decode():
        out = network(torch.tensor([tokens(SHORT_PROMPT)]), use_cache=True, logits_to_keep=1)
        start = time.perf_counter()
        for _ in range(GENERATED):
            out = network(out.logits[:, -1:].argmax(-1), past_key_values=out.past_key_values, use_cache=True)
        return GENERATED / (time.perf_counter() - start)

    with torch.inference_mode():
        print(json.dumps({"prompt": best(prompt), "decode": best(decode)}))


class Trapped(Exception):
    """A process used an instruction that this machine does not run."""


def run(command):
    """The JSON object that a process prints last."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, env=environment, text=True)
    if done.returncode == -signal.SIGILL:
        raise Trapped
    if done.returncode:
        sys.exit(f"{command[0]} ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def reference(side, model, *more):
    return run([sys.executable, __file__, "--side", side, "--base", model, *more])


def extra_buffers(name, model):
    """The option for llama.cpp's own layouts of weights (AMX among them), where they run: some say they would and trap."""
    try:
        reference("llama_cpp", model, "--extra-buffers")
    except Trapped:
        print(f"{name}: llama.cpp's extra buffers use instructions that trap on this machine: it runs without them")
        return []
    return ["--extra-buffers"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", type=pathlib.Path)
    parser.add_argument("--ours", type=pathlib.Path)
    parser.add_argument("--base", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--types", default="f32,f16,q8_0,stored", help="f32, f16, q8_0; stored: the base file itself")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", choices=["llama_cpp", "transformers"], help=argparse.SUPPRESS)
    parser.add_argument("--extra-buffers", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side == "llama_cpp":
        return llama_cpp(str(options.base), options.extra_buffers)
    if options.side == "transformers":
        return transformers(str(options.base))

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    options.work.mkdir(parents=True, exist_ok=True)
    files = {}
    for name in options.types.split(","):
        files[name] = options.base if name == "stored" else options.work / f"{options.base.stem}.{name}.gguf"
        if not files[name].exists():
            subprocess.run([options.worker, "export", "--model", options.base, "--format", "gguf_merged",
                            "--type", name, "--output", files[name]], check=True, stdout=subprocess.DEVNULL)
    more = {name: extra_buffers(name, file) for name, file in files.items()}

    results, decoded = {}, {}
    for turn in range(options.turns):
        for name, file in files.items():
            sides = {"ours": lambda: run([options.ours, file, THREADS]),
                     "llama_cpp": lambda: reference("llama_cpp", file, *more[name])}
            if name == "f32":
                sides["transformers"] = lambda: reference("transformers", file)
            for side, measure in sides.items():
                figures = measure()
                for what in ("prompt", "decode", "decode_8"):
                    if what in figures:
                        results.setdefault((name, what), {}).setdefault(side, []).append(figures[what])
                print(f"turn {turn + 1}, {name:6} {side:12}: prompt {figures['prompt']:6.1f}, "
                      f"decode {figures['decode']:6.1f} tokens/s"
                      + (f", eight streams {figures['decode_8']:6.1f}; {figures['held']}" if side == "ours" else ""))

    def median(name, what, side):
        return round(statistics.median(results[name, what][side]), 1)

    # transformers computes in f32 whatever the file's type, so its figures stand beside every type.
    by_type = {}
    for name in files:
        others = {what: {"llama_cpp": median(name, what, "llama_cpp")} for what in ("prompt", "decode")}
        if "f32" in files:
            for what, figures in others.items():
                figures["transformers_f32"] = median("f32", what, "transformers")
        ours = {what: median(name, what, "ours") for what in ("prompt", "decode", "decode_8")}
        by_type[name] = {
            "decode_ratio": round(ours["decode"] / others["decode"]["llama_cpp"], 3),
            "prompt_ratio": round(ours["prompt"] / max(others["prompt"].values()), 3),
            "streams_8_over_1": round(ours["decode_8"] / ours["decode"], 2),
            "ours": ours,
            "others": others,
        }
        line = by_type[name]
        print(f"{name:6}: decode {line['decode_ratio']} x llama.cpp, prompt {line['prompt_ratio']} x the faster one, "
              f"eight streams {line['streams_8_over_1']} x one")
    if options.json:
        print(json.dumps({**by_type, "streams_8_over_1": next(iter(by_type.values()))["streams_8_over_1"]}))


if __name__ == "__main__":
    main()
