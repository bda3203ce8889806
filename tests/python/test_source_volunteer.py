"""Our coordinator as a volunteer of another make sees it, written from the text of Coordinator protocol v1 alone."""

import hashlib
import json
import math
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
import tiny_safetensors
from conftest import DEADLINE_SECONDS, ROOT

GOLDEN = ROOT / "tests" / "golden"


class SourceVolunteer:
    """Takes tasks, checks what it gets, and sends weights that it has moved a little, without training."""

    def __init__(self, base, name, key=None):
        self.base, self.name, self.key = base, name, key

    def request(self, method, path, body=None, **fields):
        """Status, headers and body of an answer."""
        query = "&".join(f"{name}={urllib.parse.quote(str(value), safe='')}" for name, value in fields.items())
        request = urllib.request.Request(f"{self.base}/{path}?{query}".rstrip("?"), data=body, method=method)
        if body is not None:
            request.add_header("Content-Type", "application/octet-stream")
        if self.key:
            request.add_header("X-Anahtar", self.key)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=DEADLINE_SECONDS) as response:
                return response.status, response.headers, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def json(self, method, path, body=None, **fields):
        status, _, answer = self.request(method, path, body, **fields)
        return status, json.loads(answer)

    def task(self):
        status, task = self.json("GET", "gorev", isci=self.name)
        assert status == 200, task
        return task

    def weights(self, task):
        """The task's weights, checked as the document asks."""
        status, headers, body = self.request("GET", "agirlik")
        assert status == 200
        assert headers["Content-Type"] == "application/octet-stream"
        assert headers["X-Sha256"] == hashlib.sha256(body).hexdigest() == task["agirlik_sha256"]
        assert int(headers["X-Tur"]) == task["tur"]
        return body

    def shard(self, task):
        status, headers, body = self.request("GET", "veri", parca=task["parca"])
        assert status == 200
        assert headers["X-Sha256"] == hashlib.sha256(body).hexdigest() == task["veri_sha256"]
        return tiny_safetensors.read(body)

    def moved(self, weights, by):
        tensors = tiny_safetensors.read(weights)
        for _, _, values in tensors.values():
            for i in range(len(values)):
                values[i] += by * math.sin(i)
        return tiny_safetensors.write(tensors)

    def send(self, round_, body):
        return self.json("POST", "sonuc", body, isci=self.name, tur=round_)


@pytest.fixture
def session(start_platform, tmp_path):
    """Makes volunteer sessions at a platform; gives their address."""
    folder = tmp_path / "models" / "yard" / "tiny"
    folder.mkdir(parents=True)
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(GOLDEN / "tied" / name, folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(GOLDEN / "tokenizer" / name, folder)
    platform = start_platform(MODELS_DIR=str(tmp_path / "models"), HF_HUB_OFFLINE="1")
    admin = platform.admin()

    def make(**fields):
        text = ("some words to learn\n\nand some more of them\n\n" * 40).encode()
        dataset = admin.request("POST", "/api/datasets?name=words&format=text", text, "application/octet-stream")
        made = admin.post("/api/coordinators", {
            "name": "fables", "base_model": "yard/tiny", "dataset_id": dataset["id"], "toplam_tur": 2, "n_parca": 2,
            "en_az": 2, "ic_adim": 2, "bs": 2, "seq": 16, "lora": {"r": 4, "target_modules": ["q_proj"]}, **fields})
        admin.wait_for(f"/api/coordinators/{made['id']}", lambda shown: shown["status"] != "preparing")
        return f"http://{platform.address}/c/fables"

    return make


def next_round(volunteer):
    """The next task, once the round has closed."""
    end = time.monotonic() + DEADLINE_SECONDS
    while (task := volunteer.task()).get("bekle"):
        assert time.monotonic() < end, "the round stays open"
        time.sleep(0.02)
    return task


def test_two_source_volunteers_go_through_a_session_to_its_end(session):
    base = session()
    ali, veli = SourceVolunteer(base, "ali"), SourceVolunteer(base, "veli")
    status, info = ali.json("GET", "bilgi")
    assert status == 200
    assert info["veri"] == {"bicim": "safetensors-ids-v1", "parca": 2}
    seen = []
    for round_ in range(2):
        tasks = [next_round(volunteer) for volunteer in (ali, veli)]
        assert [task["tur"] for task in tasks] == [round_, round_]
        assert {task["parca"] for task in tasks} == {0, 1}
        for task in tasks:
            for field, value in {"toplam_tur": 2, "n_parca": 2, "ic_adim": 2, "bs": 2, "seq": 16}.items():
                assert task[field] == value, field
        shards = [volunteer.shard(task) for volunteer, task in ((ali, tasks[0]), (veli, tasks[1]))]
        for shard, task in zip(shards, tasks):
            assert len(shard["ids"][2]) == task["veri_belirtec"]
        weights = ali.weights(tasks[0])
        seen.append(weights)
        assert ali.send(round_, ali.moved(weights, 0.01)) == (200, {"tamam": True, "tur": round_})
        assert ali.task() == {"bekle": True, "tur": round_}
        status, refusal = ali.send(round_, ali.moved(weights, 0.02))
        assert status == 409 and refusal["hata"]
        assert veli.send(round_, veli.moved(weights, 0.02)) == (200, {"tamam": True, "tur": round_})
    assert next_round(ali) == {"bitti": True}
    assert veli.task() == {"bitti": True}
    assert seen[0] != seen[1]


def test_uploads_that_are_not_valid_are_refused_and_the_round_goes_on(session):
    base = session(en_az=1, toplam_tur=1)
    ali = SourceVolunteer(base, "ali")
    weights = ali.weights(ali.task())
    nan = tiny_safetensors.read(weights)
    next(iter(nan.values()))[2][0] = math.nan
    name, (dtype, shape, values) = next(iter(tiny_safetensors.read(weights).items()))
    for body in (b"", b"no safetensors", weights[:-1], tiny_safetensors.write(nan),
                 tiny_safetensors.write({name: (dtype, shape, values)})):
        status, refusal = ali.send(0, body)
        assert status in (400, 411) and refusal["hata"], body[:20]
    assert ali.send(1, weights)[0] == 409
    assert ali.send(0, ali.moved(weights, 0.01))[0] == 200
    assert next_round(ali) == {"bitti": True}


def test_a_session_with_a_key_asks_for_it_everywhere_but_at_bilgi(session):
    base = session(anahtar="open-sesame", en_az=1, toplam_tur=1)
    stranger, ali = SourceVolunteer(base, "ali", "wrong"), SourceVolunteer(base, "ali", "open-sesame")
    assert stranger.json("GET", "bilgi")[0] == 200
    for method, path, fields in (("GET", "gorev", {"isci": "ali"}), ("GET", "agirlik", {}),
                                 ("GET", "veri", {"parca": 0}), ("POST", "sonuc", {"isci": "ali", "tur": 0})):
        body = b"x" if method == "POST" else None
        status, refusal = stranger.json(method, path, body, **fields)
        assert status == 401 and refusal["hata"], path
    task = ali.task()
    assert ali.send(0, ali.moved(ali.weights(task), 0.01))[0] == 200


def test_a_repeat_after_a_lost_answer_is_harmless(session):
    base = session(en_az=1, toplam_tur=2)
    ali = SourceVolunteer(base, "ali")
    body = ali.moved(ali.weights(ali.task()), 0.01)
    assert ali.send(0, body)[0] == 200
    assert next_round(ali)["tur"] == 1
    assert ali.send(0, body)[0] == 200, "also when the round has closed"
    assert ali.task()["tur"] == 1
