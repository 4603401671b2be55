"""From a spec like `nnm+trimmed-mean:b=1` to the rule. Its grammar is checked by `config.rule`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from p2pfl.aggregate import centered, hampel, rules
from p2pfl.aggregate.adapted import adapted
from p2pfl.aggregate.interface import Rule
from p2pfl.aggregate.node_rules import Among, Around
from p2pfl.config.model import Federation
from p2pfl.config.rule import ALLOWED, ParsedRule, parse_rule
from p2pfl.errors import UserError

KEY = "gossip.rule"
CLASSES: Mapping[str, Any] = {
    "trimmed-mean": rules.TrimmedMean,
    "median": rules.Median,
    "geometric-median": rules.GeometricMedian,
    "krum": rules.Krum,
    "multi-krum": rules.MultiKrum,
    "bulyan": rules.Bulyan,
    "hampel": hampel.Hampel,
    "cs+": centered.ClippedSum,
    "scc": centered.SelfCenteredClipping,
    "monna": centered.MoNNA,
    "centered-clipping": rules.CenteredClipping,
    "balance": centered.Balance,
}
NAMED: Mapping[str, Any] = {made.__name__: made for made in (rules.Average, rules.NNM, *CLASSES.values())} | {
    "TrMean": rules.TrimmedMean
}
"""By the names of dict specs, which are byzfl's where byzfl has the rule."""


def rule_of(federation: Federation) -> Rule | None:
    """The robust profile's rule; None in the conservative profile.

    Raises:
        UserError: it is the user's own and cannot be imported.
    """
    return make_rule(federation.gossip.rule, federation.path.parent)


def make_rule(spec: str, folder: Path | None = None) -> Rule | None:
    """The rule of a spec; None for the mean. A rule from a `file.py` is looked up from `folder`.

    Raises:
        UserError: the spec is wrong.
    """
    try:
        parsed = parse_rule(spec)
    except ValueError as error:
        raise UserError(str(error), key=KEY, value=spec, allowed=ALLOWED) from None
    if parsed.name == "mean":
        return None
    rule = _aggregator(parsed, folder)
    if isinstance(rule, centered.Centered):
        return Around(spec=str(parsed), rule=rule)
    return Among(spec=str(parsed), rule=rules.NNM(parsed.liars).before(rule) if parsed.before else rule)


def _aggregator(parsed: ParsedRule, folder: Path | None) -> rules.Aggregator:
    b, told = parsed.liars, {key: value for key, value in parsed.parameters.items() if key != "b"}
    if parsed.is_object:
        return adapted(parsed.name, b, folder)
    if parsed.name == "centered-clipping":
        return rules.CenteredClipping(L=int(told["steps"] or 1), tau=told["tau"], f=b)
    found: rules.Aggregator = CLASSES[parsed.name](f=b, **told)
    return found


def rule_from(spec: Mapping[str, Any], before: Sequence[Mapping[str, Any]] = ()) -> rules.Aggregator:
    """The pure function of a dict spec in byzfl's form: `{"name": "TrMean", "parameters": {"f": 1}}`.

    `before` are the specs of pre-aggregations: NNM, or none.

    Raises:
        ValueError: there is no such rule, or it takes no such parameters.
    """
    made = _named(spec)
    for first in reversed(before):
        nnm = _named(first)
        if not isinstance(nnm, rules.NNM):
            raise ValueError(f"{first['name']} is no pre-aggregation; there is NNM")  # noqa: TRY004 - one way to refuse
        made = nnm.before(made)
    if not isinstance(made, rules.Aggregator):
        raise ValueError(f"{spec['name']} is a pre-aggregation: give it in `before`")  # noqa: TRY004 - as above
    return made


def _named(spec: Mapping[str, Any]) -> Any:
    if not isinstance(spec, Mapping) or not set(spec) <= {"name", "parameters"} or spec.get("name") not in list(NAMED):
        raise ValueError(f"expected {{'name': ..., 'parameters': ...}} with one of {', '.join(NAMED)}, got {spec!r}")
    try:
        return NAMED[spec["name"]](**spec.get("parameters", {}))
    except TypeError as error:
        raise ValueError(f"{spec['name']}: {error}") from None
