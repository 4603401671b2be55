"""`p2pfl topology list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from topologies.cli.output import format_option, write_json

if TYPE_CHECKING:
    from topologies.families import Family


@click.command("list")
@format_option("table", "json")
def command(form: str) -> None:
    """All families of graphs: parameters with defaults, rule, degree, closed forms, source.

    A federation can run what is static, and schedules of undirected graphs. Directed graphs are for study only.
    """
    from topologies.families import FAMILIES  # noqa: PLC0415 - `--help` stays instant

    rows = [_row(name, family) for name, family in FAMILIES.items()]
    if form == "json":
        write_json(rows)
        return
    for row in rows:
        click.echo(f"{_example(row):32}{row['rule']}")
    click.echo("\nThe path of a graph file is a topology too.")


def _row(name: str, family: Family) -> dict[str, Any]:
    return {
        "name": name,
        "parameters": {key: _shown(parameter.default) for key, parameter in family.parameters.items()},
        "kind": family.kind.value,
        "live": family.kind.value != "directed",
        "random": family.random,
        "rule": family.rule,
        "degree": family.degree,
        "algebraic_connectivity": family.connectivity,
        "source": family.source,
    }


def _example(row: dict[str, Any]) -> str:
    settings = ",".join(f"{key}={value}" for key, value in row["parameters"].items() if value is not None)
    name: str = row["name"]
    return f"{name}:{settings}" if settings else name


def _shown(default: Any) -> Any:
    return "-".join(map(str, default)) if isinstance(default, tuple) else default
