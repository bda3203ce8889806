"""A coordinator written from the text of Coordinator protocol v1 alone: it averages, and keeps its state in memory."""

import contextlib
import hashlib
import http.server
import json
import math
import socket
import threading
import time
import urllib.parse

import tiny_safetensors


def digest(body):
    return hashlib.sha256(body).hexdigest()


class State:
    """What a coordinator knows; it outlives a server that is stopped and started again."""

    def __init__(self, weights, shards, rounds, enough, key=None, task=None, served=True, timeout_seconds=math.inf):
        self.lock = threading.Condition()
        self.weights, self.shards, self.rounds, self.enough, self.key = weights, shards, rounds, enough, key
        self.task = {"ic_adim": 2, "bs": 2, "seq": 16, "lr": 0.01, "tohum": 0, **(task or {})}
        self.served, self.timeout_seconds = served, timeout_seconds
        self.round, self.results, self.parts = 0, {}, {}
        self.opened = time.monotonic()
        # For the tests: every request line, and every result that was taken.
        self.requests, self.taken, self.globals = [], [], [weights]

    def finished(self):
        return self.round >= self.rounds

    def task_for(self, worker):
        part = self.parts.setdefault(worker, len(self.parts) % len(self.shards))
        if self.finished():
            return {"bitti": True}
        if worker in self.results:
            return {"bekle": True, "tur": self.round}
        task = {"tur": self.round, "toplam_tur": self.rounds, "parca": part, "n_parca": len(self.shards), **self.task,
                "agirlik_sha256": digest(self.weights)}
        if self.served:
            shard = self.shards[part]
            task["veri_sha256"] = digest(shard)
            task["veri_belirtec"] = len(tiny_safetensors.read(shard)["ids"][2])
        return task

    def problem(self, body):
        """What is wrong with an upload, measured by the global adapter."""
        try:
            found, wanted = tiny_safetensors.read(body), tiny_safetensors.read(self.weights)
        except (KeyError, ValueError, OverflowError) as error:
            return f"not safetensors: {error}"
        if found.keys() != wanted.keys():
            return "other keys"
        for name, (dtype, shape, values) in found.items():
            if (dtype, shape) != wanted[name][:2]:
                return f"{name}: other shape or dtype"
            if not all(map(math.isfinite, values)):
                return f"{name}: not finite"
        return None

    def take(self, worker, round_, body):
        if round_ != self.round or worker in self.results:
            return 409, {"hata": "another round, or submitted already"}
        problem = self.problem(body)
        if problem:
            return 400, {"hata": problem}
        self.results[worker] = body
        self.taken.append((worker, round_, body))
        if len(self.results) >= self.enough:
            self.close_round()
        self.lock.notify_all()
        return 200, {"tamam": True, "tur": round_}

    def close_overdue_round(self):
        """With one result at least a round closes at its timeout."""
        if self.results and time.monotonic() - self.opened >= self.timeout_seconds:
            self.close_round()

    def close_round(self):
        self.weights = tiny_safetensors.mean([self.results[name] for name in sorted(self.results)])
        self.globals.append(self.weights)
        self.round, self.results, self.opened = self.round + 1, {}, time.monotonic()


class Server(http.server.ThreadingHTTPServer):
    """Ends its connections with itself, as a process does."""

    def __init__(self, *arguments):
        self.connections = set()
        super().__init__(*arguments)

    def get_request(self):
        connection, address = super().get_request()
        self.connections.add(connection)
        return connection, address

    def shutdown_request(self, request):
        self.connections.discard(request)
        super().shutdown_request(request)

    def server_close(self):
        super().server_close()
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class Coordinator:
    """A server of a state on 127.0.0.1."""

    def __init__(self, state, port=0):
        self.state = state
        self.server = Server(("127.0.0.1", port), handler(state))
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def handler(state):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def reply(self, status, body, content_type="application/json", **headers):
            if not isinstance(body, bytes):
                body = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), str(value))
            self.end_headers()
            self.wfile.write(body)

        def file(self, body, **headers):
            self.reply(200, body, "application/octet-stream", X_Sha256=digest(body), **headers)

        def handle_request(self, body=None):
            path, _, query = self.path.partition("?")
            # Percent-decoded once: a plus is a plus.
            fields = dict(part.partition("=")[::2] for part in query.split("&") if part)
            fields = {name: urllib.parse.unquote(value) for name, value in fields.items()}
            with state.lock:
                headers = {name.lower(): value for name, value in self.headers.items()}
                state.requests.append((self.command, self.path, headers))
                state.close_overdue_round()
                if state.key and path != "/bilgi" and self.headers.get("X-Anahtar") != state.key:
                    return self.reply(401, {"hata": "wrong key"})
                if self.command == "POST":
                    if path != "/sonuc":
                        return self.reply(404, {"hata": "no such page"})
                    return self.reply(*state.take(fields["isci"], int(fields["tur"]), body))
                if path == "/gorev":
                    return self.reply(200, state.task_for(fields["isci"]))
                if path == "/agirlik":
                    return self.file(state.weights, X_Tur=state.round)
                if path == "/veri" and state.served:
                    part = int(fields["parca"])
                    if part >= len(state.shards):
                        return self.reply(400, {"hata": "parca out of range"})
                    return self.file(state.shards[part])
                if path == "/bilgi":
                    served = {"veri": {"bicim": "safetensors-ids-v1", "parca": len(state.shards)}}
                    return self.reply(200, served if state.served else {})
                return self.reply(404, {"hata": "no such page"})

        def do_GET(self):
            self.handle_request()

        def do_POST(self):
            self.handle_request(self.rfile.read(int(self.headers["Content-Length"])))

    return Handler
