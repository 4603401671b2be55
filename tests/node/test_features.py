"""The seam: a node learns without any feature, and one that fails costs what it should: itself, or the node."""

from __future__ import annotations

import asyncio
import importlib
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import torch

from p2pfl import Federation, Task, UserError
from p2pfl.config import load_config, load_node
from p2pfl.console import NewOptions
from p2pfl.core import RoundRefused
from p2pfl.crypto.identity import public_text
from p2pfl.errors import StorageError
from p2pfl.features import commands, import_declared
from p2pfl.features.status import StatusFeature
from p2pfl.fleet import InProcessFleet, _with_keys
from p2pfl.node import Application, Attached, Check, Driver, Feature, Payment, Wait, read_setup

ROOT = Path(__file__).parents[2]
AT_START = ["check", "withheld", "recover", "attach", "channels", "opening", "opened"]
RUNNING = ["status", "begin", "before_round", "look", "run", "farewell", "over"]


def run(tmp_path, federation, features):
    together = InProcessFleet(*_with_keys(federation.config), tmp_path, features=features)
    outcome = {}

    async def work():
        outcome["report"] = await together.run(together.prepare())

    asyncio.run(work())
    return outcome["report"]


def test_a_ring_of_four_learns_the_digits_without_any_feature(tmp_path):
    federation = Federation(nodes=4, topology="ring", rounds=6, seed=3, linger_s=5.0)
    report = run(tmp_path, federation, ())
    assert [node.finished for node in report.nodes] == [True] * 4
    assert min(node.accuracy for node in report.nodes) > 0.75


@pytest.fixture
def told(monkeypatch):
    """The alarms of all nodes."""
    found = []
    alarm = Driver.alarm

    def listen(self, kind, peer, text):
        found.append((kind, peer, text))
        alarm(self, kind, peer, text)

    monkeypatch.setattr(Driver, "alarm", listen)
    return found


class Failing(Feature):
    """Each hook works, but for one."""

    def __init__(self, hook, *, guards=False, error=ZeroDivisionError):
        self.name, self.hook, self.is_guard, self.error = f"that fails at {hook}", hook, guards, error

    def guards(self, setup):
        return self.is_guard

    def check(self, setup):
        self.fail("check")

    def withheld(self, setup):
        self.fail("withheld")
        return frozenset()

    def recover(self, found):
        self.fail("recover")

    def attach(self, node):
        self.fail("attach")
        return Fails(self)

    def fail(self, hook):
        if hook == self.hook:
            raise self.error(f"at {hook}")


class Fails(Attached):
    def __init__(self, feature):
        self.fail = feature.fail

    def channels(self):
        self.fail("channels")
        return ()

    def status(self):
        self.fail("status")
        return {"rows": 1}

    async def opening(self, until_over):
        self.fail("opening")

    async def opened(self, until_closed):
        self.fail("opened")

    def begin(self):
        self.fail("begin")

    def before_round(self, plan):
        self.fail("before_round")

    def look(self):
        self.fail("look")

    async def run(self):
        self.fail("run")

    async def farewell(self, *, hasty):
        self.fail("farewell")

    async def over(self, result):
        self.fail("over")


def after_a_while(outputs, _):
    time.sleep(0.03)
    return outputs.mean()


UNHURRIED = Task(
    model=lambda: torch.nn.Linear(1, 1),
    data=lambda _: ((torch.zeros(8, 1), torch.zeros(8, 1)), None),
    loss=after_a_while,
)
SMALL = {"nodes": 2, "topology": "path", "seed": 1, "linger_s": 5.0, "closing_rounds": 2}


@pytest.mark.long
def test_features_for_eyes_only_that_fail_go_off_with_an_alarm_each_and_the_node_learns_on(tmp_path, told):
    federation = Federation(task=UNHURRIED, local_steps=1, rounds=60, **SMALL)  # one is asked once a second
    report = run(tmp_path, federation, tuple(map(Failing, RUNNING)))
    assert [node.finished for node in report.nodes] == [True] * 2
    off = "is off, and the node goes on: it failed (ZeroDivisionError: at"
    texts = {text for kind, _, text in told if kind == "feature-failed"}
    assert texts == {f"that fails at {hook} {off} {hook})" for hook in RUNNING}


@pytest.mark.parametrize("hook", AT_START)
@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_at_the_start_one_that_fails_stops_the_node_with_one_clear_error(tmp_path, hook, error):
    failure = failure_of(tmp_path, (Failing(hook, error=error),))
    assert isinstance(failure, UserError)
    text = f"failed at its start, in {hook}: {error.__name__}: at {hook} (test_features.py"
    assert str(failure).startswith(f"the feature that fails at {hook} {text}")


def failure_of(tmp_path, features, **more):
    """The error by which a run of so many rounds ends."""
    with pytest.raises(BaseException) as failure:
        run(tmp_path, Federation(**{"rounds": 10_000, **SMALL, **more}), features)
    error = failure.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def test_nor_does_a_mistake_or_a_full_disk_end_the_node_once_it_runs(tmp_path, told):
    """Only at the start is there somebody to mend it."""
    hooks = ("run", "farewell", "over")
    features = tuple(Failing(hook, error=error) for hook in hooks for error in (UserError, StorageError))
    report = run(tmp_path, Federation(rounds=8, **SMALL), features)
    assert [node.finished for node in report.nodes] == [True] * 2
    off = Counter(text.split()[3] for kind, _, text in told if kind == "feature-failed")
    assert off == dict.fromkeys(hooks, 4)


