"""`p2pfl topology compare`."""

from __future__ import annotations

from typing import Any

import click

from topologies.cli import options
from topologies.cli.info import CAUTION
from topologies.cli.output import format_option, write_rows

IN_STEP = "Schedules mix this fast while all nodes are in the same round; those of a federation are not."
IN_BYTES = ("bytes", "busiest_bytes")
COLUMNS_HELP = """\b
Columns, any of which --sort takes; best first, unknown last, within each n:
  topology  n  edges  degree_max  lambda_2  mixing_rate  diameter
  rounds, messages, bytes   until consensus (--epsilon), from the worst start
  busiest_bytes             what the node with the most neighbors sends in a round
                            (it and bytes are in the table only with --model-bytes)
  certified                 lambda_2 is proven, not only computed

\b
Examples:
  p2pfl topology compare ring torus exponential -n 16,64,256 --sort rounds
  p2pfl topology compare ring base:k=1 -n 16 --model-bytes 400K --sort bytes
"""


class Sizes(click.ParamType):  # type: ignore[type-arg]  # generic only in later releases of click
    """Whole numbers joined by commas."""

    name = "n,n,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of sizes; allowed: whole numbers joined by commas, as 16,64", param, ctx)


@click.command(
    "compare",
    help=f"The graphs SPECS side by side: what each costs, and how fast it mixes.\n\n{options.SPEC_HELP}",
    epilog=COLUMNS_HELP,
)
@click.argument("specs", nargs=-1, required=True)
@click.option("-n", "--nodes", "sizes", type=Sizes(), default=None, help="How many nodes; several joined by commas.")
@click.option("--sort", default=None, help="A column; see below.  [default: as given]")
@options.weights_option()
@options.epsilon_option()
@options.seed_option()
@options.model_bytes_option()
@format_option("table", "json", "csv")
def command(
    *,
    specs: tuple[str, ...],
    sizes: tuple[int, ...] | None,
    sort: str | None,
    weights: str,
    epsilon: float,
    seed: int,
    model_bytes: int | None,
    form: str,
) -> None:
    from topologies.building import is_static  # noqa: PLC0415 - `--help` stays instant
    from topologies.comparison import compare  # noqa: PLC0415 - `--help` stays instant

    found = compare(specs, sizes or (), weights=weights, epsilon=epsilon, seed=seed, model_bytes=model_bytes, sort=sort)
    sized = model_bytes is not None
    write_rows([_readable(row, sized=sized) for row in found.rows] if form == "table" else found.rows, form)
    for missing in found.missing:
        click.echo(f"note: {missing}", err=True)
    if form == "table":
        click.echo(f"note: {CAUTION}", err=True)
        if not all(is_static(spec) for spec in specs):
            click.echo(f"note: {IN_STEP}", err=True)


def _readable(row: dict[str, Any], *, sized: bool) -> dict[str, Any]:
    """Sizes in words; no columns of dashes where no model has a size."""
    sizes = {key: options.readable_bytes(row[key]) for key in IN_BYTES}
    return {key: sizes.get(key, value) for key, value in row.items() if sized or key not in IN_BYTES}
