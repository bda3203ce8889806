"""Our volunteer against a coordinator that was written from the text of Coordinator protocol v1 alone."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import threading

import pytest
import tiny_safetensors
from conftest import BINARIES, DEADLINE_SECONDS, ROOT
from source_coordinator import Coordinator, State, digest

GOLDEN = ROOT / "tests" / "golden"
WEIGHTS = (GOLDEN / "tied" / "adapter" / "adapter_model.safetensors").read_bytes()


def shard(seed, labels=False):
    """Tokens that the tiny model knows."""
    ids = [3 + (seed + i * i + i // 3) % 60 for i in range(200)]
    tensors = {"ids": tiny_safetensors.row(ids)}
    if labels:
        learned = [token if i % 4 > 1 else -100 for i, token in enumerate(ids)]
        tensors["etiket"] = tiny_safetensors.row(learned)
    return tiny_safetensors.write(tensors)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A folder with the tiny model that the engine's own tests use."""
    folder = tmp_path_factory.mktemp("model")
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(GOLDEN / "tied" / name, folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(GOLDEN / "tokenizer" / name, folder)
    return folder


class Volunteer:
    """A running `trainyard-worker volunteer --json`, and the events that it has told."""

    def __init__(self, url, name, model, state, *options):
        self.process = subprocess.Popen(
            [BINARIES / "trainyard-worker", "--json", "volunteer", "--koordinator", url, "--isci", name,
             "--model", model, "--lora-alpha", "8", "--retry-delay", "0.05", "--threads", "1", *options],
            env={"PATH": os.environ["PATH"], "STATE_DIR": str(state), "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.events, self.errors = [], []
        self.told = threading.Condition()
        self.readers = [threading.Thread(target=self._events, daemon=True),
                        threading.Thread(target=self._errors, daemon=True)]
        for reader in self.readers:
            reader.start()

    def _events(self):
        for line in self.process.stdout:
            with self.told:
                self.events.append(json.loads(line))
                self.told.notify_all()

    def _errors(self):
        self.errors.extend(self.process.stderr)

    def wait_for(self, kind, **fields):
        """The first event of this kind whose fields are as given."""
        wanted = {"event": kind, **fields}.items()
        with self.told:
            told = lambda: any(wanted <= event.items() for event in self.events)
            assert self.told.wait_for(told, DEADLINE_SECONDS), (self.events, self.errors)

    def end(self):
        """The exit code, once it has ended by itself."""
        code = self.process.wait(DEADLINE_SECONDS)
        for reader in self.readers:
            reader.join(DEADLINE_SECONDS)
        return code

    def count(self, kind):
        return sum(event["event"] == kind for event in self.events)

    def kill(self):
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)


@pytest.fixture
def volunteers(model, tmp_path):
    """Starts volunteers, each with a state folder by its name, that end with the test."""
    with contextlib.ExitStack() as stack:
        def start(url, name, *options):
            state = tmp_path / digest(name.encode())[:8]
            volunteer = Volunteer(url, name, str(model), state, *options)
            stack.callback(volunteer.kill)
            return volunteer
        yield start


def posts(state):
    return [path for method, path, _ in state.requests if method == "POST"]


def test_two_volunteers_train_three_rounds_and_end_with_zero(volunteers):
    state = State(WEIGHTS, [shard(1), shard(2, labels=True)], rounds=3, enough=2)
    coordinator = Coordinator(state)
    running = [volunteers(coordinator.url, name) for name in ("ali", "veli+çem 1/2")]
    for volunteer in running:
        assert volunteer.end() == 0, volunteer.errors
        assert volunteer.events[-1] == {"event": "finished"}
        assert (volunteer.count("round"), volunteer.count("delivered")) == (3, 3)
    coordinator.stop()
    assert state.round == 3
    assert {name for name, _, _ in state.taken} == {"ali", "veli+çem 1/2"}
    assert any("isci=veli%2B%C3%A7em%201%2F2" in path for path in posts(state))
    headers = [headers for method, _, headers in state.requests if method == "POST"]
    taken = {digest(body) for _, _, body in state.taken}
    assert {head["x-sha256"] for head in headers} == taken
    assert len(set(map(digest, state.globals))) == 4, "every round moves the weights"
    first = tiny_safetensors.read(state.globals[0])
    last = tiny_safetensors.read(state.globals[-1])
    assert first.keys() == last.keys()


def test_a_volunteer_gives_the_same_bytes_for_the_same_task(volunteers):
    taken = []
    for name in ("first", "second"):
        state = State(WEIGHTS, [shard(1)], rounds=1, enough=1)
        coordinator = Coordinator(state)
        assert volunteers(coordinator.url, name).end() == 0
        coordinator.stop()
        taken.append(state.taken[0][2])
    assert taken[0] == taken[1]


def test_a_restart_of_the_coordinator_is_waited_out(volunteers):
    state = State(WEIGHTS, [shard(1)], rounds=3, enough=2)
    coordinator = Coordinator(state)
    volunteer = volunteers(coordinator.url, "ali")
    volunteer.wait_for("delivered")
    port = coordinator.port
    coordinator.stop()
    volunteer.wait_for("waiting", reason="fault")
    coordinator = Coordinator(state, port)
    other = volunteers(coordinator.url, "veli")
    assert (volunteer.end(), other.end()) == (0, 0), (volunteer.errors, other.errors)
    coordinator.stop()
    assert state.round == 3


def test_a_volunteer_that_is_killed_delivers_what_it_has_trained_when_it_is_started_again(volunteers):
    state = State(WEIGHTS, [shard(1)], rounds=1, enough=1)
    coordinator = Coordinator(state)
    # It has trained while the coordinator was away.
    take, state.take = state.take, lambda *_: (503, {"hata": "not now"})
    volunteer = volunteers(coordinator.url, "ali")
    volunteer.wait_for("trained")
    volunteer.kill()
    trained = next(event["sha256"] for event in volunteer.events if event["event"] == "trained")
    state.take = take
    again = volunteers(coordinator.url, "ali")
    assert again.end() == 0, again.errors
    coordinator.stop()
    assert (again.count("round"), again.count("delivered")) == (0, 1)
    assert digest(state.taken[0][2]) == trained


def test_a_wrong_key_ends_it_with_two_and_is_never_shown(volunteers):
    state = State(WEIGHTS, [shard(1)], rounds=1, enough=1, key="right")
    coordinator = Coordinator(state)
    wrong = volunteers(coordinator.url, "ali", "--anahtar", "very-wrong-key", "--log", "trace")
    assert wrong.end() == 2
    assert not any("very-wrong-key" in line for line in wrong.errors)
    assert not any("very-wrong-key" in path for _, path, _ in state.requests)
    right = volunteers(coordinator.url, "veli", "--anahtar", "right")
    assert right.end() == 0, right.errors
    coordinator.stop()


@pytest.mark.parametrize("url", ["http://yard.example.org", "http://192.168.1.5:8765", "http://[::1]:8765", "yard"])
def test_an_address_that_is_refused_ends_it_with_two(volunteers, url):
    assert volunteers(url, "ali").end() == 2


def test_an_address_with_a_password_is_refused_without_showing_it(volunteers):
    refused = volunteers("https://me:very-secret@yard.example.org", "ali")
    assert refused.end() == 2
    assert refused.errors and not any("very-secret" in line for line in refused.errors)


def test_own_data_is_used_where_the_coordinator_serves_none(volunteers, tmp_path):
    text = tmp_path / "words.txt"
    text.write_text("some words to learn from\n\nand some more of them\n" * 20)
    tokens = tmp_path / "tokens.safetensors"
    tokens.write_bytes(shard(3))
    for name, data in (("text", text), ("shard", tokens)):
        state = State(WEIGHTS, [None, None], rounds=1, enough=1, served=False, task={"mod": "cpt"})
        coordinator = Coordinator(state)
        volunteer = volunteers(coordinator.url, name, "--veri", str(data))
        assert volunteer.end() == 0, volunteer.errors
        coordinator.stop()
        assert len(state.taken) == 1


def test_paused_volunteers_do_nothing_until_they_are_resumed(volunteers, tmp_path):
    state = State(WEIGHTS, [shard(1)], rounds=1, enough=1)
    coordinator = Coordinator(state)
    folder = tmp_path / digest(b"ali")[:8]
    turn = lambda switch: subprocess.run(
        [BINARIES / "trainyard-worker", "volunteer", switch], check=True, stdout=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "STATE_DIR": str(folder)})
    turn("pause")
    volunteer = volunteers(coordinator.url, "ali")
    volunteer.wait_for("waiting")
    assert volunteer.events[-1]["reason"] == "paused"
    assert not any("/gorev" in path for _, path, _ in state.requests)
    turn("resume")
    assert volunteer.end() == 0, volunteer.errors
    coordinator.stop()


def test_packed_shards_are_what_the_document_says(model, tmp_path):
    chats = tmp_path / "chats.jsonl"
    rows = [{"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"a{i}"}]}
            for i in range(6)]
    chats.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for mode in ("cpt", "sft"):
        folder = pathlib.Path(tmp_path / mode)
        pack = lambda shards, *more: subprocess.run(
            [BINARIES / "trainyard-worker", "--json", "pack", "--data", chats, "--model", model, "--shards", shards,
             "--mode", mode, "--output", folder, *more],
            capture_output=True, env={"PATH": os.environ["PATH"], "STATE_DIR": str(tmp_path / "state")})
        assert pack("3").returncode == 0
        assert pack("2").returncode != 0, "shards are not left beside others"
        packed = pack("2", "--overwrite")
        assert packed.returncode == 0, packed.stderr
        told = json.loads(packed.stdout)
        assert sorted(os.listdir(folder)) == ["shard-00000.safetensors", "shard-00001.safetensors", "shards.json"]
        assert told["format"] == "safetensors-ids-v1"
        for entry in told["shards"]:
            body = (folder / entry["file"]).read_bytes()
            assert digest(body) == entry["sha256"]
            tensors = tiny_safetensors.read(body)
            assert {name: dtype for name, (dtype, _, _) in tensors.items()}["ids"] == "I32"
            ids = tensors["ids"][2]
            assert len(ids) == entry["tokens"]
            if mode == "cpt":
                assert "etiket" not in tensors
            else:
                labels = tensors["etiket"][2]
                assert all(label in (-100, token) for label, token in zip(labels, ids))
                assert 0 < sum(label != -100 for label in labels) < len(ids)
