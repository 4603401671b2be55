"""`p2pfl compressors`: what may travel between two nodes, and how many bytes that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from p2pfl.cli.check_traffic import compressor_row
from p2pfl.cli.output import Form, format_option, write_json, write_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p2pfl.errors import UserError

MOST_PARAMETERS = 10**12


@click.command(
    epilog="\b\nExample:\n  p2pfl compressors\n  p2pfl compressors top-k:0.02+q4 rotate+sign --parameters 25000000"
)
@click.argument("specs", metavar="[SPEC]...", nargs=-1)
@click.option(
    "--parameters",
    type=click.IntRange(1, MOST_PARAMETERS),
    default=1_000_000,
    show_default=True,
    help="Of the model that travels; `p2pfl check` tells yours.",
)
@format_option("table", "json", "csv")
def compressors(*, specs: tuple[str, ...], parameters: int, form: Form) -> None:
    """Say what may travel between two nodes, and what it costs.

    SPEC is what `compressor` in federation.toml may be: stages joined by "+". Without it all stages are explained, and
    some chains shown. delta says how much of what a message should bring arrives at least, of the squared length (of
    random ones: on average), the rest comes with later ones; gamma, how far one mixing step goes; "at most": the bytes
    depend on the values. docs/compression.md says what to choose.
    """
    from p2pfl.compress.catalog import EXAMPLES  # noqa: PLC0415 - `--help` stays instant

    rows = _rows(specs or EXAMPLES, parameters)
    stages = [] if specs else _stages()
    if form == "json":
        write_json({"parameters": parameters, "stages": stages, "compressors": rows})
    elif form == "csv":
        write_rows(rows, "csv")
    else:
        if stages:
            write_rows(stages, "table")
        write_rows([compressor_row(row) for row in rows], "table", title=f"A model of {parameters:,} parameters")


def _stages() -> list[dict[str, Any]]:
    from p2pfl.compress.catalog import STAGES  # noqa: PLC0415 - as above

    return [
        {"stage": stage.word, "does": stage.meaning, "example": stage.example, "from": stage.source} for stage in STAGES
    ]


def _rows(specs: Sequence[str], parameters: int) -> list[dict[str, Any]]:
    """Every mistake in them at once."""
    from p2pfl.errors import UserError  # noqa: PLC0415 - as above

    rows, mistakes = [], []
    for spec in specs:
        try:
            rows.append(_row(spec, parameters))
        except UserError as error:
            mistakes.append(_of_option(error, spec))
    if mistakes:
        raise ExceptionGroup("no such compressors", mistakes)
    return rows


def _row(spec: str, parameters: int) -> dict[str, Any]:
    from p2pfl.compress.catalog import make_compressor, require_fit  # noqa: PLC0415 - as above
    from p2pfl.reporting.traffic import compressor_figures  # noqa: PLC0415 - as above

    compressor = make_compressor(spec)
    require_fit(compressor, parameters)
    return compressor_figures(compressor, parameters) | {"source": compressor.source}


def _of_option(error: UserError, spec: str) -> UserError:
    error.key, error.value = "SPEC", spec
    return error
