"""A platform process for each test, and clients that know only the source documents and the REST API."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import threading
import time
import urllib.request
import uuid

import pytest
from websockets.sync.client import connect

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARIES = pathlib.Path(os.environ.get("TRAINYARD_BIN_DIR", ROOT / "target" / "debug"))
DEADLINE_SECONDS = 60
PASSWORD = "correct horse battery staple"


def fetch(request):
    """The body of an answer; straight to the platform, whatever proxy the environment names."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=DEADLINE_SECONDS) as response:
        return response.read()


class Rest:
    """The REST API with nothing but the standard library."""

    def __init__(self, base, token=None):
        self.base, self.token = base, token

    def request(self, method, path, body=None, content_type="application/json"):
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data=body, method=method)
        request.add_header("Content-Type", content_type)
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        text = fetch(request)
        return json.loads(text) if text else None

    def get(self, path):
        return self.request("GET", path)

    def post(self, path, body):
        return self.request("POST", path, body)

    def login(self, email, password):
        self.token = self.post("/api/auth/login", {"email": email, "password": password})["token"]
        return self

    def wait_for(self, path, wanted):
        """Asks for `path` until `wanted` holds for the answer."""
        end = time.monotonic() + DEADLINE_SECONDS
        while True:
            answer = self.get(path)
            if wanted(answer):
                return answer
            assert time.monotonic() < end, f"{path} stayed {answer}"
            time.sleep(0.05)


class Channel:
    """One WebSocket that carries JSON text frames."""

    def __init__(self, url):
        self.context = contextlib.ExitStack()
        self.ws = self.context.enter_context(connect(url, open_timeout=DEADLINE_SECONDS, proxy=None))

    def send(self, message):
        self.ws.send(json.dumps(message))

    def receive(self, kind, **fields):
        """The next message of type `kind` whose fields are as given; others are passed over."""
        end = time.monotonic() + DEADLINE_SECONDS
        passed = []
        while True:
            message = json.loads(self.ws.recv(timeout=max(0.0, end - time.monotonic())))
            if message["type"] == kind and all(message.get(k) == v for k, v in fields.items()):
                return message
            passed.append(message)
            assert time.monotonic() < end, f"no {kind} {fields} among {passed}"

    def close(self):
        self.context.close()


class Platform:
    """A running `trainyard serve`."""

    def __init__(self, folder, **settings):
        environment = {
            "PATH": os.environ["PATH"], "BIND": "127.0.0.1:0", "DATA_DIR": str(folder),
            "ADMIN_EMAIL": "admin@example.org", "ADMIN_PASSWORD": PASSWORD,
            "HEARTBEAT_INTERVAL": "0.5", "WORKER_HEARTBEAT_TIMEOUT": "3", "WORKER_CHECK_INTERVAL": "0.5", "WORKER_PING_GRACE": "0.5", **settings,
        }
        self.process = subprocess.Popen(
            [BINARIES / "trainyard", "serve"], env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.output, self.address = [], None
        self.ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        assert self.ready.wait(DEADLINE_SECONDS) and self.address, "".join(self.output)

    def _read(self):
        for line in self.process.stdout:
            self.output.append(line)
            found = re.search(r"listening on http://([0-9.:]+)", line)
            if found:
                self.address = found[1]
                self.ready.set()
        self.ready.set()

    def admin(self):
        return Rest(f"http://{self.address}").login("admin@example.org", PASSWORD)

    def worker_channel(self, worker_uuid):
        return Channel(f"ws://{self.address}/ws/worker?worker_uuid={worker_uuid}")

    def dashboard_channel(self, rest):
        token = rest.post("/api/ws-token", {})
        return Channel(f"ws://{self.address}/ws/user/{token['user_id']}?token={token['token']}")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(DEADLINE_SECONDS)
        finally:
            self.process.kill()


class SourceWorker:
    """A worker written from the source documents: no message_id, no attempt, nothing that is not on those pages."""

    def __init__(self, platform, admin):
        self.uuid = str(uuid.uuid4())
        key = admin.post("/api/enrollment-keys", {"max_uses": 1})["key"]
        self.channel = platform.worker_channel(self.uuid)
        self.send("authenticate", api_key=key, worker_uuid=self.uuid)
        self.enrolled = self.channel.receive("enrollment_complete")["data"]
        self.authenticated = self.channel.receive("authenticated")

    def send(self, kind, **fields):
        self.channel.send({"type": kind, **fields})

    def register(self):
        self.send("worker_register", worker_id=self.uuid, data={
            "gpu_available": True, "gpu_name": "NVIDIA A100-SXM4-80GB", "gpu_memory_gb": 80.0, "max_batch_size": 32,
            "worker_type": "both",
            "benchmark": {
                "gpu_score": 95.2, "tflops": 82.6, "memory_bandwidth_gbps": 1008.0, "max_batch_size_tested": 256,
                "benchmark_version": "1.0.0", "benchmark_duration_seconds": 45.2, "is_estimated": False}})

    def heartbeat(self, status="idle"):
        self.send("heartbeat", worker_id=self.uuid, status=status)

    def about(self, kind, job_id, **data):
        self.send(kind, worker_id=self.uuid, job_id=job_id, data=data)


@pytest.fixture
def start_platform(tmp_path):
    """Starts platforms that end with the test."""
    with contextlib.ExitStack() as stack:
        def start(**settings):
            platform = Platform(tmp_path / "data", **settings)
            stack.callback(platform.stop)
            return platform
        yield start


def submit_job(admin):
    """Uploads two chats and submits a job on them; returns the job's and the data set's id."""
    rows = [{"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": "a"}]}
            for i in range(2)]
    body = "".join(json.dumps(row) + "\n" for row in rows).encode()
    dataset = admin.request("POST", "/api/datasets?name=chats&format=jsonl", body, "application/octet-stream")
    job = admin.post("/api/jobs", {
        "dataset_id": dataset["id"], "base_model": {"huggingface_id": "meta-llama/Llama-3.1-8B"},
        "config": {"epochs": 3, "batch_size": 4, "learning_rate": 0.0002, "max_length": 1024,
                   "mixed_precision": "bf16", "use_peft": True, "lora_r": 16, "save_steps": 500,
                   "logging_steps": 10}})
    return job["id"], dataset["id"]
