"""The part of `p2pfl check` that is about what travels: which parameters, by which compressor, how many bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from p2pfl.cli.output import cell, size, write_facts, write_rows

if TYPE_CHECKING:
    from collections.abc import Collection

    from p2pfl.config.model import Federation
    from p2pfl.errors import UserError
    from p2pfl.learn.interface import Learner


def traffic_facts(
    federation: Federation, learners: Collection[Learner]
) -> tuple[dict[str, Any] | None, list[UserError]]:
    """Figures and mistakes; no figures where there is a mistake, or the model's size is not known.

    `personal_parameters` are the fewest and the most of these learners.
    """
    from p2pfl.reporting.traffic import compressor_mistakes, traffic  # noqa: PLC0415 - `--help` stays instant

    shared = next((learner.size for learner in learners), None)
    mistakes = compressor_mistakes(federation, shared)
    if shared is None or mistakes:
        return None, mistakes
    personal = [learner.personal for learner in learners]
    facts = {
        "share": list(federation.gossip.share),
        "personal_parameters": [min(personal), max(personal)],
    }
    return facts | traffic(federation, shared), []


def print_traffic(facts: dict[str, Any]) -> None:
    """For people."""
    few, most = facts["personal_parameters"]
    bound, least = ("", "") if facts["exact"] else ("at most ", "at least ")
    write_facts(
        {
            "": "",
            "parameters shared": f"{facts['parameters']}, {size(facts['model_bytes'])} as float32",
            "parameters personal": None if not most else str(most) if few == most else f"{few} to {most}",
            "share": None if not most else ", ".join(facts["share"]),
            "bytes per round, busiest node": bound + _sizes(facts["bytes_per_round_busiest_node"]),
            "bytes per round, all nodes": bound + _sizes(facts["bytes_per_round_all_nodes"]),
            "the same in float32": _sizes(facts["float32_bytes_per_round_all_nodes"]),
            "times smaller": least + cell(facts["times_smaller"]),
        }
    )
    write_rows([compressor_row(row) for row in facts["compressors"]], "table")
    if facts["edges"]:
        rows = [{"edge": " - ".join(row["between"]), **_message(row)} for row in facts["edges"]]
        write_rows(rows, "table")


def compressor_row(row: dict[str, Any]) -> dict[str, str]:
    """What a table shows of one compressor in figures."""
    told = {"edges": cell(row["edges"])} if "edges" in row else {}
    return (
        _message(row)
        | {"bits per parameter": f"{row['bits_per_parameter']:.3g}"}
        | {"times smaller": ("" if row["exact"] else "at least ") + cell(row["times_smaller"])}
        | {key: cell(row[key]) for key in ("delta", "gamma", "random")}
        | told
    )


def _message(row: dict[str, Any]) -> dict[str, str]:
    bound = "" if row["exact"] else "at most "
    return {"compressor": row["compressor"], "message": bound + size(row["message_bytes"])}


def _sizes(bounds: list[int]) -> str:
    low, high = bounds
    return f"{size(low)} to {size(high)}"
