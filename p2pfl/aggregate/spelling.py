"""The grammar of `gossip.rule`: how a node mixes, for instance `trimmed-mean:b=1` or `nnm+median:b=2`.

    mean | [nnm+]NAME[:key=value,...] | module:object[,b=1] | file.py:object[,b=1]

`b`, by default 1, is how many malicious neighbors a node tolerates; `mean` tolerates none. `nnm+` mixes each vector
with its nearest before a rule that is not centered on the own model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from p2pfl.aggregate.entry import BEFORE, RULES, RuleEntry, liars
from p2pfl.aggregate.rules import MIXABLE
from p2pfl.specs import read_parameters, short

MEAN = "mean"
OWN = RuleEntry(
    name="module:object",
    means="a rule of your own",
    parameters=(liars("passed to it as f, if it is a class"),),
    bound="not known",
    cost="a copy of all models, and the rule",
    source="-",
)
"""The entry of a user's own rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRule:
    """A parsed spec; `str` gives its canonical spelling."""

    name: str
    """A name in RULES, or `module:object`, or `file.py:object`."""
    parameters: Mapping[str, float | None] = field(default_factory=dict)
    """All parameters of the rule, `b` first; None if the rule computes the value itself."""
    before: str = ""
    """A name in BEFORE, or nothing."""

    @property
    def liars(self) -> int:
        return int(self.parameters.get("b") or 0)

    @property
    def is_object(self) -> bool:
        """True if the rule is the user's, and must be imported."""
        return self.name not in RULES

    @property
    def entry(self) -> RuleEntry:
        """The entry that describes it: that of the pre-aggregation, if there is one."""
        return BEFORE[self.before] if self.before else RULES.get(self.name, OWN)

    def __str__(self) -> str:
        usual = {each.name: each.default for each in RULES.get(self.name, OWN).parameters}
        settings = [f"{key}={value!r}" for key, value in self.parameters.items() if key == "b" or value != usual[key]]
        words = ("," if self.is_object else ":").join([self.name, *([",".join(settings)] if settings else [])])
        return f"{self.before}+{words}" if self.before else words


def central() -> list[str]:
    """Rules that treat the node's own model as one vector among others; NNM may precede them."""
    return [name for name, entry in RULES.items() if isinstance(entry.made, type) and issubclass(entry.made, MIXABLE)]


def allowed() -> str:
    """Describe all rules in words."""
    names = [name for name in RULES if name != MEAN]
    return (
        f"{MEAN}, or one of {', '.join(names)} with b malicious neighbors, as in {names[0]}:b=1; "
        f"{' or '.join(BEFORE)}+ before {', '.join(central())}; or your own: module:object,b=1 or file.py:object,b=1"
    )


def liars_of(text: str) -> int:
    """The number of malicious neighbors that a node with this rule tolerates: 0 for the mean.

    Raises ValueError: as `parse_rule`.
    """
    return parse_rule(text).liars


def parse_rule(text: str) -> ParsedRule:
    """Read the rule of a spec. Raises ValueError: names the wrong word, what is wrong with it and what is allowed."""
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
    if stacked:
        _require_before(before, name)
    if name == MEAN:
        raise ValueError("mean: it tolerates no malicious neighbors and takes no parameters")
    entry, values = RULES.read(text)
    return ParsedRule(name=entry.name, parameters=values, before=before)


def _require_before(before: str, name: str) -> None:
    if before not in BEFORE:
        raise ValueError(f"{short(before)}+: only {' or '.join(BEFORE)} may stand before a rule")
    if name not in (fitting := central()):
        raise ValueError(f"{before}+{name}: {before} stands before one of {', '.join(fitting)}")
