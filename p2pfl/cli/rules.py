"""`p2pfl rules`: how a node may mix when some of its neighbors lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from p2pfl.cli.output import Form, format_option, write_facts, write_json, write_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p2pfl.aggregate import Rule
    from p2pfl.errors import UserError

SHOWN = {
    "does": "does",
    "b_means": "b is",
    "neighbors_needed": "neighbors needed",
    "bound": "bound",
    "cost": "cost",
    "weights": "weights",
    "source": "from",
}


@click.command(epilog="\b\nExample:\n  p2pfl rules\n  p2pfl rules trimmed-mean:b=2 nnm+median:b=1 --format json")
@click.argument("specs", metavar="[SPEC]...", nargs=-1)
@format_option("table", "json", "csv")
def rules(*, specs: tuple[str, ...], form: Form) -> None:
    """Say how a node may mix when some of its neighbors lie.

    SPEC is what `rule` in federation.toml may be; without it all are shown, with b=1. m neighbors are there, n = m + 1
    models with the own one, and b of the neighbors may lie. With fewer than "neighbors needed" a node does not mix.
    kappa: the squared error is at most kappa times the variance of the honest models. weights: staleness counts.
    `p2pfl check` says what a rule bears on a federation's graph.
    """
    rows = _rows(specs)
    if form == "json":
        write_json(rows)
    elif form == "csv":
        write_rows(rows, "csv")
    else:
        for row in rows:
            write_facts({shown: row[key] for key, shown in SHOWN.items()}, title=row["rule"])


def _rows(specs: Sequence[str]) -> list[dict[str, Any]]:
    """Every mistake in them at once."""
    from p2pfl.aggregate import make_rule  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.aggregate.described import DESCRIPTIONS  # noqa: PLC0415 - as above
    from p2pfl.errors import UserError  # noqa: PLC0415 - as above

    rows, mistakes = [], []
    for spec in specs or [described.example for described in DESCRIPTIONS]:
        try:
            rows.append(_row(make_rule(spec)))
        except UserError as error:
            mistakes.append(_of_argument(error, spec))
    if mistakes:
        raise ExceptionGroup("no such rules", mistakes)
    return rows


def _row(rule: Rule | None) -> dict[str, Any]:
    from p2pfl.aggregate.described import of  # noqa: PLC0415 - as above

    found = of(rule.spec if rule else "mean")
    return {
        "rule": rule.spec if rule else "mean",
        "b": rule.liars if rule else 0,
        "neighbors_needed": rule.least if rule else 0,
        "does": found.does,
        "b_means": found.b_means,
        "bound": found.bound,
        "cost": found.cost,
        "weights": found.weights,
        "source": found.source,
    }


def _of_argument(error: UserError, spec: str) -> UserError:
    error.key, error.value = "SPEC", spec
    return error
