"""One node as a process, or as an object in a program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from p2pfl.config.load import load_config, load_node, node_file
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.features import FEATURES, import_declared
from p2pfl.node.application import Application
from p2pfl.node.assembly import Setup, read_setup
from p2pfl.node.learner_runner import OnRound
from p2pfl.node.service import notify, watched
from p2pfl.node.shutdown import shutdown_on_request
from p2pfl.reporting.status import NodeLine, NodeResult
from p2pfl.system import require_nodes

ARRIVE, PREPARE = (tuple(import_declared(what)) for what in ("ARRIVE", "PREPARE"))
"""Imported with this module, so that nodes that share its import share theirs."""


def arrived(federation: FederationConfig, name: str, config: Path | None = None) -> FederationConfig:
    """Return the federation with which the node starts; features may know a newer one, or wait for it.

    Raises UserError: a file is wrong.
    """
    for arrive in ARRIVE:
        federation = arrive(federation, name, config)
    return federation


def prepared(federation: FederationConfig, node: NodeConfig, *, launched: bool) -> bool:
    """Let features wait for what they need before there is a model. Return False if the node was stopped.

    Raises UserError: a feature can never get what it needs.
    """
    return all(prepare(federation, node, launched=launched) for prepare in PREPARE)


async def run_node(
    setup: Setup,
    *,
    on_line: Callable[[NodeLine], None],
    launched: bool = False,
    make: Callable[..., Application] = Application,
) -> NodeResult | None:
    """Run one node to its end, or until SIGINT or SIGTERM. Return its result, or None if it was stopped at its start.

    With `launched`, lines contain a sketch of the model, and the node stops when its stdin ends, which happens when the
    launcher dies. `make` takes the arguments of `Application`.
    """
    application = make(setup, on_line=on_line, sketched=launched, features=FEATURES)
    async with shutdown_on_request(application.stop, launched=launched, on_ended=application.member_ended):
        result = await watched(application.run(), application.says, lambda: getattr(application, "thread", None))
    notify("STOPPING=1", "STATUS=ended")
    return result


class Node:
    """One node of a federation, as `p2pfl run` starts it; the caller handles signals.

    `federation` is the file or its folder; `on_progress` is called with its figures at most ten times a second,
    `on_round` with its state after each local round, in the training thread.

    Raises UserError: there is a mistake in the files.
    """

    def __init__(
        self,
        federation: Path | str,
        name: str,
        *,
        on_progress: Callable[[NodeLine], None] = lambda _: None,
        on_round: OnRound | None = None,
    ) -> None:
        require_nodes("p2pfl.Node")
        described = arrived(load_config(federation), name)
        config = load_node(node_file(described, name), described, name)
        self._setup = read_setup(described, config)
        self._application = Application(self._setup, on_line=on_progress, on_round=on_round, features=FEATURES)

    async def run(self) -> NodeResult | None:
        """Run until the rounds are done or `stop` is called; the result is also written to `<state_dir>/result.json`.

        Return None if it was stopped before it could begin, because its disk was full.
        """
        return await self._application.run()

    def stop(self) -> None:
        """End cleanly, keeping a snapshot. Call it from the event loop that runs the node."""
        self._application.stop()
