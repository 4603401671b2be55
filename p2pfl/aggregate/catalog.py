"""From a spec like `nnm+trimmed-mean:b=1` to the rule that a node uses: ours, or any callable in byzfl's convention.

The grammar is in `spelling`. Rules on many vectors treat the node's own model as one of n = m + 1, of which b may lie,
and use no weights: b counts vectors, and a weight that a neighbor can raise by its own report would count for more than
one.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from p2pfl.aggregate import centered, distances, rules
from p2pfl.aggregate.centered import Centered
from p2pfl.aggregate.columns import SAMPLED, PlainRows, Source
from p2pfl.aggregate.distances import Floats, combined, spread_of
from p2pfl.aggregate.entry import BEFORE, RULES
from p2pfl.aggregate.interface import Mixture, Neighborhood, Rows, Rule, Vector
from p2pfl.aggregate.rules import AfterNNM, Aggregator, CenteredClipping, ColumnRule, DistanceRule
from p2pfl.aggregate.spelling import MEAN, ParsedRule, allowed, parse_rule
from p2pfl.errors import UserError
from p2pfl.plugins import FAILURES, describe_failure, find_object

KEY = "gossip.rule"
LONGEST = 300
"""How many characters of an error message from the user's own code are shown."""

NAMED: Mapping[str, Any] = {
    entry.made.__name__: entry.made for entry in (RULES[MEAN], *BEFORE.values(), *RULES.values())
} | {"TrMean": rules.TrimmedMean}
"""Rules by their name in dict specs, which is byzfl's name if byzfl has the rule."""


def make_rule(spec: str, folder: Path | None = None) -> Rule | None:
    """Make the rule for a spec; None for the mean. A rule in a `file.py` is looked up relative to `folder`.

    Raises UserError if the spec is wrong.
    """
    try:
        parsed = parse_rule(spec)
    except ValueError as error:
        raise UserError(str(error), key=KEY, value=spec, allowed=allowed()) from None
    if parsed.name == MEAN:
        return None
    rule = _aggregator(parsed, folder)
    if isinstance(rule, centered.Centered):
        return CenteredNodeRule(spec=str(parsed), rule=rule)
    whole = rules.NNM(parsed.liars).before(rule) if parsed.before else rule
    return BatchNodeRule(spec=str(parsed), rule=whole)


def rule_from(spec: Mapping[str, Any], before: Sequence[Mapping[str, Any]] = ()) -> rules.Aggregator:
    """Make the pure function for a dict spec in byzfl's form: `{"name": "TrMean", "parameters": {"f": 1}}`.

    `before` lists specs of pre-aggregations: NNM, or none.

    Raises ValueError if there is no such rule, or if it does not have these parameters.
    """
    made = _named_rule(spec)
    for first in reversed(before):
        nnm = _named_rule(first)
        if not isinstance(nnm, rules.NNM):
            raise ValueError(f"{first['name']} is not a pre-aggregation; the only one is NNM")  # noqa: TRY004 - one way to refuse
        made = nnm.before(made)
    if not isinstance(made, rules.Aggregator):
        raise ValueError(f"{spec['name']} is a pre-aggregation: give it in `before`")  # noqa: TRY004 - as above
    return made


