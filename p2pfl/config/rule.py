"""The words of `gossip.rule`: how a node mixes, for instance `trimmed-mean:b=1` or `nnm+median:b=2`.

    mean | [nnm+]NAME[:key=value,...] | module:object[,b=1] | file.py:object[,b=1]

`b`, by default 1, is how many malicious neighbors a node tolerates; `mean` tolerates none. `nnm+` mixes each vector
with its nearest before a rule that does not take the own model for its center. What rules do is for `aggregate`.

And the words of `gossip.staleness`, how much an old replica counts. What they compute is the core's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from p2pfl.config.tables import OBJECT, Kind, ParameterKinds, number, read_parameters, short, whole

CENTRAL = ("trimmed-mean", "median", "geometric-median", "krum", "multi-krum", "bulyan")
"""Rules that treat the node's own model as one vector among others; NNM may precede them."""
CENTERED = ("hampel", "cs+", "scc", "monna", "centered-clipping", "balance")
"""Rules that move from the node's own model toward the neighbors'."""
NAMES = ("mean", *CENTRAL, *CENTERED)
ALLOWED = (
    f"mean, or one of {', '.join(NAMES[1:])} with b malicious neighbors, as in trimmed-mean:b=1; nnm+ before one "
    "of the first six; or your own: module:object,b=1 or file.py:object,b=1"
)
MOST_LIARS = 10**6

_RADIUS, _LIARS = number(0, 1e30, above=True), whole(1, MOST_LIARS)
_PARAMETERS: Mapping[str, ParameterKinds] = {
    "hampel": {"cut": (number(1, 1e30), 2.0)},
    "scc": {"tau": (_RADIUS, None)},
    "centered-clipping": {"tau": (_RADIUS, None), "steps": (whole(1, 1000), 3)},
    "balance": {
        "alpha": (number(0, 1), 0.5),
        "gamma": (number(0, 1e30, above=True), 0.3),
        "kappa": (number(0, 1e3), 1.0),
    },
}
"""Parameters besides b, with allowed values and defaults. Without a radius, the rule finds its own."""
_KNOWN_AS = {
    "average": "mean",
    "fedavg": "mean",
    "none": "mean",
    "trmean": "trimmed-mean",
    "trimmed": "trimmed-mean",
    "cwtm": "trimmed-mean",
    "cwmed": "median",
    "coordinatemedian": "median",
    "coordinatewisemedian": "median",
    "gm": "geometric-median",
    "geomed": "geometric-median",
    "rfa": "geometric-median",
    "mkrum": "multi-krum",
    "nna": "monna",
    "nearestneighboraveraging": "monna",
    "cs": "cs+",
    "csplus": "cs+",
    "clippedsum": "cs+",
    "clippedgossip": "scc",
    "selfcenteredclipping": "scc",
    "cc": "centered-clipping",
    "redescending": "hampel",
    "nnm": "nnm+trimmed-mean",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRule:
    """A parsed spec; `str` gives its canonical spelling."""

    name: str
    """One of NAMES, or `module:object`, or `file.py:object`."""
    parameters: Mapping[str, float | None] = field(default_factory=dict)
    """All parameters of the rule, `b` first; None if the rule finds the value itself."""
    before: str = ""
    """`nnm` or nothing."""

    @property
    def liars(self) -> int:
        return int(self.parameters.get("b") or 0)

    @property
    def is_object(self) -> bool:
        """Whether the rule is the user's, to be imported."""
        return self.name not in NAMES

    def __str__(self) -> str:
        usual = {key: default for key, (_, default) in _PARAMETERS.get(self.name, {}).items()}
        told = [f"{key}={value!r}" for key, value in self.parameters.items() if key == "b" or value != usual[key]]
        words = ("," if self.is_object else ":").join([self.name, *([",".join(told)] if told else [])])
        return f"{self.before}+{words}" if self.before else words


def rule() -> Kind:
    """Its values are specs in their canonical spelling; `read` gives the reason with which it refuses."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError("not a text")  # noqa: TRY004 - a reader has one way to refuse
        return str(parse_rule(value))

    return Kind(ALLOWED, read)


def liars_of(text: str) -> int:
    """How many malicious neighbors a node with this rule tolerates: 0 for the mean.

    Raises ValueError: as `parse_rule`.
    """
    return parse_rule(text).liars


def parse_rule(text: str) -> ParsedRule:
    """The rule of a spec. Raises ValueError: with the word, what is wrong with it and what would be right."""
    if text == "mean":
        return ParsedRule(name="mean")
    name, _, told = text.partition(",")
    if OBJECT.fullmatch(name) and name.partition(":")[0] not in NAMES:
        return ParsedRule(name=name, parameters=_parameters(name, told if "," in text else None))
    words, colon, told = text.partition(":")
    before, plus, rest = words.partition("+")
    # The name cs+ ends with a plus itself.
    stacked = bool(plus) and before != "cs"
    before, name = (before, rest) if stacked else ("", words)
    _require_known(name)
    if stacked:
        _require_before(before, name)
    if name == "mean":
        raise ValueError("mean: it tolerates no malicious neighbors and takes no parameters")
    return ParsedRule(name=name, parameters=_parameters(name, told if colon else None), before=before)


def _require_known(name: str) -> None:
    if name in NAMES:
        return
    plain = re.sub(r"[^a-z]", "", name.lower())
    close = get_close_matches(name[:60].strip().lower(), NAMES, n=1, cutoff=0.65)
    near = _KNOWN_AS.get(plain) or (close[0] if close else "")
    hint = f"did you mean {near}?" if near else f"there are {', '.join(NAMES)}"
    raise ValueError(f"unknown rule {short(name)!r}: {hint}")


def _require_before(before: str, name: str) -> None:
    if before != "nnm":
        raise ValueError(f"{short(before)}+: only nnm may stand before a rule")
    if name not in CENTRAL:
        raise ValueError(f"nnm+{name}: nnm stands before one of {', '.join(CENTRAL)}")


def _parameters(name: str, told: str | None) -> dict[str, float | None]:
    """All parameters of a rule, from the text after its colon."""
    return read_parameters(name, told, {"b": (_LIARS, 1), **_PARAMETERS.get(name, {})}, example="b=1")


ALLOWED_STALENESS = (
    "none, constant, constant:C with C in (0, 1], hinge:A,B, polynomial:A, hinge-polynomial:B,A "
    "with A above 0 and B from 0"
)

_SHAPES: Mapping[str, Callable[..., bool]] = {
    "none": lambda: True,
    "constant": lambda c=1.0: 0.0 < c <= 1.0,
    "hinge": lambda a, b: a > 0.0 and b >= 0.0,
    "polynomial": lambda a: a > 0.0,
    "hinge-polynomial": lambda b, a: a > 0.0 and b >= 0.0,
}


def staleness() -> Kind:
    return Kind(ALLOWED_STALENESS, _read_staleness)


def _read_staleness(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError  # noqa: TRY004 - a reader has one way to refuse
    name, colon, rest = value.partition(":")
    try:
        parameters = [float(part) for part in rest.split(",")] if colon else []
        fits = _SHAPES[name](*parameters) and all(abs(part) < 1e6 for part in parameters)
    except (KeyError, TypeError, ValueError):
        raise ValueError from None
    if not fits:
        raise ValueError
    return value
