"""All nodes of a federation as processes on this machine: start them, listen to them, end them.

Each child is an ordinary `p2pfl run`, in a session of its own, so that Ctrl-C reaches it only through us; its stdin is
a leash: if the launcher dies, the nodes stop too. Nodes that lie are commands of another package, found by the entry
point group `p2pfl.attackers`: p2pfl has no liar, and a node in the field imports nothing of this.
Where it is safe they are forked from one process, so that torch is imported once (`fork_server`).
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import msgspec

from p2pfl.config.load import load_node, node_file
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.errors import UserError
from p2pfl.fleet.fork_server import ForkedProcess, ForkServer, NotForked, why_not
from p2pfl.fleet.restarts import Restarts
from p2pfl.learn.interface import Vector
from p2pfl.node.workshop import WAITING_FOR_DISK
from p2pfl.reporting.status import NodeLine, NodeResult

GROUP = "p2pfl.attackers"


class Attackers(Protocol):
    """What the object behind the entry point offers. `spec` is the text that names an attack."""

    def check(self, spec: str) -> None:
        """Raises UserError: there is no such attack."""
        ...

    def choose(self, federation: FederationConfig, count: int) -> tuple[str, ...]:
        """Names of so many nodes, spread over the graph."""
        ...

    def command(self, federation: FederationConfig, name: str, spec: str, liars: Sequence[str]) -> list[str]:
        """Arguments for Python that make node `name` lie, as one of `liars`; those of `p2pfl run` are appended."""
        ...

    def success(
        self, spec: str, federation: FederationConfig, node: NodeConfig, models: Mapping[str, Vector]
    ) -> dict[str, float]:
        """By node, the attack's success on a model (d,), from 0 to 1; empty if accuracy shows it. `node` has data."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Lies:
    """`names` are the nodes that lie, by the attack `spec`."""

    attackers: Attackers
    spec: str
    names: tuple[str, ...]

    def command(self, federation: FederationConfig, name: str) -> list[str]:
        return self.attackers.command(federation, name, self.spec, self.names)


def find_attackers() -> Attackers:
    """Raises UserError: no package of attacks is installed."""
    for entry in entry_points(group=GROUP):
        found: Attackers = entry.load()
        return found
    raise UserError("no package of attacks is installed", key="--byzantine", allowed="`attackers`, from p2pfl's source")


log = logging.getLogger("p2pfl")

PATIENCE_S = 15.0
"""How long a stopped node may take to end; one that waits for a full disk is left alone."""
STRANDED_S = 5.0
"""How long nodes must have waited alone before they are told to stop."""
STOPPED = 130
LINE_LIMIT = 1 << 20
LOG_FILE = "node.log"
SHARED = ("click", "numpy.random", "p2pfl.config.load", "p2pfl.fleet.process")
"""What every node imports."""
SHARED_WITH_TORCH = ("p2pfl.learn.trainer", "p2pfl.learn.digits")
WITHOUT_TORCH = ("quadratic",)
"""Tasks for whose sake torch need not be imported."""