class _Bearing(ABC):
    """What both kinds of rules have in common."""

    __slots__ = ()
    rule: Aggregator

    @property
    def liars(self) -> int:
        return self.rule.f

    @property
    def least(self) -> int:
        return max(2 * self.liars + 1, self.rule.least - 1)

    def mix(self, around: Neighborhood) -> Mixture:
        if len(around.others) < self.least:
            return _unmoved(around)
        return self.mix_enough(around)

    @abstractmethod
    def mix_enough(self, around: Neighborhood) -> Mixture: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CenteredNodeRule(_Bearing):
    """A rule centered on the node's own model, with the neighbors' weights."""

    spec: str
    rule: Centered

    def mix_enough(self, around: Neighborhood) -> Mixture:
        others = list(around.others)
        pulls = self.rule.pulls(around.own, others, around.weights, progress=around.progress)
        kept = self.rule.kept(pulls, around.weights) * self.rule.uncut(around.own, others)
        return Mixture(model=self.rule.moved(around.own, others, pulls.tolist()), kept=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNodeRule(_Bearing):
    """A rule that treats the node's own model like the neighbors'."""

    spec: str
    rule: Aggregator

    def mix_enough(self, around: Neighborhood) -> Mixture:
        rows = [around.own, *around.others]
        match self.rule:
            case DistanceRule():
                return _shared(rows, self.rule.shares(spread_of(rows)))
            case CenteredClipping():
                return _shared(rows, self.rule.shares(spread_of(rows), slice(0, None)))
            case AfterNNM(rule=DistanceRule() as after):
                spread = spread_of(rows)
                return _shared(rows, after.shares_after(spread, distances.near_each(spread.squares, self.liars)))
            case ColumnRule():
                source = PlainRows(rows)
                return Mixture(model=self.rule.of_source(source), kept=_let_through(source, self.rule)[1:])
            case _:
                return Mixture(model=self.rule.of(rows))


class UserRule(Aggregator):
    """Call `rule` with a copy (n, d) of the models; only a finite result of shape (d,) is accepted.

    Raises UserError on a call if the rule fails or returns anything else.
    """

    def __init__(self, rule: Callable[[Any], Any], f: int = 0, name: str = "") -> None:
        super().__init__(f)
        self.rule, self.name = rule, name or getattr(rule, "__name__", type(rule).__name__)

    def of(self, rows: Rows) -> Vector:
        try:
            found = np.asarray(self.rule(np.stack(rows)))
        except FAILURES as error:
            raise self._fault(f"the rule failed: {describe_failure(error)}") from error
        if found.shape != rows[0].shape or found.dtype.kind != "f":
            raise self._fault(f"the rule returned {found.dtype} of shape {found.shape}, not {rows[0].shape}")
        with np.errstate(over="ignore"):
            found = found.astype(rows[0].dtype)
        if not np.isfinite(found).all():
            raise self._fault("the rule returned NaN or infinity")
        return found

    def _fault(self, text: str) -> UserError:
        return UserError(text, key=KEY, value=self.name, allowed="a function from finite vectors (n, d) to one (d,)")


def load_user_rule(name: str, liars: int, folder: Path | None) -> UserRule:
    """Import the rule `module:object` or `file.py:object`, the file relative to `folder`; a class is created with
    f=liars.

    Raises UserError if it cannot be imported or called.
    """
    found = find_object(name, folder or Path(), what="rule", key=KEY, allowed="module:object or file.py:object")
    try:
        rule = cast("Any", found)(f=liars) if inspect.isclass(found) else found
    except FAILURES as error:
        raise UserError(f"the rule failed: {describe_failure(error)}", key=KEY, value=name) from error
    if not callable(rule):
        raise UserError("not a rule: it cannot be called", key=KEY, value=name, allowed="a function or a class")
    return UserRule(rule, liars, name)


def _aggregator(parsed: ParsedRule, folder: Path | None) -> rules.Aggregator:
    if parsed.is_object:
        return load_user_rule(parsed.name, parsed.liars, folder)
    found: rules.Aggregator = RULES[parsed.name].make(parsed.parameters)
    return found


def _named_rule(spec: Mapping[str, Any]) -> Any:
    if not isinstance(spec, Mapping) or not set(spec) <= {"name", "parameters"} or spec.get("name") not in list(NAMED):
        raise ValueError(f"expected {{'name': ..., 'parameters': ...}} with one of {', '.join(NAMED)}, got {spec!r}")
    try:
        return NAMED[spec["name"]](**spec.get("parameters", {}))
    except TypeError as error:
        raise ValueError(f"{spec['name']}: {error}") from None


def _unmoved(neighborhood: Neighborhood) -> Mixture:
    """Leave the model unchanged: with too few neighbors for the rule, the node mixes as if none were connected."""
    return Mixture(model=neighborhood.own.copy(), kept=np.zeros(len(neighborhood.others)))


def _shared(rows: Rows, shares: Floats) -> Mixture:
    kept = np.minimum(1.0, shares[1:] * len(rows))
    return Mixture(model=combined(rows, shares.tolist()), kept=kept)


def _let_through(source: Source, rule: ColumnRule) -> Floats:
    """Return the share of each vector's values that was kept, (n,), estimated on evenly spaced columns."""
    step = max(1, source.size // SAMPLED)
    values = np.stack(source.read(slice(0, source.size, step)))
    if not values.size:
        return np.ones(source.count)
    cut = rule.trimmed(source.count)
    order = np.sort(values, axis=0)
    inside = (order[cut] <= values) & (values <= order[source.count - 1 - cut])
    return np.asarray(inside.mean(axis=1))
