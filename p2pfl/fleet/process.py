"""One node as a process, or as an object of a program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from p2pfl.config.load import load_config, load_node, node_file
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.features import FEATURES, import_declared
from p2pfl.node.application import Application
from p2pfl.node.assembly import Setup, read_setup
from p2pfl.node.leash import on_a_leash
from p2pfl.node.round_callback import OnRound
from p2pfl.reporting.status import NodeLine, NodeResult


def arrived(federation: FederationConfig, name: str, config: Path | None = None) -> FederationConfig:
    """Return the federation by which the node starts: features may know a newer one, or wait for it.

    Raises UserError: a file is wrong.
    """
    for arrive in import_declared("ARRIVE"):
        federation = arrive(federation, name, config)
    return federation


def prepared(federation: FederationConfig, node: NodeConfig, *, launched: bool) -> bool:
    """Let features wait for what they need before there is a model. False: the node was stopped.

    Raises UserError: a feature can never get what it needs.
    """
    return all(prepare(federation, node, launched=launched) for prepare in import_declared("PREPARE"))


async def run_node(
    setup: Setup,
    *,
    on_line: Callable[[NodeLine], None],
    launched: bool = False,
    make: Callable[..., Application] = Application,
) -> NodeResult | None:
    """Run one node to its end, or until SIGINT or SIGTERM; return its result, None where it was stopped at its start.

    `launched`: lines carry a sketch of the model, and the node stops when its stdin ends, as it does when the launcher
    dies. `make` has the arguments of `Application`.
    """
    application = make(setup, on_line=on_line, sketched=launched, features=FEATURES)
    async with on_a_leash(application.stop, launched=launched):
        return await application.run()


class Node:
    """One node of a federation, as `p2pfl run` starts it; the caller handles signals.

    `federation` is the file or its folder; `on_progress` gets its figures at most ten times a second, `on_round` its
    state after each local round, in the thread that trains.

    Raises UserError: something in the files is wrong.
    """

    def __init__(
        self,
        federation: Path | str,
        name: str,
        *,
        on_progress: Callable[[NodeLine], None] = lambda _: None,
        on_round: OnRound | None = None,
    ) -> None:
        described = arrived(load_config(federation), name)
        config = load_node(node_file(described, name), described, name)
        self._application = Application(
            read_setup(described, config), on_line=on_progress, on_round=on_round, features=FEATURES
        )

    async def run(self) -> NodeResult | None:
        """Run until the rounds are done or `stop` is called; the result also stands in `<state_dir>/result.json`.

        None where it was stopped before it could begin, because its disk was full.
        """
        return await self._application.run()

    def stop(self) -> None:
        """End cleanly, keeping a snapshot. Call it from the event loop that runs the node."""
        self._application.stop()
