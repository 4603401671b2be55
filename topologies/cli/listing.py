"""`p2pfl topology list`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import click

from topologies.cli.terminal import cell, format_option, write_facts, write_json, write_rows

if TYPE_CHECKING:
    from topologies.families import Family
    from topologies.family import Parameter

COLUMNS: Mapping[str, int] = {"topology": 24, "rule": 31, "degree": 14, "lambda_2": 19, "ref": 4}
"""Widths, 100 in all with two spaces between."""
GROUPS: Mapping[str, str] = {
    "static": "Static graphs: undirected, always the same. A federation can run them.",
    "schedule": "Schedules: undirected, another graph in each round. A federation can run them.",
    "directed": "Directed graphs, static or changing: for study. A federation cannot run them.",
}
LEGEND = """\
n is the number of nodes, lambda_2 the algebraic connectivity; in parentheses, parameters without a
default. The path of a graph file is a topology too. One family in full: p2pfl topology list NAME"""


EXAMPLES = """\b
Examples:
  p2pfl topology list
  p2pfl topology list base
"""


@click.command("list", epilog=EXAMPLES)
@click.argument("name", required=False)
@format_option("table", "json", "csv")
def list_command(name: str | None, form: str) -> None:
    """All families of graphs, or the one called NAME: parameters with defaults, rule, degree, lambda_2, source.

    A federation can run what is static, and schedules of undirected graphs. Directed graphs are for study only.
    """
    from topologies.errors import TopologyError, nearest  # noqa: PLC0415 - `--help` stays instant
    from topologies.families import FAMILIES  # noqa: PLC0415 - as above

    if name is not None and name not in FAMILIES:
        raise TopologyError("unknown topology", key="name", value=name, allowed=nearest(name, FAMILIES))
    rows = [_row(each, family) for each, family in FAMILIES.items() if name in {None, each}]
    if form == "json":
        write_json(rows if name is None else rows[0])
    elif form == "csv":
        write_rows([_texts(row) for row in rows], form)
    elif name is not None:
        write_facts(_flat(rows[0]))
    else:
        for line in _page(rows):
            click.echo(line)


def _row(name: str, family: Family) -> dict[str, Any]:
    return {
        "name": name,
        "spec": _spec(name, family.parameters),
        "parameters": {key: _shown(parameter.default) for key, parameter in family.parameters.items()},
        "allowed": {key: parameter.allowed for key, parameter in family.parameters.items()},
        "meaning": {key: parameter.meaning for key, parameter in family.parameters.items() if parameter.meaning},
        "kind": family.kind.value,
        "live": family.kind.value != "directed",
        "random": family.random,
        "rule": family.rule,
        "degree": family.degree,
        "algebraic_connectivity": family.connectivity,
        "closed_form": family.closed is not None,
        "source": family.source,
    }


def _spec(name: str, parameters: Mapping[str, Parameter]) -> str:
    """The family with its defaults, as it can be typed."""
    settings = [f"{key}={_shown(known.default)}" for key, known in parameters.items() if known.default is not None]
    return f"{name}:{','.join(settings)}" if settings else name


def _shown(default: Any) -> Any:
    return "-".join(map(str, default)) if isinstance(default, tuple) else default


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """One line for each parameter instead of three dictionaries."""
    facts = {key: value or None for key, value in row.items() if key not in {"parameters", "allowed", "meaning"}}
    for key, default in row["parameters"].items():
        said = [row["meaning"].get(key), row["allowed"][key], None if default is None else f"default {default}"]
        facts[f"parameter {key}"] = "; ".join(filter(None, said))
    return facts | {key: row[key] for key in ("live", "random", "closed_form")}


def _texts(row: Mapping[str, Any]) -> dict[str, str]:
    """Cells for CSV: a dictionary becomes `key=value; key=value`."""
    joined = {
        key: "; ".join(f"{name}={cell(part, '')}" for name, part in value.items())
        for key, value in row.items()
        if isinstance(value, dict)
    }
    return {key: joined.get(key, cell(value, "")) for key, value in row.items()}


def _page(rows: list[dict[str, Any]]) -> Iterator[str]:
    rows = sorted(rows, key=lambda row: list(GROUPS).index(row["kind"]))
    sources = list(dict.fromkeys(row["source"] for row in rows if row["source"]))
    for kind, title in GROUPS.items():
        members = [row for row in rows if row["kind"] == kind]
        if members:
            yield click.style(title, bold=True)
            yield ""
            yield click.style(_line(COLUMNS), underline=True)
            for row in members:
                yield from _entry(row, sources)
            yield ""
    yield click.style("Sources", bold=True)
    yield ""
    for number, source in enumerate(sources, start=1):
        yield f"{number:4}  {source}"
    yield ""
    yield LEGEND


def _entry(row: Mapping[str, Any], sources: list[str]) -> Iterator[str]:
    """Wrapped in its columns; a spec too long for its own stands in a line above."""
    free = [key for key, default in row["parameters"].items() if default is None]
    spec = [row["spec"], *_wrapped(f"({', '.join(free)})" if free else "", "topology")]
    if len(row["spec"]) > COLUMNS["topology"]:
        yield spec.pop(0)
    texts = [_wrapped(row[key], column) for key, column in _TEXTS.items()]
    reference = [f"[{sources.index(row['source']) + 1}]"] if row["source"] else []
    for cells in zip_longest(spec, *texts, reference, fillvalue=""):
        yield _line(cells)


_TEXTS = {"rule": "rule", "degree": "degree", "algebraic_connectivity": "lambda_2"}


def _line(cells: Iterable[str]) -> str:
    return "  ".join(text.ljust(width) for text, width in zip(cells, COLUMNS.values(), strict=True)).rstrip()


def _wrapped(text: str, column: str) -> list[str]:
    return textwrap.wrap(text, COLUMNS[column], break_long_words=False, break_on_hyphens=False)
