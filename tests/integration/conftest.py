"""Federations in a temporary folder, and whole nodes of them on one event loop, over real sockets and real files."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ports import free_ports

from p2pfl.config import FederationConfig, load_config, load_node
from p2pfl.core import Beginning, rounds
from p2pfl.crypto.identity import Identity, public_text
from p2pfl.features import FEATURES
from p2pfl.node import Application, Feature, read_learned, read_setup
from p2pfl.reporting import NodeLine, NodeResult, NodeStatus

DEADLINE_S = 100.0
POLL_S = 0.01

TRAINING = {"rounds": 20, "local_steps": 2, "learning_rate": 0.1, "closing_rounds": 6, "evaluate_every": 0}
GOSSIP = {"compressor": "none", "start_wait_s": 20.0, "linger_s": 20.0}
TASK = {"name": "quadratic"}
PATIENCE_S = 8.0


def table(name: str, values: Mapping[str, Any]) -> str:
    return (
        f"[{name}]\n"
        + "".join(f"{key} = {_value(value)}\n" for key, value in values.items() if value is not None)
        + "\n"
    )


def _value(value: Any) -> str:
    if not isinstance(value, Mapping):
        return json.dumps(value)
    return "{ " + ", ".join(f"{key} = {json.dumps(one)}" for key, one in value.items()) + " }"


class Ward:
    """A federation on disk. Options are keys of its tables; what `write` is told later replaces what stands there."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        self.names = [f"node{index}" for index in range(nodes)]
        self.ports = list(free_ports(nodes))
        self.tables: dict[str, dict[str, Any]] = {
            "federation": {"name": "ward", "seed": 3, "topology": "ring"},
            "task": dict(TASK),
            "training": dict(TRAINING),
            "gossip": dict(GOSSIP),
        }
        self.edges: dict[tuple[str, str], str] = {}
        """compressors of single edges."""
        for name in self.names:
            (folder / name).mkdir(parents=True)
            Identity.generate().save(folder / name / "node.key")
            self.write_node(name)
        self.write()

    def write(self, file: str = "federation.toml", **tables: Mapping[str, Any]) -> Path:
        """With other options into another file: what a user has who edited his copy alone."""
        changed = {name: values | tables.get(name, {}) for name, values in self.tables.items()}
        text = "".join(table(name, values) for name, values in changed.items())
        for name, port in zip(self.names, self.ports, strict=True):
            key = public_text(Identity.load(self.folder / name / "node.key").public)
            text += "[" + table("node", {"name": name, "key": key, "address": f"127.0.0.1:{port}"}).replace(
                "]", "]]", 1
            )
        for between, spec in self.edges.items():
            text += "[" + table("edge", {"between": between, "compressor": spec}).replace("]", "]]", 1)
        path = self.folder / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def write_node(self, name: str, *, data: Mapping[str, Any] | None = None, **node: Any) -> None:
        port = self.ports[self.names.index(name)]
        text = table("node", {"listen": f"127.0.0.1:{port}", **node}) + table("data", data or {})
        (self.folder / name / "node.toml").write_text(text, encoding="utf-8")

    def federation(self, file: str = "federation.toml") -> FederationConfig:
        return load_config(self.folder / file)

    def model(self, index: int) -> np.ndarray:
        """What is on disk, read as from outside."""
        return read_learned(self.folder / self.names[index]).vector.astype(np.float64)


class Wrapped:
    """A learner that is asked for everything but what its wrapper does itself."""

    def __init__(self, learner: Any) -> None:
        self.learner = learner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.learner, name)


class Abreast(Wrapped):
    """Begins each of its rounds together with all who share the barrier, and lets them pass it so many times in it.

    Only the first `rounds`: of those that follow, until all are through, nodes take different numbers.
    """

    def __init__(self, learner: Any, barrier: threading.Barrier, beats: int, rounds: int) -> None:
        super().__init__(learner)
        self.barrier = barrier
        self.beats = beats
        self.rounds = rounds

    def train(self, start: Any, index: int) -> Any:
        with suppress(threading.BrokenBarrierError):
            for _ in range(self.beats if index < self.rounds else 0):
                self.barrier.wait()
        return self.learner.train(start, index)


class Held(Wrapped):
    """Its rounds last until `let_go`; notes what is asked of it meanwhile."""

    def __init__(self, learner: Any) -> None:
        super().__init__(learner)
        self.trains, self.let_go = threading.Event(), threading.Event()
        self.meanwhile: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if self.trains.is_set() and not self.let_go.is_set():
            self.meanwhile.append(name)
        return super().__getattr__(name)

    def train(self, *arguments: Any) -> Any:
        self.trains.set()
        self.let_go.wait()
        return self.learner.train(*arguments)


