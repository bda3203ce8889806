"""The demo, started as a person would, in its quick form: run by tests/run once the release build is there."""

import json
import os
import pathlib
import signal
import subprocess
import time

from conftest import ROOT
from tiny_safetensors import names as tensor_names

QUICK_LIMIT_SECONDS = 300


def demo(folder, *options):
    return subprocess.Popen(
        [ROOT / "deploy" / "demo", "--quick", "--json", "--exit", "--data-dir", folder, *options],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        cwd="/", env={**os.environ, "RUST_BACKTRACE": "1", "HF_HUB_OFFLINE": "1"})


def test_quick_demo_trains_for_real_and_prints_what_it_came_to(tmp_path):
    begun = time.monotonic()
    process = demo(tmp_path)
    output, _ = process.communicate(timeout=QUICK_LIMIT_SECONDS)
    assert process.returncode == 0, output
    result = json.loads(output.splitlines()[-1])
    print(f"{time.monotonic() - begun:.0f} s: {result}")

    assert set(result) == {
        "first_loss", "last_loss", "steps", "tokens_per_second", "adapter", "dashboard", "before", "after"}
    assert result["last_loss"] < 0.8 * result["first_loss"]
    assert result["steps"] > 0
    assert result["tokens_per_second"] > 0
    assert result["dashboard"].startswith("http://127.0.0.1:")
    assert len(result["before"]) == len(result["after"]) == 3
    assert result["before"] != result["after"]
    adapter = pathlib.Path(result["adapter"])
    assert json.loads((adapter / "adapter_config.json").read_text())["peft_type"] == "LORA"
    names = tensor_names(adapter / "adapter_model.safetensors")
    assert len(names) == 30 * 7 * 2
    assert "base_model.model.model.layers.29.mlp.down_proj.lora_B.weight" in names


def test_interrupted_demo_ends_cleanly_and_the_next_one_starts(tmp_path):
    for until in ("worker", "step"):
        process = demo(tmp_path)
        seen = []
        for line in process.stdout:
            seen.append(line)
            if until in line:
                break
        assert process.poll() is None, "".join(seen)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)
        assert process.returncode == 130, "".join(seen) + rest
        assert "panicked" not in "".join(seen) + rest
