"""The options that say how far sites are from each other, for all commands that tell times."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topologies.cli.terminal import Command, Decorator
from topologies.errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topologies.timing.latencies import Latencies

FAR_HELP = """\b
Far sites: --far 28-29=60ms: messages to and from nodes 28 to 29 take 60 ms
longer, one way. --distances: lines `a,b,60ms`, or a matrix of milliseconds.
Two far nodes are twice as far apart. More: docs/how-to/which-graph.md
"""


class Delay(click.ParamType):  # type: ignore[type-arg]  # generic only in later releases of click
    """A time from zero: `60ms`, `0.06s`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from topologies.timing.latencies import time_in_seconds  # noqa: PLC0415 - `--help` stays instant

        if isinstance(value, float):
            return value
        seconds = time_in_seconds(str(value), unit=None)
        if seconds is None:
            self.fail(f"{value!r} is no time; allowed: such as 60ms or 0.5s", param, ctx)
        return seconds


def far_options(command: Command) -> Command:
    """Add --far, --distances and --train."""
    options: list[Decorator] = [
        click.option("--far", "far", multiple=True, metavar="NODES=TIME", help="Far nodes, as 28-29=60ms; repeatable."),
        click.option(
            "--distances",
            type=click.Path(path_type=Path),
            default=None,
            metavar="FILE",
            help="A CSV file of times between nodes.",
        ),
        click.option("--train", type=Delay(), default="0s", show_default=True, help="Time of a node's local round."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def read_distances(
    nodes: int, names: Sequence[str], *, far: Sequence[str], distances: Path | None, train: float
) -> Latencies | None:
    """Return the distances that the options tell; None if they tell none.

    Raises TopologyError: they cannot be understood, or there is only --train, which changes nothing without them.
    """
    if not far and distances is None:
        if train:
            text = "no time is told without knowing how far the nodes are from each other"
            raise TopologyError(text, key="train", value=f"{train:g}s", allowed="with --far or --distances")
        return None
    from topologies.timing import latencies as module  # noqa: PLC0415 - `--help` stays instant

    told = [module.read_far(text) for text in far]
    return module.latencies(nodes, names=names, far=told, file=distances)