class Running:
    """One node, from its files to its result."""

    def __init__(
        self, ward: Ward, index: int, file: str = "federation.toml", features: Sequence[Feature] = FEATURES
    ) -> None:
        federation = ward.federation(file)
        folder = ward.folder / ward.names[index]
        self.setup = read_setup(federation, load_node(folder, federation))
        self.lines: list[NodeLine] = []
        self.application = Application(self.setup, on_line=self.lines.append, features=features)
        self.task = asyncio.create_task(self.application.run())

    def learn_with(self, learner: Any) -> None:
        """Of use before the node's task has begun: before anything is awaited."""
        self.application.current.setup = replace(self.setup, learner=learner)

    def hold(self) -> Held:
        """Its rounds, until `let_go`: of use when `learn_with` is."""
        held = Held(self.setup.learner)
        self.learn_with(held)
        return held

    def end_wait(self) -> None:
        """What it waits for by the clock, before its first round or after its last, has been waited for."""
        driver = self.application.driver
        driver.core.rounds.phase_from = float("-inf")
        driver._wake()

    @property
    def status(self) -> NodeStatus | None:
        """None while the node has not opened its doors."""
        status = getattr(self.application, "status", None)
        return None if status is None else status.full()

    @property
    def phase(self) -> str | None:
        return None if self.status is None else self.status.phase

    @property
    def rounds(self) -> int:
        return 0 if self.status is None else self.status.rounds

    @property
    def goes_by_the_newest(self) -> bool:
        """Whether its core goes by the federation that it has heard of last."""
        live = self.application.current.live
        return live is not None and live.status.core.amending.pending_change is None

    @property
    def resyncs(self) -> int:
        return sum(neighbor.resyncs for neighbor in self.status.neighbors)

    async def until(self, condition: Callable[[], Any], deadline_s: float = DEADLINE_S) -> None:
        async with asyncio.timeout(deadline_s):
            while not condition():
                if self.task.done():
                    raise AssertionError(f"the node ended before: {await self.task}")
                await asyncio.sleep(POLL_S)

    async def result(self) -> NodeResult | None:
        async with asyncio.timeout(DEADLINE_S):
            return await asyncio.shield(self.task)

    async def stop(self) -> NodeResult | None:
        """As SIGTERM would."""
        self.application.stop()
        return await self.result()

    async def break_off(self) -> None:
        """No last snapshot is written, as in a crash."""
        self.task.cancel()
        await asyncio.wait([self.task], timeout=DEADLINE_S)


@pytest.fixture
def patient(monkeypatch):
    """A round waits for every neighbor, however long that one is held up.

    For what must come out where nobody is left behind: rounds of milliseconds would leave behind whoever's disk or
    processor takes a second once.
    """
    monkeypatch.setattr("p2pfl.core.limits.FIRST_PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr("p2pfl.core.limits.PATIENCE_FLOOR_S", PATIENCE_S)
    monkeypatch.setattr(rounds, "LEAST_USUAL_WAIT_S", PATIENCE_S)
    monkeypatch.setitem(GOSSIP, "max_wait_s", PATIENCE_S)
    monkeypatch.setitem(GOSSIP, "exchanges_per_s", 10_000.0)  # a wish for which no token is left is waited for in vain


@pytest.fixture
def ward(tmp_path):
    """Make a federation: `ward(nodes, training={...}, gossip={...}, task={...}, federation={...})`."""
    made = 0

    def ward(nodes: int, **tables: Mapping[str, Any]) -> Ward:
        nonlocal made
        made += 1
        new = Ward(tmp_path / f"ward{made}", nodes)
        for name, values in tables.items():
            new.tables[name] |= values
        new.write()
        return new

    return ward


@pytest.fixture
async def start():
    """Start nodes; whatever still runs at the end of the test is broken off.

    `abreast`: none begins a round before all can. Patience alone does not see to that: who is not a neighbor of a node
    that is held up goes on, and its neighbors answer it in whatever round they are. `beats`: how many rounds of the
    others go into one of each.
    """
    running: list[Running] = []
    barriers: list[threading.Barrier] = []

    def start(
        ward: Ward,
        *indices: int,
        file: str = "federation.toml",
        abreast: bool = False,
        beats: Mapping[int, int] | None = None,
        features: Sequence[Feature] = FEATURES,
    ) -> list[Running]:
        new = [Running(ward, index, file, features) for index in indices or range(len(ward.names))]
        running.extend(new)
        if abreast:
            barriers.append(threading.Barrier(len(new)))
            for node in new:
                turns = (beats or {}).get(node.setup.member.index, 1)
                rounds = node.setup.federation.training.rounds or 0
                node.learn_with(Abreast(node.setup.learner, barriers[-1], turns, rounds))
        return new

    yield start
    for barrier in barriers:
        barrier.abort()
    for node in running:
        if not node.task.done():
            await node.break_off()


@pytest.fixture
def finish():
    """Wait for the results of all, which must have finished, with so many rounds or, beside slower ones, more."""

    async def finish(nodes: list[Running], *, rounds: int | None = None) -> list[NodeResult]:
        results = [await node.result() for node in nodes]
        assert all(result.finished for result in results)
        assert rounds is None or min(result.rounds for result in results) >= rounds
        return results

    return finish


@pytest.fixture
def lone(monkeypatch):
    """Nodes begin without any neighbor, as if one had been there and had gone: others would wait for one for ever."""
    monkeypatch.setattr(Beginning, "_wait_alone", lambda _self, _now: None)
