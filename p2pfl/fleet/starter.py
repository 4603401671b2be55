"""Start a node of a federation as a process.

Each node is an ordinary `p2pfl run` in its own session, so that Ctrl-C reaches it only through its launcher. Its stdin
ties it to the launcher: if the launcher dies, the node stops too. Where it is safe, nodes are forked from one process,
so that torch is imported only once (`fork_server`).
"""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec

from p2pfl.config.model import FederationConfig
from p2pfl.fleet.child import Child
from p2pfl.fleet.fork_server import ForkedProcess, ForkServer, NotForked, why_not
from p2pfl.fleet.lies import Lies

log = logging.getLogger("p2pfl")

LINE_LIMIT = 1 << 20
SHARED = ("click", "numpy.random", "p2pfl.config.load", "p2pfl.fleet.process")
"""The modules that every node imports."""
SHARED_WITH_TORCH = ("p2pfl.learn.trainer", "p2pfl.learn.digits")
SHARED_BY_TASK = {
    "lora": (
        "p2pfl.adapt.transformers",
        "peft",
        "transformers.models.auto.modeling_auto",
        "transformers.models.auto.tokenization_auto",
    )
}
"""The modules that the nodes of a built-in task import besides; none if one of their packages is missing."""
WITHOUT_TORCH = ("quadratic",)
"""Tasks that do not need torch."""


class Starter:
    """Starts children, until `give_up` is called. With `spawn`, each is started separately, so that they share no
    import; with `verbose`, their logs are verbose.
    """

    def __init__(
        self, federation: FederationConfig, lies: Lies | None = None, *, spawn: bool = False, verbose: bool = False
    ) -> None:
        self._federation, self._lies, self._spawn, self._verbose = federation, lies, spawn, verbose
        self._server: ForkServer | None = None
        self._has_given_up = False

    @asynccontextmanager
    async def sharing(self, children: Sequence[Child]) -> AsyncIterator[list[Child]]:
        """Allow `start` to fork in this context. Yield the children in the order in which to start them: those that
        share no import come first, because the others wait for it.
        """
        async with AsyncExitStack() as until_started:
            self._server = await self._fork_server(children, until_started)
            yield sorted(children, key=self._may_share)
        self._server = None

    async def start(self, child: Child) -> Process | ForkedProcess | None:
        """Start a child, one at a time. Return None if `give_up` was called in the meantime."""
        if not self._may_start():
            return None
        if self._server is not None and self._may_share(child):
            try:
                with child.log_path.open("ab") as stderr:
                    return await self._server.start(self._command(child), stderr=stderr, limit=LINE_LIMIT)
            except NotForked as reason:
                if not self._may_start():
                    return None
                self._share_nothing(reason)
        return await self.start_alone(child)

    async def start_alone(self, child: Child) -> Process:
        """Start a plain process, whatever else is being started."""
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

    def give_up(self) -> None:
        """Start no more children, and stop waiting for the shared import."""
        self._has_given_up = True
        if self._server is not None:
            self._server.give_up()

    def _may_start(self) -> bool:
        """Return True if a child may start; a method, because it may change during each wait."""
        return not self._has_given_up

    async def _fork_server(self, children: Sequence[Child], until_started: AsyncExitStack) -> ForkServer | None:
        sharing = [child for child in children if self._may_share(child)]
        if self._spawn or self._has_given_up or not sharing or why_not() is not None:
            return None
        room = max(len(" ".join([sys.executable, *self._command(child)]).encode()) for child in sharing)
        server = ForkServer(shared_modules(self._federation), room=room)
        try:
            return await until_started.enter_async_context(server)
        except NotForked as reason:
            self._share_nothing(reason)
            return None

    def _may_share(self, child: Child) -> bool:
        """Return True if the child may be forked. The shared import fixes the number of linear algebra threads at one,
        the nodes' default.
        """
        return child.node.threads == 1 and self._command(child)[0] == "-m"

    def _share_nothing(self, reason: NotForked) -> None:
        self._server = None
        log.warning("the nodes cannot share one import (%s): each is started separately", reason)

    def _command(self, child: Child) -> list[str]:
        if child.byzantine and self._lies is not None:
            command = self._lies.command(self._federation, child.name)
        else:
            command = ["-m", "p2pfl.cli.main", "run", str(self._federation.path), "--node", child.name]
        return [*command, "--format", "json", "--launched", *(["-v"] if self._verbose else [])]


def shared_modules(federation: FederationConfig) -> list[str]:
    """Return the modules that all nodes of a federation import, in order."""
    task = federation.task.name
    if task in WITHOUT_TORCH or federation.grows_trees or find_spec("torch") is None:
        return [*SHARED]
    besides = SHARED_BY_TASK.get(task, ())
    is_there = all(find_spec(module.partition(".")[0]) is not None for module in besides)
    return [*SHARED, *SHARED_WITH_TORCH, *(besides if is_there else ())]
