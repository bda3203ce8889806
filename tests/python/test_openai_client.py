"""Chats through OpenAI's own client, with the real binaries and the tiny model of tests/golden."""

import os
import shutil
import subprocess

import openai
import pytest
from conftest import BINARIES, DEADLINE_SECONDS, ROOT

MODEL = "yard/tiny"
CHAT = [{"role": "user", "content": "Hello there"}]


@pytest.fixture(scope="module")
def yard(tmp_path_factory):
    """A platform with a worker that has the tiny model; the administrator's REST client and OpenAI's."""
    from conftest import Platform

    folder = tmp_path_factory.mktemp("yard")
    model = folder / "models" / "yard" / "tiny"
    model.mkdir(parents=True)
    golden = ROOT / "tests" / "golden"
    for file in ("tied/config.json", "tied/generation_config.json", "tied/model.safetensors",
                 "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json"):
        shutil.copy(golden / file, model)
    platform = Platform(folder / "data", WORKER_HEARTBEAT_TIMEOUT="60")
    worker = None
    try:
        admin = platform.admin()
        key = admin.post("/api/enrollment-keys", {"max_uses": 1})["key"]
        worker = subprocess.Popen(
            [BINARIES / "trainyard-worker", "run"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={
                "PATH": os.environ["PATH"], "PLATFORM_URL": f"http://{platform.address}", "WORKER_KEY": key,
                "STATE_DIR": str(folder / "state"), "MODELS_DIR": str(folder / "models"), "HF_HUB_OFFLINE": "1",
                "DEVICE": "cpu", "BENCHMARK_SECONDS": "0.5"})
        admin.wait_for("/api/workers", lambda found: any(one["status"] == "idle" for one in found["items"]))
        token = admin.post("/api/api-tokens", {"name": "chat"})["token"]
        client = openai.OpenAI(
            base_url=f"http://{platform.address}/v1", api_key=token, timeout=DEADLINE_SECONDS, max_retries=0,
            http_client=openai.DefaultHttpxClient(trust_env=False))
        yield admin, client
    finally:
        if worker:
            worker.kill()
            worker.wait()
        platform.stop()


@pytest.fixture
def client(yard):
    return yard[1]


def ask(client, **more):
    return client.chat.completions.create(**{"model": MODEL, "messages": CHAT, "temperature": 0, **more})


def test_models_are_listed_and_found_by_name(client):
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as refused:
        client.models.retrieve("job-99")
    assert refused.value.code == "model_not_found"


def test_completion_has_its_text_and_its_counts(client):
    answer = ask(client, max_tokens=8)
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length")
    assert 0 <= answer.usage.completion_tokens <= 8
    assert answer.usage.prompt_tokens > 0
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.model == MODEL
    assert ask(client, max_completion_tokens=8).choices[0].message.content == choice.message.content


def test_stream_joined_is_the_text_and_ends_with_usage(client):
    whole = ask(client, max_tokens=24)
    chunks = list(ask(client, max_tokens=24, stream=True, stream_options={"include_usage": True}))
    joined = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert joined == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage
    assert chunks[0].choices[0].delta.role == "assistant"


def test_seed_gives_the_same_answer_again(client):
    answers = [ask(client, max_tokens=16, temperature=1.0, top_p=0.9, seed=seed).choices[0].message.content
               for seed in (7, 7)]
    assert answers[0] == answers[1]


def test_stop_text_ends_the_answer_before_it(client):
    whole = ask(client, max_tokens=24).choices[0].message.content
    assert len(whole) > 3, "the tiny model says something at temperature 0"
    stop = whole[2:4]
    for given in (stop, [stop, "never said"]):
        answer = ask(client, max_tokens=24, stop=given)
        assert answer.choices[0].message.content == whole[:whole.index(stop)]
        assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(("wrong", "param"), [
    ({"n": 2}, "n"), ({"temperature": -1}, "temperature"), ({"top_p": 1.5}, "top_p"), ({"max_tokens": -1}, "max_tokens"),
    ({"messages": []}, "messages"), ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
])
def test_parameter_that_is_not_taken_is_named(client, wrong, param):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, **wrong)
    assert refused.value.param == param


def test_unknown_model_and_wrong_key_are_refused(client):
    with pytest.raises(openai.NotFoundError) as refused:
        ask(client, model="org/unknown")
    assert refused.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        ask(client.with_options(api_key="usr_wrong"))


def test_client_that_leaves_a_stream_frees_the_worker(yard):
    admin, client = yard
    stream = ask(client, max_tokens=200, temperature=1.0, seed=3, stream=True)
    next(iter(stream))
    stream.close()
    admin.wait_for("/api/workers", lambda found: any(one["status"] == "idle" for one in found["items"]))
    assert ask(client, max_tokens=4).usage.completion_tokens <= 4
