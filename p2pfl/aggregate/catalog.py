"""From a spec in `gossip.rule` to the rule that a node uses: ours, or any callable in byzfl's convention.

    mean | [nnm+]NAME[:key=value,...] | module:object[,b=1] | file.py:object[,b=1]

`b`, by default 1, is how many malicious neighbors a node tolerates; `mean` tolerates none. `nnm+` mixes each vector
with its nearest ones before a rule that is not centered on the node's own model.

Rules that are not centered treat the node's own model as one of n = m + 1, of which b may lie, and use no weights: b
counts vectors, and a weight that a neighbor can raise by its own report would count for more than one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from p2pfl.aggregate.interface import Mixture, Neighborhood, Rows
from p2pfl.aggregate.rules import BEFORE, MIXABLE, NNM, RULES, Aggregator, RuleEntry, liars
from p2pfl.errors import UserError
from p2pfl.plugins import FAILURES, describe_failure, find_object
from p2pfl.specs import read_parameters, short

KEY = "gossip.rule"
MEAN = "mean"
OWN = RuleEntry(
    name="module:object",
    means="a rule of your own",
    parameters=(liars("passed to it as f, if it is a class"),),
    bound="not known",
    cost="a copy of all models, and the rule",
    source="-",
)
"""The entry for users' own rules."""

# -- a rule as it is written -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRule:
    """A parsed spec; `str` gives its canonical spelling."""

    name: str
    """A name in RULES, or `module:object`, or `file.py:object`."""
    parameters: Mapping[str, float | None] = field(default_factory=dict)
    """All parameters of the rule, `b` first; None if the rule computes the value itself."""
    before: str = ""
    """A name in BEFORE, or empty."""

    @property
    def liars(self) -> int:
        return int(self.parameters.get("b") or 0)

    @property
    def is_object(self) -> bool:
        """True if the rule is the user's own and must be imported."""
        return self.name not in RULES

    @property
    def entry(self) -> RuleEntry:
        """The entry that describes it: the pre-aggregation's, if there is one."""
        return BEFORE[self.before] if self.before else RULES.get(self.name, OWN)

    def __str__(self) -> str:
        usual = {each.name: each.default for each in RULES.get(self.name, OWN).parameters}
        settings = [f"{key}={value!r}" for key, value in self.parameters.items() if key == "b" or value != usual[key]]
        words = ("," if self.is_object else ":").join([self.name, *([",".join(settings)] if settings else [])])
        return f"{self.before}+{words}" if self.before else words


def central() -> list[str]:
    """Return the rules that treat the node's own model as one vector among others; NNM may precede them."""
    return [name for name, entry in RULES.items() if isinstance(entry.made, type) and issubclass(entry.made, MIXABLE)]


def allowed() -> str:
    """Describe all rules in words."""
    names = [name for name in RULES if name != MEAN]
    return (
        f"{MEAN}, or one of {', '.join(names)} with b malicious neighbors, as in {names[0]}:b=1; "
        f"{' or '.join(BEFORE)}+ before {', '.join(central())}; or your own: module:object,b=1 or file.py:object,b=1"
    )


def liars_of(text: str) -> int:
    """Return how many malicious neighbors a node with this rule tolerates, 0 for the mean; raises like `parse_rule`."""
    return parse_rule(text).liars


def parse_rule(text: str) -> ParsedRule:
    """Read a rule spec. Raises ValueError that names the wrong word, what is wrong with it and what is allowed."""
    if text == MEAN:
        return ParsedRule(name=MEAN)
    if own := RULES.own(text):
        name, settings = own
        values = read_parameters(name, settings, OWN.parameters, example=OWN.settings)
        return ParsedRule(name=name, parameters=values)
    words, _, _ = text.partition(":")
    before, plus, rest = words.partition("+")
    # The name cs+ itself ends with a plus.
    stacked = bool(plus) and words not in RULES and before != "cs"
    before, text = (before, text.partition("+")[2]) if stacked else ("", text)
    name = rest if stacked else words
    RULES.require(name, besides=BEFORE)
    if stacked and before not in BEFORE:
        raise ValueError(f"{short(before)}+: only {' or '.join(BEFORE)} may stand before a rule")
    if stacked and name not in (fitting := central()):
        raise ValueError(f"{before}+{name}: {before} stands before one of {', '.join(fitting)}")
    if name == MEAN:
        raise ValueError("mean: it tolerates no malicious neighbors and takes no parameters")
    entry, values = RULES.read(text)
    return ParsedRule(name=entry.name, parameters=values, before=before)


