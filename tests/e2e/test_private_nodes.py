"""Real processes with a privacy budget: killed with -9, restarted, asked in every way for what they must not tell."""

from __future__ import annotations

import json
import random
import re
import subprocess
import time
import urllib.request
from contextlib import suppress

import pytest
from real_field import P2PFL, Field, processes

from p2pfl.config import load_config
from p2pfl.features.privacy import node_budgets
from p2pfl.node import replay
from p2pfl.storage import peek

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

ROUNDS, STEPS = 16, 5
DEADLINE_S = 150.0
"""Of a process that imports torch and an accountant, on a machine that does other things too."""
FIGURES = ("loss", "test_loss", "accuracy", "local_accuracy", "local_loss", "classes", "train_loss", "local_metrics")
PROMETHEUS = "p2pfl_(train_loss|test_loss|test_metric|accuracy_ratio)"


def private_field(folder, nodes, *, test_set="private"):
    task = 'name = "digits"\npartition = "iid"'
    field = Field(folder / "field", nodes, task=task, rounds=ROUNDS, local_steps=STEPS, linger_s=5.0)
    privacy = f'\n[privacy]\nepsilon = 8.0\ndelta = 1e-4\ntest_set = "{test_set}"\n'
    field.file.write_text(field.file.read_text() + privacy)
    return field


def p2pfl(*arguments):
    done = subprocess.run(
        [*P2PFL, *map(str, arguments)], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def spent(field, name):
    """Rounds paid for, rounds in the model, and epsilon, by what is on disk."""
    federation = load_config(field.folder)
    (budget,) = node_budgets(federation, [name])
    paid = sum(one.steps for one in budget.ledger.spent)
    return paid // STEPS, replay(peek(field.state(name))).rounds, budget.epsilon


def test_a_node_killed_with_9_whose_log_is_cut_never_forgets_and_never_exceeds_its_budget(tmp_path):
    """Cut at the end, by one byte and by more each time, between a kill and the next start.

    One whose only round was cut off joins anew, and takes over rounds that its neighbor has trained.
    """
    chance = random.Random(5)
    field = private_field(tmp_path, 2)
    p2pfl("privacy", "begin", field.folder)
    before, joined = dict.fromkeys(field.names, 0), dict.fromkeys(field.names, False)
    with processes(field) as run:
        for life in range(3):
            nodes = [run(name) for name in field.names]
            first = nodes[0]
            first.until(lambda first=first, life=life: first.rounds > 2 * life, "a round", deadline_s=DEADLINE_S)
            time.sleep(chance.uniform(0.0, 0.3))
            for node in nodes:
                node.kill()
                paid, rounds, epsilon = spent(field, node.name)
                joined[node.name] |= "joined:" in node.log
                assert max(before[node.name], 0 if joined[node.name] else rounds) <= paid <= ROUNDS
                assert epsilon <= 8.0
                before[node.name] = paid
                log = max(field.state(node.name).glob("log-*"))
                content = log.read_bytes()
                log.write_bytes(content[: -1 if life == 0 else len(content) * (3 - life) // 3])
                assert spent(field, node.name)[0] == paid
        nodes = [run(name) for name in field.names]
        assert [node.end(DEADLINE_S) for node in nodes] == [0, 0]
    for name in field.names:
        paid, rounds, epsilon = spent(field, name)
        assert max(before[name], 0 if joined[name] else rounds) <= paid <= ROUNDS
        assert epsilon <= 8.0
    told = field.result("node0")["privacy"]
    assert told["state"] == "spent"
    assert told["rounds_left"] == 0
    shown = {row["node"]: row for row in json.loads(p2pfl("privacy", "show", field.folder, "--format", "json"))}
    assert shown["node0"]["epsilon"] == told["epsilon"]


def values_of(told, names):
    """Every value under one of the names, however deep."""
    if isinstance(told, dict):
        return [value for key, value in told.items() if key in names] + [
            one for value in told.values() for one in values_of(value, names)
        ]
    return [one for value in told for one in values_of(value, names)] if isinstance(told, list) else []


def without_value(value):
    inside = value.values() if isinstance(value, dict) else value
    return value is None or (isinstance(value, dict | list) and all(map(without_value, inside)))


def test_nothing_that_a_private_run_tells_has_a_figure_of_anybody_s_rows(tmp_path):
    """Pages and metrics while it runs, then results, report, history and `evaluate`."""
    field = private_field(tmp_path, 3)
    p2pfl("privacy", "begin", field.folder)
    report = tmp_path / "report.json"
    launched = subprocess.Popen([*P2PFL, "launch", str(field.folder), "--report", str(report)])
    pages = []
    try:
        while launched.poll() is None:
            for file in field.folder.glob("*/state/address.json"):
                with suppress(OSError, ValueError):
                    place = json.loads(file.read_text())["status"]
                    for path in ("status", "federation", "history", "metrics"):
                        with urllib.request.urlopen(f"http://{place}/{path}", timeout=5) as answer:
                            pages.append((path, answer.read().decode()))
            time.sleep(0.2)
    finally:
        launched.kill()
    assert launched.returncode == 0
    assert {path for path, _ in pages} == {"status", "federation", "history", "metrics"}
    told = [json.loads(text) for path, text in pages if path in ("status", "federation")]
    told += [field.result(name) for name in field.names]
    told += [json.loads(report.read_text())]
    told += [json.loads(p2pfl("evaluate", field.folder / "node0", "--format", "json"))]
    assert any(values_of(told, ["epsilon"]))
    figures = values_of(told, FIGURES)
    assert len(figures) > 100
    assert [value for value in figures if not without_value(value)] == []
    assert not [text for path, text in pages if path == "metrics" and re.search(PROMETHEUS, text)]
    assert any("p2pfl_privacy_epsilon" in text for path, text in pages if path == "metrics")
    for history in [json.loads(text) for path, text in pages if path == "history"]:
        assert without_value(values_of(history, FIGURES))
