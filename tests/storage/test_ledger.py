"""Whatever instant a crash or a full disk picks, the ledger of a privacy budget has all that noise was used for."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from p2pfl.compress import make_compressor
from p2pfl.core import CommitRound, Freeze, RoundRefused
from p2pfl.engine import Codecs, Engine, NodeState, change, redo, restore
from p2pfl.features.privacy import LedgerFile
from p2pfl.learn import LocalRound
from p2pfl.learn.privacy import Ledger, Promise, Spend, reconcile
from p2pfl.methods import Method
from p2pfl.node import EngineThread, Order, Pay
from p2pfl.storage import Store

COST = Spend(noise=1.25, rate=0.5, steps=3)
BUDGET = 8 * COST.steps
CODECS = Codecs(make_compressor("none"), {})


def total(ledger):
    return sum(spend.steps for spend in ledger.spent)


def wrong(ledger):
    """A plan that counts steps."""
    if ledger is None or not ledger.is_whole or total(ledger) + COST.steps > BUDGET:
        return RoundRefused(why="nothing is left", for_good=True)
    return None


def beside(folder):
    """The file beside a key in that folder."""
    return LedgerFile(folder / "node.key", "ward", "pi1")


class Node:
    """The engine's thread of one process, one job at a time. `used` is told of each round for which noise is drawn.

    Its key is in the folder of its state, so that a model of one disk has both.
    """

    def __init__(self, store, state, used):
        file = beside(store._folder)
        file.begin(state.ledger)
        self.thread = EngineThread(
            Engine(index=0, state=state, codecs=CODECS), store, durability="exchange", extra={}, second_ledger=file
        )
        self.thread.listener = self
        self.used = used
        self.refusals = []
        self.thread.checkpoint(state)

    def deliver(self, events, _flush):
        self.refusals += [event for event in events if isinstance(event, RoundRefused)]

    def flushed(self, _flush):
        pass

    def fail(self, error):
        raise error

    def do(self, *jobs):
        for job in jobs:
            self.thread.jobs.put(job)
        self.thread._batch()
        while self.thread.flushing.is_owed and self.thread.broken_since is None:
            self.thread._batch()

    def pay(self):
        self.do(Pay(COST, wrong, lambda _: self.used()))

    def commit(self):
        """The round that was paid for, then a request that shows it."""
        state = self.thread.engine.state
        local = LocalRound(vector=state.model * 0.5, steps=3, learning_rate=0.1, samples=10, loss=0.0)
        self.thread.engine.outcomes.put((state.model.copy(), local))
        version = state.version + 1
        pending = state.edges[1].record.pending
        show = Freeze(
            peer=1, incarnation=0, seq=1, version=version, echo=None, weight=1.0, staleness=0.0, pace_s=0.0, audit=False
        )
        self.do(
            CommitRound(version=version, trained=True, rho=1.0, elapsed_s=0.0, least_samples=1.0),
            *([] if pending else [show]),
        )


def begun():
    state = NodeState.new(np.ones(4, np.float32), 10, (1,))
    state.ledger = Ledger(unit="record", word="first", promise=Promise("record", 8.0, 1e-5))
    return state


def recovered(store):
    """As `parts.recover` does it; None: nothing was ever kept."""
    loaded = store.load()
    if loaded is None:
        return None
    state = restore(loaded.state.header, loaded.state.arrays, loaded.state.blobs)
    for record in loaded.records:
        redo(state, change(record.kind, record.header, record.blobs, np.dtype("f4")), codecs=CODECS, method=Method())
    kept = state.ledger if loaded.complete else state.ledger.as_incomplete()
    state.ledger = reconcile(kept, beside(store._folder).read())
    return state


def ledger_in(folder, files):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files:
        (folder / name).write_bytes(content)
    with closing(Store.open(folder, durability="exchange")) as store:
        state = recovered(store)
    return None if state is None else state.ledger


@pytest.fixture(autouse=True)
def _syncs_cost_nothing(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr("os.fdatasync", lambda _: None)


class Used:
    def __init__(self):
        self.steps = self.paid = 0

    def __call__(self):
        self.steps += COST.steps


def run_script(node, script, used):
    for step in script:
        match step:
            case "p":
                used.paid += COST.steps
                node.pay()
            case "r":
                node.commit()
            case "c":
                node.do(Order.CHECKPOINT)


def test_at_every_write_the_ledger_has_at_least_what_was_used_and_at_most_what_was_paid(
    tmp_path, monkeypatch, crashing_disk
):
    """Wherever the crash is, also between the file beside the key and the log, it is sure of that."""
    disk, used = crashing_disk(tmp_path / "live"), Used()
    bounds = {}

    def note():
        for state in disk.possible_states():
            low, high = bounds.get(state, (0, BUDGET))
            bounds[state] = max(low, used.steps), min(high, used.paid)

    disk.after_each = note
    with monkeypatch.context() as patch:
        disk.install(patch)
        store = Store.open(tmp_path / "live", durability="exchange")
        store.load()
        run_script(Node(store, begun(), used), "prprcpprpcpr", used)
        store.close()
    note()
    assert used.steps == 6 * COST.steps
    assert len(bounds) > 50
    for files, (low, high) in bounds.items():
        ledger = ledger_in(tmp_path / "crashed", files)
        if ledger is None:
            assert low == 0
        else:
            assert ledger.is_whole
            assert low <= total(ledger) <= high, [name for name, _ in files]


@pytest.mark.parametrize("length", [1, 3])
def test_what_a_full_disk_does_not_take_is_never_trained(tmp_path, monkeypatch, crashing_disk, length):
    """The disk refuses some operations in a row, wherever that begins."""
    monkeypatch.setattr("p2pfl.node.engine_thread.RETRY_S", 0.0)
    for first in itertools.count():
        folder, used = tmp_path / str(first), Used()
        disk = crashing_disk(folder)
        with monkeypatch.context() as patch:
            disk.install(patch)
            store = Store.open(folder, durability="exchange")
            store.load()
            node, begun_at = Node(store, begun(), used), disk.operations
            disk._refused = range(begun_at + first, begun_at + first + length)
            run_script(node, "pprcpr", used)
            store.close()
        if disk.operations <= begun_at + first:
            assert first > 20
            return
        for files in disk.possible_states():
            assert total(ledger_in(tmp_path / "crashed", files)) >= used.steps


MEMORY = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None


@settings(max_examples=40)
@example(steps=["pay", "crash"], jumps=[])
@example(steps=["break", "pay", "crash", "pay"], jumps=[0.0, -9.0])
@given(
    steps=st.lists(st.sampled_from(["pay", "pay", "train", "checkpoint", "crash", "break", "clock"]), max_size=30),
    jumps=st.lists(st.floats(-1e6, 1e6), max_size=5),
)
def test_in_no_order_of_crashes_does_more_train_than_the_ledger_or_the_budget_has(steps, jumps):
    """Nor does it matter what the clock says."""
    times = itertools.cycle(jumps or [0.0])
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: next(times))
        used = Used()
        store = Store.open(folder, durability="exchange")
        store.load()
        node = Node(store, begun(), used)
        paid = 0
        for step in steps:
            match step:
                case "pay":
                    before = used.steps
                    node.pay()
                    paid += used.steps > before
                case "train" if paid:
                    paid -= 1
                    node.commit()
                case "checkpoint":
                    node.do(Order.CHECKPOINT)
                case "break":
                    node.thread.store.end_log("it breaks")
                case "crash":
                    store.close()
                    store = Store.open(folder, durability="exchange")
                    state = recovered(store)
                    assert total(state.ledger) >= used.steps
                    node, paid = Node(store, state, used), 0
            assert used.steps <= total(node.thread.engine.state.ledger)
        store.close()
        assert used.steps <= BUDGET


@pytest.mark.parametrize("script", ["pprpr", "prcpprp"])
def test_a_log_that_is_cut_at_any_byte_brings_no_round_back(tmp_path, script):
    """The file beside the key has them, or the state is known to lack something."""
    used, live, cut = Used(), tmp_path / "live", tmp_path / "cut"
    with closing(Store.open(live, durability="exchange")) as store:
        store.load()
        run_script(Node(store, begun(), used), script, used)
    log, files = max(live.glob("log-*")), {path.name: path.read_bytes() for path in live.iterdir()}
    sure = 0
    for length in range(len(files[log.name])):
        ledger = ledger_in(cut, (files | {log.name: files[log.name][:length]}).items())
        assert total(ledger) == used.steps
        sure += ledger.is_whole
    assert sure > length / 2
    del files["node.ledger"]
    assert not ledger_in(cut, files.items()).is_whole, "nothing vouches for the end of the log"


def test_an_old_copy_of_the_state_folder_brings_no_round_back(tmp_path):
    used, live = Used(), tmp_path / "live"
    with closing(Store.open(live, durability="exchange")) as store:
        store.load()
        node = Node(store, begun(), used)
        run_script(node, "pr", used)
        old = {path.name: path.read_bytes() for path in live.iterdir() if path.name != "node.ledger"}
        run_script(node, "pprp", used)
    new = {path.name: path.read_bytes() for path in live.iterdir()}
    ledger = ledger_in(tmp_path / "back", (old | {"node.ledger": new["node.ledger"]}).items())
    assert (total(ledger), ledger.is_whole) == (used.steps, True)


def test_a_ledger_that_lacks_what_was_on_disk_says_so_and_pays_for_nothing(tmp_path):
    used = Used()
    with closing(Store.open(tmp_path, durability="exchange")) as store:
        store.load()
        run_script(Node(store, begun(), used), "ppp", used)
    log = max(tmp_path.glob("log-*"))
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    with closing(Store.open(tmp_path, durability="exchange")) as store:
        state = recovered(store)
        assert total(state.ledger) == used.steps, "by the file beside the key"
        assert not state.ledger.is_whole
        node = Node(store, state, used)
        node.pay()
    assert used.steps == 3 * COST.steps
    assert [refusal.for_good for refusal in node.refusals] == [True]
    with closing(Store.open(tmp_path, durability="exchange")) as store:
        assert not recovered(store).ledger.is_whole, "a checkpoint does not make it whole"


@pytest.mark.parametrize("lose", [Path.unlink, lambda log: log.write_bytes(b"")])
def test_a_ledger_whose_whole_log_is_gone_says_so(tmp_path, lose):
    used = Used()
    with closing(Store.open(tmp_path, durability="exchange")) as store:
        store.load()
        run_script(Node(store, begun(), used), "cpp", used)
    lose(max(tmp_path.glob("log-*")))
    with closing(Store.open(tmp_path, durability="exchange")) as store:
        state = recovered(store)
        assert not state.ledger.is_whole
        Node(store, state, used).pay()
    assert used.steps == 2 * COST.steps
