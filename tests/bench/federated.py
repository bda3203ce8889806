"""Trains one adapter in one place, and one with four volunteers on a quarter of the data each, on as many tokens.

Both go through a platform's coordinator and `trainyard-worker volunteer`, and both adapters are measured on text that
neither has seen. The last line with --json is one JSON object. What is measured how: README.md in this folder.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
PASSWORD = "correct horse battery staple"
EMAIL = "admin@example.org"
VOLUNTEERS = 4
BATCH, LENGTH = 2, 256
LORA = {"r": 16, "alpha": 32, "target_modules": "all-linear"}


def paragraphs():
    """The repository's own documents, paragraph by paragraph, in an order that is always the same."""
    texts = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
    found = [part.strip() for path in texts for part in path.read_text("utf-8").split("\n\n")]
    found = [part for part in found if len(part) > 80]
    random.Random(5).shuffle(found)
    return found


def write_data(folder):
    """Every eighth paragraph is held out."""
    found = paragraphs()
    parts = {"train": [p for i, p in enumerate(found) if i % 8], "held_out": found[::8]}
    for name, part in parts.items():
        (folder / f"{name}.txt").write_text("\n\n".join(part) + "\n", "utf-8")
    return folder / "train.txt", folder / "held_out.txt"


class Platform:
    """A running `trainyard serve`, and its REST API."""

    def __init__(self, options, folder):
        self.folder = folder
        environment = {**os.environ, "BIND": "127.0.0.1:0", "DATA_DIR": str(folder / "platform"), "ADMIN_EMAIL": EMAIL,
                       "ADMIN_PASSWORD": PASSWORD, "MODELS_DIR": str(options.models), "HF_HUB_OFFLINE": "1"}
        self.log = folder / "platform.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([options.bin / "trainyard", "serve"], env=environment, stdout=log,
                                            stderr=subprocess.STDOUT)
        self.base = f"http://{self.wait_for(self.address)}"
        self.token = None
        self.token = self.json("POST", "/api/auth/login", {"email": EMAIL, "password": PASSWORD})["token"]

    def address(self):
        found = re.search(r"listening on http://([0-9.:]+)", self.log.read_text("utf-8"))
        return found and found[1]

    @staticmethod
    def wait_for(wanted, seconds=120):
        end = time.monotonic() + seconds
        while not (found := wanted()):
            if time.monotonic() > end:
                sys.exit("the platform is not ready in time")
            time.sleep(0.1)
        return found

    def request(self, method, path, body=None, content_type="application/json"):
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data=body, method=method)
        request.add_header("Content-Type", content_type)
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request) as response:
            return response.read()

    def json(self, method, path, body=None, content_type="application/json"):
        return json.loads(self.request(method, path, body, content_type))

    def stop(self):
        self.process.terminate()
        self.process.wait()


def session(platform, options, name, dataset, volunteers, rounds, steps, **more):
    """Runs a session to its end; gives its final adapter's folder, with the seconds that it took."""
    made = platform.json("POST", "/api/coordinators", {
        "name": name, "base_model": options.model, "dataset_id": dataset, "toplam_tur": rounds, "n_parca": volunteers,
        "en_az": volunteers, "ic_adim": steps, "bs": BATCH, "seq": LENGTH, "lr": options.lr, "mod": "cpt",
        "tur_zaman_asimi": 0, "lora": LORA, "seed": 1, **more})
    path = f"/api/coordinators/{made['id']}"
    platform.wait_for(lambda: platform.json("GET", path)["status"] != "preparing")
    url = f"{platform.base}/c/{name}"
    threads = max(1, len(os.sched_getaffinity(0)) // volunteers)
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        running = []
        for number in range(volunteers):
            state = platform.folder / f"{name}-{number}"
            process = subprocess.Popen(
                [options.bin / "trainyard-worker", "volunteer", "--koordinator", url, "--isci", f"v{number}",
                 "--threads", str(threads), "--keep-optimizer", "--retry-delay", "0.5"],
                env={**os.environ, "STATE_DIR": str(state), "MODELS_DIR": str(options.models), "HF_HUB_OFFLINE": "1"},
                stderr=None if options.verbose else subprocess.DEVNULL)
            stack.callback(process.kill)
            running.append(process)
        if any(process.wait() for process in running):
            sys.exit(f"{name}: a volunteer has failed")
    seconds = time.monotonic() - begun
    folder = platform.folder / f"{name}-adapter"
    folder.mkdir()
    info = platform.json("GET", f"/c/{name}/bilgi")
    (folder / "adapter_config.json").write_text(json.dumps(info["adaptor"]["peft"]), "utf-8")
    (folder / "adapter_model.safetensors").write_bytes(platform.request("GET", f"/c/{name}/agirlik"))
    return folder, seconds


def held_out_loss(options, data, adapter=None):
    command = [options.bin / "trainyard-worker", "--json", "evaluate", "--model", options.model, "--data", data,
               "--format", "text", "--max-length", str(LENGTH)]
    if adapter:
        command += ["--adapter", adapter]
    environment = {**os.environ, "MODELS_DIR": str(options.models), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])["loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--models", type=pathlib.Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="optimizer steps of a round")
    parser.add_argument("--lr", type=float, default=1e-3, help="of both sides")
    parser.add_argument("--verbose", action="store_true", help="show what the volunteers say")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.bin, options.models = options.bin.resolve(), options.models.resolve()

    with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as stack:
        folder = pathlib.Path(work)
        train, held_out = write_data(folder)
        platform = Platform(options, folder)
        stack.callback(platform.stop)
        dataset = platform.json("POST", "/api/datasets?name=documents&format=text", train.read_bytes(),
                                "application/octet-stream")["id"]
        losses, seconds = {"base": held_out_loss(options, held_out)}, {}
        print(f"base model: held-out loss {losses['base']:.4f}", flush=True)
        total = VOLUNTEERS * options.rounds * options.steps
        sides = {
            # One round: the result is the adapter.
            "central": (1, 1, total, {"aggregation": "mean"}),
            "federated": (VOLUNTEERS, options.rounds, options.steps, {}),
        }
        for name, (volunteers, rounds, steps, more) in sides.items():
            adapter, seconds[name] = session(platform, options, name, dataset, volunteers, rounds, steps, **more)
            losses[name] = held_out_loss(options, held_out, adapter)
            print(f"{name}: {volunteers} x {rounds} rounds x {steps} steps, held-out loss {losses[name]:.4f}, "
                  f"{seconds[name]:.0f} s", flush=True)
    ratio = losses["federated"] / losses["central"]
    print(f"federated / central: {ratio:.4f}")
    if options.json:
        print(json.dumps({
            "tokens": total * BATCH * LENGTH, "volunteers": VOLUNTEERS, "rounds": options.rounds,
            "steps": options.steps, "batch": BATCH, "length": LENGTH, "learning_rate": options.lr,
            "base_loss": losses["base"], "central_loss": losses["central"], "federated_loss": losses["federated"],
            "ratio": ratio, "seconds": seconds,
        }))


if __name__ == "__main__":
    main()
