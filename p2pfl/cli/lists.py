"""`p2pfl list`: the rules, methods, compressors, staleness functions and attacks that a file may name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, get_args

import click

from p2pfl.aggregate import BEFORE, RULES, make_rule, parse_rule
from p2pfl.compress import EXAMPLES, list_stages, make_compressor, require_fit
from p2pfl.config.model import TrainingConfig
from p2pfl.console.output import Form, cell, format_option, size, write_facts, write_json, write_rows
from p2pfl.core.settings import STALENESS, parse_staleness
from p2pfl.errors import UserError
from p2pfl.fleet.fleet import find_attackers
from p2pfl.methods import METHODS, make_method
from p2pfl.reporting.figures import compressor_figures
from p2pfl.specs import Entry

MOST_PARAMETERS = 10**12
TURNS = (0, 1, 4, 16, 64)
"""The numbers of turns by which an exchange is late in the table of a staleness function."""
OF_RULES = {"b_means": "b is", "neighbors_needed": "neighbors needed", "source": "from"}
"""How a rule's figures are called for people, where that is not their key."""


@click.command(
    "list",
    epilog="\b\nExamples:\n  p2pfl list rules\n  p2pfl list compressors top-k:0.02+q4 rotate+sign --parameters 25000000"
    "\n  p2pfl list methods prox:mu=0.1 prox.py:prox,mu=0.1 --format json",
)
@click.argument("kind", metavar="KIND", type=click.Choice(["rules", "methods", "compressors", "staleness", "attacks"]))
@click.argument("specs", metavar="[SPEC]...", nargs=-1)
@click.option(
    "--parameters",
    type=click.IntRange(1, MOST_PARAMETERS),
    default=1_000_000,
    show_default=True,
    help="compressors: parameters that are sent; `p2pfl check` shows how many your model has.",
)
@format_option(*get_args(Form))
def list_kind(*, kind: str, specs: tuple[str, ...], parameters: int, form: Form) -> None:
    """List what federation.toml may name: rules, methods, compressors, staleness or attacks.

    SPEC is a value as in the file; without it all of the KIND are shown.

    rules: how a node mixes m neighbors, of which b may be malicious, n = m + 1 models with its own. With fewer than
    "neighbors needed" it does not mix. kappa: the squared error is at most kappa times the variance of the honest
    models. weights: staleness counts.

    compressors: stages joined by "+". delta is the least share of the squared norm that arrives with one message (the
    average, for random ones); the rest follows. gamma is the size of one mixing step. "at most": the bytes depend on
    the values.

    staleness: what an exchange counts, tau turns of its edge after the neighbor last had this node's model.

    attacks: for `--attack`, and [liars] of a world.

    Your own: file.py:object or module:object. More: docs/how-to/methods.md, liars.md, fewer-bytes.md.
    """
    match kind:
        case "rules":
            rows = _each(specs or _example_rules((*RULES.values(), *BEFORE.values())), _rule)
            _write(rows, form, OF_RULES, ("b",))
        case "methods":
            _write(_each(specs or METHODS, _method), form)
        case "compressors":
            _write_compressors(specs, parameters, form)
        case "staleness":
            write_rows(_each(specs, _weights) or [_staleness(one) for one in STALENESS.values()], form)
        case _:
            if specs:
                raise UserError("attacks are listed together", key="SPEC", value=specs[0], allowed="none")
            write_rows(find_attackers().listed(), form, title="attacks")


def _each(specs: Iterable[str], make: Callable[[str], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each spec; raise all mistakes together."""
    rows, mistakes = [], []
    for spec in specs:
        try:
            rows.append(make(spec))
        except UserError as error:
            error.key, error.value = "SPEC", error.value or spec
            mistakes.append(error)
    if mistakes:
        raise ExceptionGroup("mistakes in the arguments", mistakes)
    return rows


def _write(
    rows: Sequence[dict[str, Any]], form: Form, words: dict[str, str] | None = None, hidden: Sequence[str] = ()
) -> None:
    """Write rows; for people each as a list of facts, below the value of its first key."""
    if form != "table":
        write_rows(rows, form)
        return
    for row in rows:
        title, *keys = row
        facts = {(words or {}).get(key, key.replace("_", " ")): row[key] for key in keys if key not in hidden}
        write_facts(facts, title=row[title])


def _example_rules(entries: Iterable[Any]) -> list[str]:
    """Return an example spec, with b only, for each rule that tolerates a liar."""
    return [entry.example or f"{entry.name}:b=1" for entry in entries if entry.parameters]


def _rule(spec: str) -> dict[str, Any]:
    rule = make_rule(spec)
    found = parse_rule(rule.spec if rule else "mean").entry
    return {
        "rule": rule.spec if rule else "mean",
        "b": rule.liars if rule else 0,
        "neighbors_needed": rule.least if rule else 0,
        "does": found.means,
        "b_means": found.b_means,
        "parameters": "; ".join(one.in_words for one in found.parameters[1:]) or None,
        "bound": found.bound,
        "cost": found.cost,
        "weights": found.weights,
        "source": found.source,
    }


def _method(spec: str) -> dict[str, Any]:
    method = make_method(spec, TrainingConfig(), profile=None)
    own = Entry(name=method.code, means=method.meaning or type(method).__doc__ or "", source=method.source)
    entry = METHODS.get(method.code, own)
    return {
        "method": method.spec,
        "does": " ".join(entry.means.split()),
        "parameters": entry.in_words or None,
        "rules": "any" if len(method.profiles) > 1 else " or ".join(sorted(method.profiles)),
        "exchanges": ", ".join(method.channels),
        "keeps": ", ".join((*method.kept, *(f"{name} of each edge" for name in method.kept_edges))) or "nothing",
        "source": entry.source or "",
    }


def _write_compressors(specs: Sequence[str], parameters: int, form: Form) -> None:
    """Write what chains of stages cost; without `specs` examples, and for people and in JSON all stages before them."""

    def row(spec: str) -> dict[str, Any]:
        compressor = make_compressor(spec)
        require_fit(compressor, parameters)
        return compressor_figures(compressor, parameters) | {"source": compressor.source}

    rows = _each(specs or EXAMPLES, row)
    stages = [
        {"stage": stage.written or stage.name, "does": stage.means, "example": stage.shown, "from": source}
        for stage, source in ([] if specs else list_stages())
    ]
    match form:
        case "json":
            write_json({"parameters": parameters, "stages": stages, "compressors": rows})
        case "csv":
            write_rows(rows, "csv")
        case "table":
            if stages:
                write_rows(stages, "table")
            write_rows([_compressor_row(one) for one in rows], "table", title=f"A model of {parameters:,} parameters")


def _compressor_row(row: dict[str, Any]) -> dict[str, str]:
    exact = row["exact"]
    return {
        "compressor": row["compressor"],
        "message": ("" if exact else "at most ") + size(row["message_bytes"]),
        "bits per parameter": f"{row['bits_per_parameter']:.3g}",
        "times smaller": ("" if exact else "at least ") + cell(row["times_smaller"]),
        **{key: cell(row[key]) for key in ("delta", "gamma", "random")},
    }


def _staleness(one: Entry) -> dict[str, Any]:
    return {
        "staleness": one.usage,
        "counts": one.means,
        "parameters": one.in_words or None,
        "source": one.source or None,
    }


def _weights(spec: str) -> dict[str, Any]:
    try:
        weigh = parse_staleness(spec)
    except ValueError as error:
        raise UserError(str(error), key="SPEC", value=spec, allowed=STALENESS.usages) from None
    return {"staleness": spec} | {f"tau {turns}": weigh(turns) for turns in TURNS}