@dataclass(slots=True, kw_only=True)
class Child:
    """One node process. `lines` are what it printed; no figure of a `byzantine` one is a result."""

    name: str
    node: NodeConfig
    byzantine: bool = False
    lines: list[NodeLine] = field(default_factory=list)
    process: Process | ForkedProcess | None = None
    exit_code: int | None = None
    stranded: bool = False
    """Whether it was let go because it waited for neighbors that were not there any more."""
    ended_lives: list[NodeLine | None] = field(default_factory=list)
    """The last line of each process of it that has died and was followed by another."""
    between_lives: str = ""
    """What is to be said of it from its death to the first line of its next process."""

    @property
    def starts(self) -> int:
        return 1 + len(self.ended_lives)

    @property
    def bytes_before(self) -> int:
        """Bytes sent by its processes before this one."""
        return sum(line.bytes_sent for line in self.ended_lives if line is not None)

    @property
    def messages_before(self) -> int:
        return sum(line.messages_sent for line in self.ended_lives if line is not None)

    @property
    def last(self) -> NodeLine | None:
        return self.lines[-1] if self.lines else None

    @property
    def phase(self) -> str:
        return "starting" if self.last is None else self.last.phase

    @property
    def log_path(self) -> Path:
        return self.node.path.parent / LOG_FILE

    @property
    def died(self) -> bool:
        """Ended in another way than by finishing or by a clean stop."""
        return self.exit_code is not None and self.exit_code not in (0, STOPPED)

    @property
    def waits_for_disk(self) -> bool:
        """Whether it has said so, and has not ended since. A liar's state is worth nothing."""
        return self.exit_code is None and not self.byzantine and self.phase == WAITING_FOR_DISK

    @property
    def state(self) -> str:
        if self.exit_code is None:
            again = f", start {self.starts}" if self.ended_lives else ""
            return self.between_lives or self.phase + again
        if self.stranded:
            return "waited in vain"
        return _ending(self.exit_code)

    @property
    def waits_alone(self) -> bool:
        """Whether it runs, has still to train and finds no neighbor."""
        line = self.last
        return self.exit_code is None and line is not None and line.phase == "waiting" and not line.peers

    def let_go(self) -> None:
        """A node whose stdin ends stops, also one that has not got so far as to take signals."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    def result(self) -> NodeResult | None:
        """What the node left at its end, if this run of it came that far (or a later start of the same node)."""
        path = self.node.state_dir / "result.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=NodeResult)
        except (OSError, ValueError):
            return None


def _ending(exit_code: int) -> str:
    if exit_code < 0:
        return f"died ({signal.Signals(-exit_code).name})"
    return {0: "finished", STOPPED: "stopped"}.get(exit_code, f"failed (exit {exit_code})")


class Fleet:
    """`run` returns when every child has ended. `stop` asks all of them to end cleanly; called again, it asks those to
    give up that wait for a full disk. `spawn`: each child is started by itself, and shares no import. `restart`: one
    that dies is started again, a few times, after longer and longer pauses. `verbose`: so are their logs.
    """

    def __init__(
        self,
        federation: FederationConfig,
        lies: Lies | None = None,
        *,
        spawn: bool = False,
        restart: bool = False,
        verbose: bool = False,
    ) -> None:
        self.federation = federation
        self.lies = lies
        self.spawn = spawn
        self.restart = restart
        self.verbose = verbose
        self.server: ForkServer | None = None
        liars = () if lies is None else lies.names
        self.children = [
            Child(
                name=member.name,
                node=load_node(node_file(federation, member.name), federation, member.name),
                byzantine=member.name in liars,
            )
            for member in federation.present
        ]
        self.started_at = time.monotonic()
        self.stopping = False
        self._alone_since: float | None = None

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_at

    async def run(self, on_tick: Callable[[], None], every_s: float = 0.2) -> None:
        """Start all, call `on_tick` regularly and once at the end."""
        for child in self.children:
            (child.node.state_dir / "result.json").unlink(missing_ok=True)
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._tick(on_tick, every_s))
                if runs := await self._start_all(group):
                    await asyncio.wait(runs)
                watch.cancel()
        finally:
            self._kill()
        on_tick()

    @property
    def honest(self) -> list[Child]:
        return [child for child in self.children if not child.byzantine]

    def stop(self) -> None:
        """Let go of all leashes; who does not end in time is killed, but for those who wait for a disk."""
        if self.stopping:
            self._signal(signal.SIGTERM, [child for child in self.children if child.waits_for_disk])
            return
        self.stopping = True
        if self.server is not None:
            self.server.give_up()
        for child in self.children:
            child.let_go()
        asyncio.get_running_loop().call_later(PATIENCE_S, self._end)

    def _is_stopping(self) -> bool:
        """Asked again after each wait."""
        return self.stopping

    def _end(self) -> None:
        """Whoever waits for a disk holds what is nowhere else: it is looked at again later."""
        self._signal(signal.SIGKILL, [child for child in self.children if not child.waits_for_disk])
        if any(child.exit_code is None for child in self.children):
            asyncio.get_running_loop().call_later(PATIENCE_S, self._end)

    def _kill(self) -> None:
        self._signal(signal.SIGKILL, self.children)

    def _signal(self, number: signal.Signals, children: Iterable[Child]) -> None:
        for child in children:
            if child.process is not None and child.exit_code is None:
                with suppress(ProcessLookupError):
                    child.process.send_signal(number)

    async def _tick(self, on_tick: Callable[[], None], every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            self._end_stranded()
            on_tick()

    async def _start_all(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Those that share no import go first: the others wait for it."""
        runs = []
        async with AsyncExitStack() as until_started:
            self.server = await self._fork_server(until_started)
            for child in sorted(self.children, key=self._may_share):
                child.process = await self._start(child)
                if child.process is None:
                    child.exit_code = STOPPED
                else:
                    runs.append(group.create_task(self._follow(child, child.process)))
        self.server = None
        return runs

    async def _fork_server(self, until_started: AsyncExitStack) -> ForkServer | None:
        sharing = [child for child in self.children if self._may_share(child)]
        if self.spawn or self.stopping or not sharing or why_not() is not None:
            return None
        torch = self.federation.task.name not in WITHOUT_TORCH and find_spec("torch") is not None
        room = max(len(" ".join([sys.executable, *self._command(child)]).encode()) for child in sharing)
        server = ForkServer([*SHARED, *SHARED_WITH_TORCH] if torch else SHARED, room=room)
        try:
            return await until_started.enter_async_context(server)
        except NotForked as reason:
            self._share_nothing(reason)
            return None

    async def _start(self, child: Child) -> Process | ForkedProcess | None:
        """None: somebody has said meanwhile that all shall stop."""
        if self.stopping:
            return None
        if self.server is not None and self._may_share(child):
            try:
                with child.log_path.open("ab") as stderr:
                    return await self.server.start(self._command(child), stderr=stderr, limit=LINE_LIMIT)
            except NotForked as reason:
                if self._is_stopping():
                    return None
                self._share_nothing(reason)
        return await self._start_alone(child)

    async def _start_alone(self, child: Child) -> Process:
        with child.log_path.open("ab") as stderr:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                *self._command(child),
                stdin=PIPE,
                stdout=PIPE,
                stderr=stderr,
                start_new_session=True,
                limit=LINE_LIMIT,
            )

    def _may_share(self, child: Child) -> bool:
        """An import fixes how many threads the linear algebra has: one, as nodes have that say nothing else."""
        return child.node.threads == 1 and self._command(child)[0] == "-m"

    def _share_nothing(self, reason: NotForked) -> None:
        self.server = None
        log.warning("the nodes cannot share one import (%s): each is started by itself", reason)

    async def _follow(self, child: Child, process: Process | ForkedProcess) -> None:
        restarts = Restarts()
        while True:
            if self._is_stopping():
                child.let_go()
            began = time.monotonic()
            await self._listen(child, process)
            exit_code = await process.wait()
            pause_s = restarts.after(exit_code, time.monotonic() - began)
            again = None if pause_s is None else await self._start_again(child, exit_code, pause_s)
            if again is None:
                break
            process = child.process = again
        child.exit_code, child.between_lives = exit_code, ""
        self._dismiss()

    async def _start_again(self, child: Child, exit_code: int, pause_s: float) -> Process | None:
        """None: nobody has asked for it, or all shall stop."""
        if not self.restart or child.byzantine or child.stranded:
            return None
        log.warning("%s %s: started again in %g s", child.name, _ending(exit_code), pause_s)
        child.between_lives = f"{_ending(exit_code)}, start {child.starts + 1} follows"
        end = time.monotonic() + pause_s
        while not self._is_stopping() and time.monotonic() < end:  # noqa: ASYNC110 - `stop` may come from anywhere
            await asyncio.sleep(0.05)
        if self._is_stopping() or child.stranded:
            return None
        again = await self._start_alone(child)
        child.ended_lives.append(child.last)
        child.between_lives = f"start {child.starts}"
        return again

    def _dismiss(self) -> None:
        """A liar whom nobody listens to may wait for ever: once the honest have ended, the liars are let go."""
        if all(child.exit_code is not None for child in self.honest):
            for child in self.children:
                if child.byzantine and child.exit_code is None:
                    child.let_go()
                    asyncio.get_running_loop().call_later(PATIENCE_S, self._kill)

    def _end_stranded(self) -> None:
        """Where every node has ended or waits for neighbors that are not there, nobody will come: here all are known.

        A node of `p2pfl run` waits for ever: to it, gone and not yet there look alike.
        """
        left = [child for child in self.honest if child.exit_code is None]
        if not left or self.stopping or not all(child.waits_alone for child in left):
            self._alone_since = None
            return
        if self._alone_since is None:
            self._alone_since = time.monotonic()
        nobody_yet = len(left) == len(self.honest)
        patience_s = STRANDED_S + (self.federation.gossip.start_wait_s if nobody_yet else 0.0)
        if time.monotonic() - self._alone_since < patience_s:
            return
        for child in left:
            child.stranded = True
            child.let_go()

    def _command(self, child: Child) -> list[str]:
        if child.byzantine and self.lies is not None:
            command = self.lies.command(self.federation, child.name)
        else:
            command = ["-m", "p2pfl.cli.main", "run", str(self.federation.path), "--node", child.name]
        return [*command, "--format", "json", "--launched", *(["-v"] if self.verbose else [])]

    async def _listen(self, child: Child, process: Process | ForkedProcess) -> None:
        if process.stdout is None:
            raise AssertionError("a child without a pipe")
        async for raw in process.stdout:
            with suppress(ValueError):
                child.lines.append(msgspec.json.decode(raw, type=NodeLine))
                child.between_lives = ""
