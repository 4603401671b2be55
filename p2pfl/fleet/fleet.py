"""All nodes of a federation as processes on this machine: start them, read their lines, end them."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from p2pfl.config.load import load_node, node_file
from p2pfl.config.model import FederationConfig
from p2pfl.fleet.child import STOPPED, Child, ending
from p2pfl.fleet.fork_server import ForkedProcess
from p2pfl.fleet.lies import Lies
from p2pfl.fleet.restarts import Restarts
from p2pfl.fleet.starter import Starter
from p2pfl.reporting.status import NodeLine

log = logging.getLogger("p2pfl")

PATIENCE_S = 15.0
"""The time that a stopped node may take to end; a node that waits for a full disk gets more."""
STRANDED_S = 5.0
"""The time that nodes must have waited without neighbors before they are stopped."""


class Fleet:
    """The processes of a federation. `run` returns when every child has ended.

    `stop` asks all of them to end cleanly; called again, it asks those that wait for a full disk to give up. With
    `spawn`, each child is started separately and shares no import. With `restart`, a child that dies is restarted a few
    times, after increasing pauses. With `verbose`, the children's logs are verbose.
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
        self.restart = restart
        self.starter = Starter(federation, lies, spawn=spawn, verbose=verbose)
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
        """Start all children, call `on_tick` regularly and once more at the end."""
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
        """Close all children's stdin. Those that do not end in time are killed, unless they wait for a disk."""
        if self.stopping:
            self._signal(signal.SIGTERM, [child for child in self.children if child.waits_for_disk])
            return
        self.stopping = True
        self.starter.give_up()
        for child in self.children:
            child.let_go()
        asyncio.get_running_loop().call_later(PATIENCE_S, self._end)

    def _is_stopping(self) -> bool:
        """Return True if the fleet is stopping; a method, because it may change during each wait."""
        return self.stopping

    def _end(self) -> None:
        """End the children. A child that waits for a disk has unsaved state, so it is checked again later."""
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
        runs = []
        async with self.starter.sharing(self.children) as in_order:
            for child in in_order:
                child.process = await self.starter.start(child)
                if child.process is None:
                    child.exit_code = STOPPED
                else:
                    runs.append(group.create_task(self._follow(child, child.process)))
        return runs

    async def _follow(self, child: Child, process: Process | ForkedProcess) -> None:
        restarts = Restarts()
        while True:
            if self._is_stopping():
                child.let_go()
            began = time.monotonic()
            await self._listen(child, process)
            exit_code = await process.wait()
            pause_s = restarts.next_pause_s(exit_code, time.monotonic() - began)
            again = None if pause_s is None else await self._start_again(child, exit_code, pause_s)
            if again is None:
                break
            process = child.process = again
        child.exit_code, child.between_lives = exit_code, ""
        for other in self.children if child.died else ():
            self._tell_ended(other, [child])
        self._dismiss()

    def _tell_ended(self, child: Child, ended: Iterable[Child]) -> None:
        """Tell a node which members have ended for good, so that it does not wait for them."""
        if child.process is None or child.exit_code is not None or child.process.stdin is None:
            return
        for one in ended:
            with suppress(OSError, ValueError):  # it has been let go, or is dying
                child.process.stdin.write(f"{one.name}\n".encode())

    async def _start_again(self, child: Child, exit_code: int, pause_s: float) -> Process | None:
        """Start a child again after a pause; return None without `restart`, or if all are to stop."""
        if not self.restart or child.byzantine or child.stranded:
            return None
        log.warning("%s %s: started again in %g s", child.name, ending(exit_code), pause_s)
        child.between_lives = f"{ending(exit_code)}, start {child.starts + 1} follows"
        end = time.monotonic() + pause_s
        while not self._is_stopping() and time.monotonic() < end:  # noqa: ASYNC110 - `stop` may come from anywhere
            await asyncio.sleep(0.05)
        if self._is_stopping() or child.stranded:
            return None
        again = await self.starter.start_alone(child)
        child.ended_lives.append(child.last)
        child.between_lives = f"start {child.starts}"
        return again

    def _dismiss(self) -> None:
        """End the liars once the honest nodes have ended, because a liar without listeners may wait for ever."""
        if all(child.exit_code is not None for child in self.honest):
            for child in self.children:
                if child.byzantine and child.exit_code is None:
                    child.let_go()
                    asyncio.get_running_loop().call_later(PATIENCE_S, self._kill)

    def _end_stranded(self) -> None:
        """End the nodes that wait for neighbors once no others run: all nodes are known here, so no neighbor will
        appear.

        A node under `p2pfl run` waits for ever, because it cannot tell a node that is gone from one that has not
        started yet.
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

    async def _listen(self, child: Child, process: Process | ForkedProcess) -> None:
        if process.stdout is None:
            raise AssertionError("a child without a pipe")
        is_told = False
        async for raw in process.stdout:
            with suppress(ValueError):
                child.lines.append(msgspec.json.decode(raw, type=NodeLine))
                child.between_lives = ""
                if not is_told:  # what was said before its core was there was lost
                    is_told = True
                    self._tell_ended(child, [one for one in self.children if one.died])
