"""How the commands print: facts about one thing, or rows about many, as a table, JSON or CSV."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

Row = Mapping[str, Any]
Command = Callable[..., Any]


def format_option(*forms: str) -> Callable[[Command], Command]:
    """`--format`, the first form being the default."""
    return click.option(
        "--format", "form", type=click.Choice(forms), default=forms[0], show_default=True, help="How to print."
    )


def write_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def write_facts(facts: Row) -> None:
    """One line for each fact; a dictionary becomes `key value, key value`."""
    width = max((len(key) for key in facts), default=0) + 2
    for key, value in facts.items():
        click.echo(f"{key.replace('_', ' '):{width}}{_named_cell(key, value)}")


def write_rows(rows: Sequence[Row], form: str, missing: str = "-") -> None:
    """Rows of the same keys. As JSON a list of objects, as CSV with a head."""
    if form == "json":
        write_json(list(rows))
    elif form == "csv":
        writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        _write_table(rows, missing)


def _write_table(rows: Sequence[Row], missing: str) -> None:
    from rich import box  # noqa: PLC0415 - only tables need it
    from rich.console import Console  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for key in rows[0] if rows else ():
        numbers = all(isinstance(row[key], int | float) or row[key] is None for row in rows)
        table.add_column(key.replace("_", " "), justify="right" if numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_named_cell(key, value, missing)) for key, value in row.items()))
    # a table is as wide as it is: no figure may be cut, neither in a pipe nor on a narrow terminal, which wraps lines
    Console(width=10_000).print(table)


def _named_cell(key: str, value: Any, missing: str = "-") -> str:
    from topologies.metrics.consensus import rate_text  # noqa: PLC0415 - `--help` stays instant

    return rate_text(value) if key.endswith("rate") and isinstance(value, float) else cell(value, missing)


def cell(value: Any, missing: str = "-") -> str:
    match value:
        case None:
            return missing
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}"
        case dict():
            return ", ".join(f"{key.replace('_', ' ')} {cell(part, missing)}" for key, part in value.items())
        case list() | tuple():
            return ", ".join(cell(part, missing) for part in value) or missing
        case _:
            return str(value)
