"""All nodes of a federation in this process.

A run has real sockets on loopback, and one thread in which nodes train in turn. It is for scripts and notebooks. Their
own event loop may be busy, so the nodes have a loop in a separate thread. Nothing is pickled, no signal is handled, and
nothing is left behind: states are in a folder that is removed at the end.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from p2pfl.config.load import load_node, node_file
from p2pfl.config.model import Compute, FederationConfig, NodeConfig
from p2pfl.crypto.identity import Identity
from p2pfl.errors import LearningError
from p2pfl.features import FEATURES
from p2pfl.fleet.fleet import STOPPED, Child, Lies
from p2pfl.fleet.report import History, add_references, final_report, refuse_references
from p2pfl.net.address import free_ports
from p2pfl.node.application import Application, OneProcess
from p2pfl.node.assembly import Setup, setup_of
from p2pfl.node.feature import Feature
from p2pfl.node.folders import KEY_FILE
from p2pfl.node.learner_runner import OnRound, compute_thread
from p2pfl.reporting.measures import Point
from p2pfl.reporting.report import Report

log = logging.getLogger("p2pfl")

T = TypeVar("T")

LOOK_EVERY_S = 0.2
LISTEN_EVERY_S = 0.1
"""Ctrl-C takes effect within this time."""

OnProgress = Callable[[Point], None]


def run_together(federation: FederationConfig, *, references: bool, **wishes: Any) -> Report:
    """Run all nodes to their end; `wishes` are fields of an `InProcessFleet`. Ctrl-C cancels the run once the current
    local round is over.

    Raises UserError: the task, its options or the data are wrong; LearningError: the task failed in a node.
    """
    if references:
        refuse_references(federation, "references")
    with tempfile.TemporaryDirectory(prefix="p2pfl-") as folder:
        together = InProcessFleet(*_with_keys(federation), Path(folder), **wishes)
        setups = together.prepare()
        report = _in_own_loop(lambda: together.run(setups), together.cancel)
        if references:
            add_references(report, together.federation, together.children)
    return report


def _with_keys(federation: FederationConfig) -> tuple[FederationConfig, list[Identity]]:
    """Return the federation with keys and addresses on this machine, made for this run."""
    identities = [Identity.generate() for _ in federation.members]
    members = tuple(
        replace(member, key=identity.public, address=f"127.0.0.1:{port}")
        for member, identity, port in zip(federation.members, identities, free_ports(len(identities)), strict=True)
    )
    return replace(federation, members=members), identities


@dataclass(slots=True)
class InProcessFleet:
    """The nodes and the lines that they printed. `run` belongs to one event loop; any thread may call `cancel`."""

    federation: FederationConfig
    identities: Sequence[Identity]
    folder: Path
    on_progress: OnProgress | None = None
    on_round: OnRound | None = None
    compute: Mapping[str, Compute] = field(default_factory=dict)
    """The device of each node whose node file does not name one."""
    checkpoints: Path | None = None
    """The folder in which each node has a folder for its checkpoints, written every `checkpoint_every` rounds."""
    checkpoint_every: int = 0
    checkpoints_kept: int = 1
    features: Sequence[Feature] = FEATURES
    children: list[Child] = field(default_factory=list)
    lies: Lies | None = None
    stopping: bool = False
    started_at: float = field(default_factory=time.monotonic)
    _cancel: Callable[[], object] | None = None

    @property
    def honest(self) -> list[Child]:
        return self.children

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_at

    def cancel(self) -> None:
        self.stopping = True
        if self._cancel is not None:
            self._cancel()

    def prepare(self) -> list[Setup]:
        """Load the models and data of all nodes, in the caller's thread, so that all mistakes in them are found before
        a node starts.
        """
        pairs = zip((member.name for member in self.federation.members), self.identities, strict=True)
        return [setup_of(self.federation, self._node(name), identity, passing=True) for name, identity in pairs]

    async def run(self, setups: Sequence[Setup]) -> Report:
        self.children = [Child(name=setup.member.name, node=setup.node) for setup in setups]
        history, compute = History(), compute_thread()
        shared = OneProcess(compute=compute, all_ready=asyncio.Barrier(len(setups)).wait)
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._watch(history))
                runs = [
                    group.create_task(self._run_one(child, setup, shared))
                    for child, setup in zip(self.children, setups, strict=True)
                ]
                loop = asyncio.get_running_loop()
                self._cancel = lambda: [loop.call_soon_threadsafe(task.cancel) for task in (*runs, watch)]
                if self.stopping:  # Ctrl-C arrived before there was anything to cancel
                    self._cancel()
                await asyncio.wait(runs)
                watch.cancel()
        finally:
            self._cancel = None
            await asyncio.to_thread(compute.shutdown, cancel_futures=True)
        history.look(self)
        report = final_report(self, history.points)
        for text in report.warnings:
            log.warning("%s", text)
        failed = [node.name for node in report.nodes if node.failed_rounds and node.failed_rounds >= (node.rounds or 0)]
        if failed:  # an initial model is not a result
            text = "every round raised an error or gave no finite model (learning_rate too high?)"
            raise LearningError(f"{', '.join(failed)}: {text}")
        return report

    def _node(self, name: str) -> NodeConfig:
        """Return the node's settings from its file, if there is one, with the state folder and address for this run."""
        is_file = self.federation.path.is_file()
        place = node_file(self.federation, name) if is_file else self.folder / name
        node = load_node(place, self.federation, name)
        own, compute = self.folder / name, self.compute.get(name, node.compute)
        if self.checkpoints is not None:
            every, kept = self.checkpoint_every, self.checkpoints_kept
            folder = self.checkpoints.absolute() / name
            node = replace(node, checkpoint_dir=folder, checkpoint_every=every, checkpoints_kept=kept)
        return replace(
            node,
            compute=replace(node.compute, device=compute.device, precision=compute.precision),
            key_file=own / KEY_FILE,
            state_dir=own / "state",
            listen=self.federation.member(name).address or "127.0.0.1:0",
            status_listen=None,
            durability="snapshot" if self.federation.privacy is None else "exchange",
            discovery=False,
        )

    async def _run_one(self, child: Child, setup: Setup, shared: OneProcess) -> None:
        hooks: dict[str, Any] = {"on_line": child.lines.append, "on_round": self.on_round}
        application = Application(setup, **hooks, sketched=True, shared=shared, features=self.features)
        result = await application.run()
        child.exit_code = 0 if result is not None and result.finished else STOPPED

    async def _watch(self, history: History) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            point = history.look(self)
            if point is not None and self.on_progress is not None:
                await asyncio.to_thread(self.on_progress, point)


def _in_own_loop(work: Callable[[], Coroutine[Any, Any, T]], cancel: Callable[[], object]) -> T:
    """Run `work` to its end in a loop and a thread of its own, and return its result, or raise its error.

    Ctrl-C calls `cancel` and waits for the end.
    """
    outcome, is_there = Future[T](), threading.Event()

    def find() -> None:
        try:
            outcome.set_result(run_selecting(work()))
        except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
            outcome.set_exception(_first(error))
        finally:
            is_there.set()

    thread = threading.Thread(target=find, name="p2pfl")
    try:
        thread.start()
        while not is_there.wait(LISTEN_EVERY_S):
            pass
    finally:
        cancel()
        if thread in threading.enumerate():  # Ctrl-C may come while the thread starts
            is_there.wait()  # in Python 3.11 a thread whose join was interrupted counts as stopped
            thread.join()
    return outcome.result()


def run_selecting(work: Coroutine[Any, Any, T]) -> T:
    """Do as `asyncio.run`, in a loop that can watch a socket: the usual one of Windows cannot."""
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(work)


def _first(error: BaseException) -> BaseException:
    """Return the first real error: the nodes that are stopped because of it have none of their own."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
