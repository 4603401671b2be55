"""`p2pfl score`: measure how good a model is, on a labelled table that was kept for testing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p2pfl.console.output import Form, cell, format_option, write_facts, write_json, write_rows
from p2pfl.features.tables.predict_command import read_model

if TYPE_CHECKING:
    from p2pfl.learn.table.testing import Figure, TableOutputs

FORMS: tuple[Form, ...] = ("table", "json", "csv")
OWN = "the node has learned from rows of this very table: it will do worse on others"


@click.command(epilog="\b\nExample:\n  p2pfl score hospitals/site1 test.csv\n  p2pfl score model.safetensors test.csv")
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@click.argument("table", metavar="TABLE", type=click.Path(path_type=Path))
@click.option("--federation", type=click.Path(path_type=Path), help="Its file; by default looked for above MODEL.")
@click.option("--node", metavar="NAME", help="The node, if MODEL does not say.")
@format_option(*FORMS)
def score(*, model: Path, table: Path, federation: Path | None, node: str | None, form: Form) -> int:
    """Measure how good a model is on TABLE.

    MODEL is the folder of a node whose task is csv, its state folder, or a file from `p2pfl export`. TABLE has the
    target, and rows that no node has trained on; rows without a target are left out. Each metric has a 95% interval,
    which covers the chance in the choice of rows. Nothing is sent to anybody, so this also works for a federation with
    [privacy], whose nodes report no scores; but the figures reveal something about TABLE's rows.
    """
    from p2pfl.learn.table.reading import read_table, say_what_is_odd  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.learn.table.testing import tested  # noqa: PLC0415 - as above

    found, layout, learned_from = read_model(model, table, federation, node)
    rows = read_table(table, found.schema, layout, testing=True)
    for text in say_what_is_odd(rows, "TABLE"):
        click.echo(f"warning: {text.replace(' of node TABLE', '')}", err=True)
    if learned_from is not None and learned_from.resolve() == table.resolve():
        click.echo(f"warning: {OWN}", err=True)
    result = tested(found, rows)
    figures = list(result.figures())
    if undefined := [one.label for one in figures if one.value is None]:
        click.echo(f"warning: not defined here: {', '.join(undefined)}: {result.why_undefined()}", err=True)
    _show(result, figures, form, left_out=rows.without_target)
    return 0


def _show(result: TableOutputs, figures: list[Figure], form: Form, *, left_out: int) -> None:
    counts, rows = result.class_counts, [_row(one) for one in figures]
    if form == "json":
        write_json({"rows": len(result), "rows_left_out": left_out, "classes": counts, "metrics": rows})
    elif form == "csv":
        write_rows([row | {"rows": len(result)} for row in rows], "csv")
    else:
        classes = counts and ", ".join(f"{name} {count}" for name, count in counts.items())
        write_facts({"rows": len(result), "classes": classes})
        write_rows([_line(one) for one in figures], "table")


def _line(figure: Figure) -> dict[str, Any]:
    return {
        "metric": figure.label,
        "value": figure.value,
        "95% interval": None if figure.interval is None else cell(list(figure.interval)),
        "better": "higher" if figure.higher_is_better else "lower",
    }


def _row(figure: Figure) -> dict[str, Any]:
    low, high = figure.interval or (None, None)
    return {
        "metric": figure.name,
        "value": figure.value,
        "low": low,
        "high": high,
        "higher_is_better": figure.higher_is_better,
    }
