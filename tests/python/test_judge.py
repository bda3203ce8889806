"""The judge of coordinators against a coordinator that was written from the text of Coordinator protocol v1 alone."""

import json
import os
import subprocess

from conftest import BINARIES, DEADLINE_SECONDS, ROOT
from source_coordinator import Coordinator, State
from test_volunteer import WEIGHTS, shard

SECONDS = 3 * DEADLINE_SECONDS


def judged(state, *options):
    """What the judge says of each rule."""
    coordinator = Coordinator(state)
    judge = subprocess.run(
        [BINARIES / "trainyard", "conformance", "coordinator", coordinator.url, "--json", "--quiet-for", "0.2",
         "--answer-within", "4", "--anahtar", state.key, *options],
        cwd=ROOT, env={"PATH": os.environ["PATH"]}, stdout=subprocess.PIPE, timeout=SECONDS)
    coordinator.stop()
    report = json.loads(judge.stdout)
    assert report["conforms"] == (judge.returncode == 0)
    return report, {rule["id"]: rule for rule in report["rules"]}


def test_a_coordinator_that_does_what_the_document_says_conforms():
    labels = [shard(number, labels=True) for number in (1, 2)]
    state = State(WEIGHTS, labels, rounds=60, enough=3, key="sesame", timeout_seconds=3)
    report, rules = judged(state, "--wait-seconds", "20")
    failed = [rule for rule in report["rules"] if rule["level"] == "required" and rule["result"] == "fail"]
    assert report["conforms"] and not failed, failed
    for seen in ("round.timeout", "veri.etiket", "gorev.spread", "validate.nan"):
        assert rules[seen]["result"] == "pass", rules[seen]


def test_a_coordinator_that_takes_what_is_not_finite_does_not_conform():
    state = State(WEIGHTS, [shard(1), shard(2)], rounds=60, enough=3, key="sesame")
    strict = state.problem
    state.problem = lambda body: None if "finite" in (problem := strict(body) or "") else problem or None
    report, rules = judged(state)
    assert not report["conforms"]
    assert rules["validate.nan"]["result"] == "fail"
    assert rules["validate.shape"]["result"] == "pass"
