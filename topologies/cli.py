"""`p2pfl topology`: the families, and what a graph is like. Data on stdout."""

from __future__ import annotations

import json
from typing import Any

import click

EXAMPLES = """\b
Examples:
  p2pfl topology list
  p2pfl topology info torus -n 36
  p2pfl topology info random-regular:degree=4 -n 100 --seed 7 --format json
"""
CAUTION = "How fast a graph mixes does not alone say how well a network learns on it (Vogels et al., 2022)."
SPEC_HELP = "SPEC is a name with its parameters, such as watts-strogatz:k=4,p=0.1, or the path of a graph file."

as_format = click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How to print.",
)


@click.group(epilog=EXAMPLES)
def topology() -> None:
    """Graphs: which there are, and how fast they mix."""


@topology.command("list")
@as_format
def list_(form: str) -> None:
    """All families of graphs, their parameters and defaults."""
    from topologies.families import FAMILIES  # noqa: PLC0415 - `--help` stays instant

    rows = [
        {
            "name": name,
            "parameters": {key: _shown(parameter.default) for key, parameter in family.parameters.items()},
            "random": family.random,
            "summary": family.summary,
        }
        for name, family in FAMILIES.items()
    ]
    if form == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        click.echo(f"{_example(row):32}{row['summary']}")
    click.echo("\nA path to a node-link JSON file or an edge list is a topology too.")


@topology.command(help=f"What the graph SPEC is like on N nodes.\n\n{SPEC_HELP}", epilog=CAUTION)
@click.argument("spec")
@click.option("-n", "--nodes", type=int, required=True, help="How many nodes.")
@click.option("--seed", type=int, default=0, show_default=True, help="For the random families.")
@click.option(
    "--weights",
    default="metropolis",
    show_default=True,
    help="Mixing weights: metropolis, max-degree, best-constant or sample-weighted.",
)
@click.option(
    "--epsilon",
    type=float,
    default=1e-3,
    show_default=True,
    help="Consensus means the distance to it shrank to this fraction.",
)
@as_format
def info(*, spec: str, nodes: int, seed: int, weights: str, epsilon: float, form: str) -> None:
    from topologies.building import build  # noqa: PLC0415 - `--help` stays instant
    from topologies.metrics import describe  # noqa: PLC0415 - `--help` stays instant

    described = describe(build(spec, nodes, seed), weights, epsilon)
    if form == "json":
        click.echo(json.dumps(described, indent=2))
        return
    for key, value in described.items():
        click.echo(f"{key.replace('_', ' '):26}{_cell(value)}")


def _example(row: dict[str, Any]) -> str:
    settings = ",".join(f"{key}={value}" for key, value in row["parameters"].items() if value is not None)
    name: str = row["name"]
    return f"{name}:{settings}" if settings else name


def _shown(default: Any) -> Any:
    return "-".join(map(str, default)) if isinstance(default, tuple) else default


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}"
        case dict():
            return ", ".join(f"{key} {_cell(part)}" for key, part in value.items())
        case _:
            return str(value)