def test_what_is_shown_guards_where_neighbors_bear_witness_of_a_budget():
    """Else a node that cannot hear them would spend again what it has forgotten."""
    for privacy, guards in ((None, False), (object(), True)):
        setup = SimpleNamespace(federation=SimpleNamespace(privacy=privacy))
        assert StatusFeature().guards(setup) is guards


@pytest.mark.parametrize("hook", ["begin", "before_round", "run"])
def test_one_that_guards_ends_the_node(tmp_path, hook):
    assert isinstance(failure_of(tmp_path, (Failing(hook, guards=True),)), ZeroDivisionError)


class Idle(Feature):
    """Lets nobody train before it has been asked three times, nor more than two rounds."""

    name = "idle"

    def attach(self, node):
        asked = []

        class Window(Attached):
            def before_round(self, plan):
                asked.append(plan.index)
                if len(asked) < 3:
                    return [Wait(0.01), RoundRefused(why="the machine is busy", for_good=False)][len(asked) % 2]
                return RoundRefused(why="enough", for_good=True) if plan.index >= 2 else None

        self.asked = asked
        return Window()


def test_a_feature_says_when_a_round_may_begin(tmp_path):
    report = run(tmp_path, Federation(rounds=8, **SMALL), (feature := Idle(),))
    assert [node.rounds for node in report.nodes] == [2, 2]
    assert feature.asked[-1] == 2


def test_two_that_want_to_be_paid_end_the_node(tmp_path):
    class Till(Attached):
        def before_round(self, plan):
            return Payment(None, print)

    class Paid(Feature):
        def __init__(self, name):
            self.name = name

        def attach(self, node):
            return Till()

    failure = failure_of(tmp_path, (Paid("a"), Paid("b")))
    assert "b wants to be paid for a round, and another feature too" in str(failure)


def test_one_that_needs_another_has_no_nodes_without_it(tmp_path):
    asks = type("Asks", (Feature,), {"name": "asks", "needs": ("nobody",)})
    failure = failure_of(tmp_path, (asks(),))
    assert (failure.key, failure.message) == (
        "features.asks",
        "the feature asks needs nobody, which is not there",
    )


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The feature of CONTRIBUTING.md, as a module."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    (tmp_path / "restarts_feature.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield vars(importlib.import_module("restarts_feature"))
    del sys.modules["restarts_feature"]


def test_the_feature_of_the_guide_talks_to_its_like_and_shows_what_it_heard(tmp_path, told, example):
    made = []

    class Listed(example["RestartsFeature"]):
        def attach(self, node):
            (node.setup().node.state_dir / "restarts").write_text(str(3 * node.setup().member.index))
            made.append(super().attach(node))
            return made[-1]

    run(tmp_path, Federation(rounds=8, **SMALL), (Listed(),))
    shown = {one.own: one.node.status.full().features for one in made}
    assert shown == {0: {"restarts": {"own": 0, "heard": {1: 3}}}, 3: {"restarts": {"own": 3, "heard": {0: 0}}}}
    assert [(kind, text) for kind, _, text in told if kind == "many-restarts"] == [
        ("many-restarts", "it has started 4 times")
    ]


def test_two_features_with_one_alarm_are_refused(tmp_path, example):
    twin = type("Twin", (example["RestartsFeature"],), {"name": "twin"})
    failure = failure_of(tmp_path, (example["RestartsFeature"](), twin()))
    assert "the feature twin declares an alarm that already exists" in str(failure)


@pytest.mark.parametrize(
    ("what", "kind"),
    [("FEATURE", Feature), ("CHECKS", Check), ("NEW", NewOptions), ("ARRIVE", None), ("PREPARE", None)],
)
def test_what_rooms_declare_is_there(what, kind):
    found = list(import_declared(what))
    assert found
    assert all(callable(one) if kind is None else issubclass(one, kind) for one in found)


def test_every_command_that_rooms_bring_is_one():
    assert all(isinstance(one.load(), click.Command) for one in commands().values())


def test_the_node_names_no_feature():
    """Nor does anything below it; `lint-imports` holds the imports."""
    names = re.compile(
        r"Budget\b|LedgerFile|Charter[TK]|Display|Watchdog|MemberNews|Roster|Discovery|StatusPage|VitalsSpread"
    )
    found = [
        file.name
        for file in sorted((ROOT / "p2pfl/node").glob("*.py"))
        if names.search(file.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_without_features_a_node_imports_none():
    code = "import sys, p2pfl.node.application; print([m for m in sys.modules if m.startswith('p2pfl.features')])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


async def test_a_federation_that_needs_a_feature_has_no_nodes_without_it(tmp_path):
    """It would learn on with members that were removed."""
    folder = Federation(nodes=2, topology="path").save(tmp_path / "ward")
    file = folder / "federation.toml"
    text = file.read_text(encoding="utf-8")
    federation = load_config(folder)
    key = public_text(federation.members[0].key)
    file.write_text(text.replace("seed = ", f'admin = ["{key}"]\nseed = ', 1), encoding="utf-8")
    federation = load_config(folder)
    setup = read_setup(federation, load_node(folder / "node0", federation))
    with pytest.raises(UserError, match="needs the feature members") as caught:
        await Application(setup, on_line=print, features=()).run()
    assert (caught.value.key, caught.value.file) == ("federation.admin", str(file))
    assert not (folder / "node0/state").exists()
