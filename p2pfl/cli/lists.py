"""`p2pfl list`: the rules, methods, compressors, staleness functions and attacks that a file may name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import click

from p2pfl.aggregate import BEFORE, RULES, make_rule
from p2pfl.compress import EXAMPLES, list_stages, make_compressor
from p2pfl.config.model import TrainingConfig
from p2pfl.console.output import Form, cell, format_option, size, write_facts, write_json, write_rows
from p2pfl.core.settings import STALENESS
from p2pfl.fleet.fleet import find_attackers
from p2pfl.methods import METHODS, make_method
from p2pfl.reporting.figures import compressor_figures

PARAMETERS = 1_000_000
"""The number of parameters that compressors are compared for."""


@click.command("list", epilog="\b\nExamples:\n  p2pfl list rules\n  p2pfl list compressors --format csv")
@click.argument("kind", metavar="KIND", type=click.Choice(["rules", "methods", "compressors", "staleness", "attacks"]))
@format_option(*get_args(Form))
def list_kind(*, kind: str, form: Form) -> None:
    """List what federation.toml may name: rules, methods, compressors, staleness or attacks.

    rules: how a node mixes m neighbors, of which b may be malicious, n = m + 1 models with its own. With fewer than
    "neighbors needed" it does not mix. kappa: the squared error is at most kappa times the variance of the honest
    models. weights: staleness counts.

    compressors: stages joined by "+". delta is the least share of the squared norm that arrives with one message (the
    average, for random ones); the rest follows. gamma is the size of one mixing step. "at most": the bytes depend on
    the values. `p2pfl check` has the figures of your own model.

    staleness: what an exchange counts, tau turns of its edge after the neighbor last had this node's model.

    attacks: for `--attack`, and [liars] of a world.

    Your own: file.py:object or module:object. More: docs/how-to/methods.md, liars.md, fewer-bytes.md.
    """
    match kind:
        case "rules":
            _write([_rule(entry) for entry in (*RULES.values(), *BEFORE.values()) if entry.parameters], form)
        case "methods":
            _write([_method(name) for name in METHODS], form)
        case "compressors":
            _write_compressors(form)
        case "staleness":
            keys = {"staleness": "usage", "counts": "means", "parameters": "in_words", "source": "source"}
            rows = [{key: getattr(entry, name) or None for key, name in keys.items()} for entry in STALENESS.values()]
            write_rows(rows, form)
        case _:
            _write(find_attackers().listed(), form)


def _write(rows: Sequence[dict[str, Any]], form: Form) -> None:
    """Write rows; for people each as a list of facts, below the value of its first key."""
    if form != "table":
        write_rows(rows, form)
        return
    for row in rows:
        title, *keys = row
        write_facts({key.replace("_", " "): row[key] for key in keys if key != "b"}, title=row[title])


def _rule(entry: Any) -> dict[str, Any]:
    """Describe a rule by an example that tolerates a liar."""
    rule = make_rule(entry.example or f"{entry.name}:b=1")
    assert rule is not None  # noqa: S101 - it is not the mean
    return {
        "rule": rule.spec,
        "b": rule.liars,
        "neighbors_needed": rule.least,
        "does": entry.means,
        "b_means": entry.b_means,
        "parameters": "; ".join(parameter.in_words for parameter in entry.parameters[1:]) or None,
        "bound": entry.bound,
        "cost": entry.cost,
        "weights": entry.weights,
        "source": entry.source,
    }


def _method(name: str) -> dict[str, Any]:
    method, entry = make_method(name, TrainingConfig(), profile=None), METHODS[name]
    return {
        "method": method.spec,
        "does": " ".join(entry.means.split()),
        "parameters": entry.in_words or None,
        "rules": "any" if len(method.profiles) > 1 else " or ".join(sorted(method.profiles)),
        "exchanges": ", ".join(method.channels),
        "keeps": ", ".join((*method.kept, *(f"{name} of each edge" for name in method.kept_edges))) or "nothing",
        "source": entry.source,
    }


def _write_compressors(form: Form) -> None:
    """Write examples of what chains of stages cost, and for people and in JSON all stages before them."""
    made = [make_compressor(spec) for spec in EXAMPLES]
    rows = [compressor_figures(compressor, PARAMETERS) | {"source": compressor.source} for compressor in made]
    stages = [
        {"stage": stage.written or stage.name, "does": stage.means, "example": stage.shown, "from": source}
        for stage, source in list_stages()
    ]
    match form:
        case "json":
            write_json({"parameters": PARAMETERS, "stages": stages, "compressors": rows})
        case "csv":
            write_rows(rows, "csv")
        case "table":
            write_rows(stages, "table")
            write_rows([_compressor(row) for row in rows], "table", title=f"A model of {PARAMETERS:,} parameters")


def _compressor(row: dict[str, Any]) -> dict[str, str]:
    exact = row["exact"]
    return {
        "compressor": row["compressor"],
        "message": ("" if exact else "at most ") + size(row["message_bytes"]),
        "bits per parameter": f"{row['bits_per_parameter']:.3g}",
        "times smaller": ("" if exact else "at least ") + cell(row["times_smaller"]),
        **{key: cell(row[key]) for key in ("delta", "gamma", "random")},
    }