# -- the rule itself ---------------------------------------------------------------------------------------------------


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
    if parsed.is_object:
        return Rule(spec=str(parsed), rule=_load_user_rule(parsed, folder or Path()))
    rule: Aggregator = RULES[parsed.name].make(parsed.parameters)
    return Rule(spec=str(parsed), rule=NNM(rule, parsed.liars) if parsed.before else rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A node's robust rule. `spec` is its text, `liars` (b) how many lying neighbors it is set to tolerate."""

    spec: str
    rule: Aggregator

    @property
    def liars(self) -> int:
        return self.rule.f

    @property
    def least(self) -> int:
        """The smallest number of neighbors with which it tolerates them, at least 2 b + 1."""
        return max(2 * self.liars + 1, self.rule.least - 1)

    def mix(self, around: Neighborhood) -> Mixture:
        """Mix; with fewer neighbors than `least` the model stays as it is."""
        if len(around.others) < self.least:
            return Mixture(model=around.own.copy(), kept=np.zeros(len(around.others)))
        return self.rule.mix(around)


class UserRule(Aggregator):
    """Call `rule` with a copy (n, d) of the models; only a finite result of shape (d,) is accepted.

    Raises UserError on a call if the rule fails or returns anything else.
    """

    def __init__(self, rule: Callable[[Any], Any], f: int = 0, name: str = "") -> None:
        super().__init__(f)
        self.rule, self.name = rule, name or getattr(rule, "__name__", type(rule).__name__)

    def mixture(self, rows: Rows) -> Mixture:
        try:
            mixed = np.asarray(self.rule(np.stack(rows)))
        except FAILURES as error:
            raise self._fault(f"the rule failed: {describe_failure(error)}") from error
        if mixed.shape != rows[0].shape or mixed.dtype.kind != "f":
            raise self._fault(f"the rule returned {mixed.dtype} of shape {mixed.shape}, not {rows[0].shape}")
        with np.errstate(over="ignore"):
            mixed = mixed.astype(rows[0].dtype)
        if not np.isfinite(mixed).all():
            raise self._fault("the rule returned NaN or infinity")
        return Mixture(model=mixed)

    def _fault(self, text: str) -> UserError:
        return UserError(text, key=KEY, value=self.name, allowed="a function from finite vectors (n, d) to one (d,)")


def _load_user_rule(parsed: ParsedRule, folder: Path) -> UserRule:
    """Import the rule; a class is created with f, the number of liars.

    Raises UserError if it cannot be imported or called.
    """
    name = parsed.name
    loaded = find_object(name, folder, what="rule", key=KEY, allowed="module:object or file.py:object")
    try:
        rule = cast("Any", loaded)(f=parsed.liars) if inspect.isclass(loaded) else loaded
    except FAILURES as error:
        raise UserError(f"the rule failed: {describe_failure(error)}", key=KEY, value=name) from error
    if not callable(rule):
        raise UserError("not a rule: it cannot be called", key=KEY, value=name, allowed="a function or a class")
    return UserRule(rule, parsed.liars, name)


# -- advice: which rule where ------------------------------------------------------------------------------------------


class Advice(NamedTuple):
    """The rules to take, the first one first, where each node knows few or most `classes` and has at least so many
    honest neighbors for each liar, and what was measured there.

    `p2pfl check`, `p2pfl plan` and docs/how-to/liars.md say what stands here; the page names the sweeps. Figures are
    accuracies of honest nodes on the built-in digits.
    """

    classes: str
    honest_from: int
    world: str
    rules: tuple[str, ...]
    measured: str


_CLOSE = (
    "with 3 or 4, and closing rounds that train, the worst of seven attacks took .01 to .03 from hampel and .07 from "
    "nnm+trimmed-mean; ascent and foreign, which know all data, took .02 to .07 from hampel"
)
_MANY = "no attack that looks one mix ahead took more than .01 from hampel; the others are as good"
_FEW = "with 2, .75 with nnm+trimmed-mean and .63 with hampel, with 4 .87 and .86; neither withstands ascent"
_FEW_MANY = "with 5, .83 to .84 with either, with or without an attack"
ADVICE = (
    Advice("most", 0, "most classes, fewer than 8", ("hampel",), _CLOSE),
    Advice("most", 8, "most classes, 8 or more", ("hampel", "nnm+trimmed-mean", "geometric-median"), _MANY),
    Advice("few", 0, "few classes, fewer than 5", ("nnm+trimmed-mean",), _FEW),
    Advice("few", 5, "few classes, 5 or more", ("hampel", "nnm+trimmed-mean"), _FEW_MANY),
)


def advice(*, few_classes: bool, honest_each: float) -> Advice:
    """Return the advice for nodes with data of few or most classes and so many honest neighbors for each liar."""
    return [each for each in ADVICE if (each.classes == "few") == few_classes and each.honest_from <= honest_each][-1]
