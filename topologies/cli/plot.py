"""`p2pfl topology plot`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from topologies.cli.options import epsilon_option, seed_option, weights_option
from topologies.errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Sequence

HELP = """Draw one graph, or a map of many.

One SOURCE, a graph file or a family with -n: the graph with its thinnest cut, its Laplacian spectrum, and how fast
nodes agree, up to 2000 nodes. Several families, or several numbers of nodes: a map of the rounds to consensus.
"""
EXAMPLES = """\b
Examples:
  p2pfl topology plot geometric -n 60 --seed 3 -o graph.png
  p2pfl topology plot net.graphml -o net.svg
  p2pfl topology plot ring torus exponential -n 16,64,256 -o map.png
"""


@click.command("plot", help=HELP, epilog=EXAMPLES)
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="A .png, .svg or .pdf file.")
@click.option("-n", "--nodes", metavar="N[,N...]", help="How many nodes; a graph file has its own number.")
@seed_option()
@weights_option()
@epsilon_option()
def command(
    *, sources: Sequence[str], output: Path, nodes: str | None, seed: int, weights: str, epsilon: float
) -> None:
    from topologies.plots.canvas import check_target  # noqa: PLC0415 - `--help` stays instant

    check_target(output)
    sizes = _sizes(nodes)
    if len(sources) == 1 and len(sizes) <= 1:
        _draw_one(sources[0], sizes, output, seed=seed, weights=weights, epsilon=epsilon)
    else:
        from topologies.plots.heat import draw_heat  # noqa: PLC0415 - as above

        if not sizes:
            raise TopologyError("how many nodes?", key="nodes", allowed="-n N,N,... for a map of several families")
        for missing in draw_heat(sources, sizes, output, seed=seed, weights=weights, epsilon=epsilon):
            click.echo(missing, err=True)
    click.echo(f"picture: {output}", err=True)


def _draw_one(source: str, sizes: Sequence[int], output: Path, *, seed: int, weights: str, epsilon: float) -> None:
    from topologies.building import resolve  # noqa: PLC0415 - as above
    from topologies.plots.single import check_size, draw_single  # noqa: PLC0415 - as above

    wanted = sizes[0] if sizes else None
    if wanted is not None:
        check_size(wanted)
    draw_single(resolve(source, wanted, seed), output, weights, epsilon)


def _sizes(text: str | None) -> list[int]:
    words = text.split(",") if text is not None else []
    numbers = [
        int(word) if word.strip().isascii() and word.strip().isdigit() and len(word) < 12 else 0 for word in words
    ]
    if 0 in numbers:
        raise TopologyError("not a number of nodes", key="nodes", value=text, allowed="whole numbers from 1, as 16,64")
    return list(dict.fromkeys(numbers))
