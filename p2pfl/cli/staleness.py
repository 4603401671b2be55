"""`p2pfl staleness`: the weight of an exchange by how late it is."""

from __future__ import annotations

from typing import Any

import click

from p2pfl.console.output import Form, format_option, write_rows

TURNS = (0, 1, 4, 16, 64)
"""The numbers of turns late in the table."""


@click.command(epilog="\b\nExamples:\n  p2pfl staleness\n  p2pfl staleness hinge-polynomial:4,0.5 hinge:0.5,8")
@click.argument("specs", metavar="[SPEC]...", nargs=-1)
@format_option("table", "json", "csv")
def staleness(*, specs: tuple[str, ...], form: Form) -> None:
    """List how much a late exchange counts.

    SPEC is a value of `staleness` in federation.toml: its weights are shown. Without SPEC all functions are explained.
    An exchange is tau turns late if the neighbor last had this node's model tau turns of their edge ago. Beyond 64
    turns it counts only with `none`.
    """
    write_rows([_weights(spec) for spec in specs] or _all(), form)


def _all() -> list[dict[str, Any]]:
    from p2pfl.core.staleness import STALENESS  # noqa: PLC0415 - `--help` stays instant

    return [
        {"staleness": one.usage, "counts": one.means, "parameters": one.in_words or None, "source": one.source or None}
        for one in STALENESS.values()
    ]


def _weights(spec: str) -> dict[str, Any]:
    """Return the weights of a function. Raises UserError: it names no function."""
    from p2pfl.core.staleness import STALENESS, parse_staleness  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.errors import UserError  # noqa: PLC0415 - as above

    try:
        weigh = parse_staleness(spec)
    except ValueError as error:
        raise UserError(str(error), key="SPEC", value=spec, allowed=STALENESS.usages) from None
    return {"staleness": spec} | {f"tau {turns}": weigh(turns) for turns in TURNS}
