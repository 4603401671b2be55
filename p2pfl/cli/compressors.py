"""`p2pfl compressors`, which lists compressors and their costs, and the part of `p2pfl check` about traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from p2pfl.console.output import Form, cell, format_option, size, write_facts, write_json, write_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from p2pfl.config.model import FederationConfig
    from p2pfl.errors import UserError
    from p2pfl.learn.interface import Learner

MOST_PARAMETERS = 10**12


@click.command(
    epilog="\b\nExamples:\n  p2pfl compressors\n  p2pfl compressors top-k:0.02+q4 rotate+sign --parameters 25000000"
)
@click.argument("specs", metavar="[SPEC]...", nargs=-1)
@click.option(
    "--parameters",
    type=click.IntRange(1, MOST_PARAMETERS),
    default=1_000_000,
    show_default=True,
    help="Parameters that are sent; `p2pfl check` shows how many your model has.",
)
@format_option("table", "json", "csv")
def compressors(*, specs: tuple[str, ...], parameters: int, form: Form) -> None:
    """List compressors, and what they cost.

    SPEC is a value of `compressor` in federation.toml: stages joined by "+". Without it all stages are explained, and
    some chains shown. delta is the least share of the squared norm that arrives with one message (the average, for
    random ones); the rest follows in later messages. gamma is the size of one mixing step. "at most" means that the
    bytes depend on the values. docs/how-to/fewer-bytes.md says what to choose.
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


def traffic_facts(
    federation: FederationConfig, learners: Collection[Learner]
) -> tuple[dict[str, Any] | None, list[UserError]]:
    """Return figures and mistakes; no figures if there is a mistake or the model's size is unknown.

    `personal_parameters` has the minimum and maximum over these learners.
    """
    from p2pfl.errors import UserError  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.learn.methods import method_of  # noqa: PLC0415 - as above
    from p2pfl.reporting.traffic import compressor_mistakes, traffic  # noqa: PLC0415 - as above

    shared = next((learner.size for learner in learners), None)
    mistakes = compressor_mistakes(federation, shared)
    if shared is None or mistakes:
        return None, mistakes
    personal = [learner.personal for learner in learners]
    facts = {
        "share": list(federation.gossip.share),
        "personal_parameters": [min(personal), max(personal)],
        "frozen_parameters": max(getattr(learner, "frozen", 0) for learner in learners),
        "share_frozen": federation.gossip.share_frozen,
    }
    try:
        channels = len(method_of(federation).channels)
    except UserError:  # the check of the method reports it
        channels = 1
    return facts | traffic(federation, shared * channels) | {"parameters": shared}, []


def print_traffic(facts: dict[str, Any]) -> None:
    """Print the traffic as a table."""
    few, most = facts["personal_parameters"]
    bound, least = ("", "") if facts["exact"] else ("at most ", "at least ")
    write_facts(
        {
            "": "",
            "parameters shared": f"{facts['parameters']}, {size(facts['model_bytes'])} as float32",
            "parameters personal": None if not most else str(most) if few == most else f"{few} to {most}",
            "parameters frozen": describe_frozen(facts),
            "share": None if not most else ", ".join(facts["share"]),
            "bytes per round, busiest node": bound + _sizes(facts["bytes_per_round_busiest_node"]),
            "bytes per round, all nodes": bound + _sizes(facts["bytes_per_round_all_nodes"]),
            "bytes in float32": _sizes(facts["float32_bytes_per_round_all_nodes"]),
            "times smaller": least + cell(facts["times_smaller"]),
        }
    )
    write_rows([compressor_row(row) for row in facts["compressors"]], "table")
    if facts["edges"]:
        rows = [{"edge": " - ".join(row["between"]), **_message(row)} for row in facts["edges"]]
        write_rows(rows, "table")


def describe_frozen(facts: dict[str, Any]) -> str | None:
    """Say how many parameters are not trained, and whether they are sent; None if all are trained."""
    if not facts["frozen_parameters"]:
        return None
    sent = "are sent with the others" if facts["share_frozen"] else "are not sent: nodes compare a hash of them"
    return f"{facts['frozen_parameters']:,}, which {sent}"


def compressor_row(row: dict[str, Any]) -> dict[str, str]:
    """Return the columns for one compressor's figures."""
    told = {"edges": cell(row["edges"])} if "edges" in row else {}
    return (
        _message(row)
        | {"bits per parameter": f"{row['bits_per_parameter']:.3g}"}
        | {"times smaller": ("" if row["exact"] else "at least ") + cell(row["times_smaller"])}
        | {key: cell(row[key]) for key in ("delta", "gamma", "random")}
        | told
    )


def _stages() -> list[dict[str, Any]]:
    from p2pfl.compress.catalog import list_stages  # noqa: PLC0415 - as above

    return [
        {"stage": stage.written or stage.name, "does": stage.means, "example": stage.shown, "from": source}
        for stage, source in list_stages()
    ]


def _rows(specs: Sequence[str], parameters: int) -> list[dict[str, Any]]:
    """Parse all specs; raise all mistakes together."""
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


def _message(row: dict[str, Any]) -> dict[str, str]:
    bound = "" if row["exact"] else "at most "
    return {"compressor": row["compressor"], "message": bound + size(row["message_bytes"])}


def _sizes(bounds: list[int]) -> str:
    low, high = bounds
    return f"{size(low)} to {size(high)}"
