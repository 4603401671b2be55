"""Every attack by name: how it is written, what it does, and where it comes from.

An attack is named by text such as `alie:2` or `sleeper:sign-flip:3@5`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from sim.attacks import attack, false_models
from sim.attacks.attack import Attack
from sim.attacks.poison import Backdoor, LabelFlip

NOTHING, PEER, NEIGHBORS, RULE, GRAPH, DATA = (
    "nothing",
    "the model of its victim",
    "the models around its victim",
    "the models around its victim, and its rule",
    "all honest models, and the graph",
    "its own data",
)
"""what a liar needs to know."""

LIE, ROUNDS = "LIE", "LIE[@ROUNDS]"

LARGEST = 1e6
"""a parameter is at most so large: beyond it float32 overflows, and `nan` says that more plainly."""
PERIOD, LONGEST_PERIOD = 10, 10**6
"""of a sleeper, in its own rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackForm:
    """How an attack is written, and what it does.

    `parameter` is its parameter's name, None where there is none; `default` is NaN where it must be given. `make` gives
    the fields of an `Attack`. Where the parameter is another attack, `wrap` takes it (None: not said) and a number of
    rounds in place of `make`.
    """

    does: str
    source: str
    knows: str = NOTHING
    make: Callable[[float], dict[str, Any]] = lambda _: {}
    wrap: Callable[[Attack | None, int], Attack] | None = None
    parameter: str | None = None
    default: float = math.nan
    positive: bool = False

    def usage(self, name: str) -> str:
        if self.parameter is None:
            return name
        return f"{name}:{self.parameter}" if math.isnan(self.default) else f"{name}[:{self.parameter}]"


BARUCH, XIE, HE = (
    f"{who}, arXiv {paper}"
    for who, paper in (
        ("Baruch et al. 2019", "1902.06156"),
        ("Xie et al. 2019", "1903.03936"),
        ("He et al. 2022", "2202.01545"),
    )
)
RSA, WU = "Li et al. 2019, arXiv 1811.03761", "Wu et al. 2020, arXiv 1912.12716"
FANG, AGR = "Fang et al. 2020, arXiv 1911.11815", "Shejwalkar and Houmansadr, NDSS 2021"

BLIND: Mapping[str, AttackForm] = {
    "sign-flip": AttackForm(
        does="its model times -SCALE (1)",
        source=RSA,
        parameter="SCALE",
        default=1.0,
        positive=True,
        make=lambda scale: {"blind": false_models.sign_flip(scale)},
    ),
    "noise": AttackForm(
        does="its model plus normal noise of deviation SIGMA, fresh each time",
        source=RSA,
        parameter="SIGMA",
        positive=True,
        make=lambda sigma: {"blind": false_models.noise(sigma)},
    ),
    "zero": AttackForm(does="zeros", source=WU, make=lambda _: {"blind": false_models.zero()}),
    "constant": AttackForm(
        does="VALUE in every entry",
        source=RSA,
        parameter="VALUE",
        make=lambda value: {"blind": false_models.constant(value)},
    ),
    "replay": AttackForm(
        does="the model from before the first round, for ever",
        source="an old message sent again",
        make=lambda _: {"blind": false_models.replay()},
    ),
    "nan": AttackForm(
        does="no numbers",
        source="a broken machine",
        make=lambda _: {"blind": false_models.nan(), "refused": True},
    ),
    "inf": AttackForm(
        does="infinities of both signs",
        source="a broken machine",
        make=lambda _: {"blind": false_models.inf(), "refused": True},
    ),
    "wrong-shape": AttackForm(
        does="its model cut short by a third",
        source="a node of another federation",
        make=lambda _: {"lie": attack.wrong_shape(), "refused": True},
    ),
}

AROUND: Mapping[str, AttackForm] = {
    "alie": AttackForm(
        does="mean - Z (1.5) deviations, coordinate by coordinate",
        source=BARUCH,
        knows=NEIGHBORS,
        parameter="Z",
        default=1.5,
        make=lambda z: {"lie": false_models.alie(z)},
    ),
    "oscillate": AttackForm(
        does="as alie, from the other side every other round",
        source=f"after {BARUCH}",
        knows=NEIGHBORS,
        parameter="Z",
        default=1.5,
        make=lambda z: {"lie": false_models.oscillate(z)},
    ),
    "small-sign": AttackForm(
        does="the mean, every coordinate Z (1.5) mean deviations nearer to zero",
        source=f"after {BARUCH}",
        knows=NEIGHBORS,
        parameter="Z",
        default=1.5,
        make=lambda z: {"lie": false_models.small_sign(z)},
    ),
    "ipm": AttackForm(
        does="the mean times -EPS (0.1)",
        source=XIE,
        knows=NEIGHBORS,
        parameter="EPS",
        default=0.1,
        positive=True,
        make=lambda eps: {"lie": false_models.ipm(eps)},
    ),
    "foe": AttackForm(
        does="fall of empires: the mean times 1 - EPS, EPS searched such that the victim's rule errs most",
        source=f"{XIE}; the search: Farhadkhani et al. 2022, arXiv 2205.12173",
        knows=RULE,
        make=lambda _: {"lie": false_models.empires()},
    ),
    "min-max": AttackForm(
        does="as far from the mean as two honest models are from each other",
        source=AGR,
        knows=NEIGHBORS,
        make=lambda _: {"lie": false_models.min_max()},
    ),
    "min-sum": AttackForm(
        does="as far from the mean as sums of squared distances between honest models allow",
        source=AGR,
        knows=NEIGHBORS,
        make=lambda _: {"lie": false_models.min_sum()},
    ),
    "fang": AttackForm(
        does="just outside the range of the honest, against the way that each coordinate has gone",
        source=FANG,
        knows=NEIGHBORS,
        make=lambda _: {"lie": false_models.fang()},
    ),
    "mimic": AttackForm(
        does="a copy of one honest neighbor, the same from all liars",
        source="Karimireddy et al. 2022, arXiv 2006.09365",
        knows=NEIGHBORS,
        make=lambda _: {"lie": false_models.mimic()},
    ),
    "mirror": AttackForm(
        does="each neighbor its own model, which leaves no radius to rules that take it from the nearest",
        source="against CS+ of Gaucher et al. 2025, arXiv 2410.10418",
        knows=PEER,
        make=lambda _: {"lie": false_models.mirror()},
    ),
    "collude-median": AttackForm(
        does="a copy of the honest model furthest from the mean, to draw medians there",
        source="after Karimireddy et al. 2022, arXiv 2006.09365",
        knows=NEIGHBORS,
        make=lambda _: {"lie": false_models.extreme()},
    ),
    "dissensus": AttackForm(
        does="undoes EPS (1.5) times what the victim's honest neighbors pull it by",
        source=HE,
        knows=NEIGHBORS,
        parameter="EPS",
        default=1.5,
        positive=True,
        make=lambda eps: {"lie": false_models.dissensus(eps)},
    ),
    "spectral": AttackForm(
        does="pushes its victim along the slowest mode of the honest graph, by SCALE (1.5) deviations",
        source="Gaucher et al. 2025, arXiv 2410.10418",
        knows=GRAPH,
        parameter="SCALE",
        default=1.5,
        positive=True,
        make=lambda scale: {"lie": false_models.spectral(scale)},
    ),
    "two-faced": AttackForm(
        does="another lie for each neighbor: its model and SCALE (1) times its length in a direction of the victim's",
        source="Lamport et al. 1982, the Byzantine generals",
        parameter="SCALE",
        default=1.0,
        positive=True,
        make=lambda scale: {"lie": false_models.two_faced(scale)},
    ),
}

POISONS: Mapping[str, AttackForm] = {
    "label-flip": AttackForm(
        does="trains on labels y turned into classes - 1 - y",
        source=FANG,
        knows=DATA,
        make=lambda _: {"poison": LabelFlip()},
    ),
    "backdoor": AttackForm(
        does="half its training data triggered and labeled 0; its distance from the mean SCALE (1) times as long",
        source="Gu et al. 2017, arXiv 1708.06733; the scale: Bagdasaryan et al. 2020, arXiv 1807.00459",
        knows=DATA + "; with a SCALE " + NEIGHBORS,
        parameter="SCALE",
        default=1.0,
        positive=True,
        make=lambda scale: {"poison": Backdoor(), "lie": None if scale == 1 else false_models.replacement(scale)},
    ),
}

WRAPPED: Mapping[str, AttackForm] = {
    "sleeper": AttackForm(
        does="honest for so many (10) of its rounds, LIE for as many, by turns",
        source="on-off attack, Sun et al., INFOCOM 2006",
        knows="what LIE needs",
        parameter=ROUNDS,
        wrap=attack.sleeper,
    ),
    "flood": AttackForm(
        does="exchanges as fast as it can, with its model or with LIE",
        source="denial of service",
        knows="what LIE needs",
        parameter=LIE,
        default=0.0,
        wrap=lambda lie, _: attack.flood(lie),
    ),
}

REGISTRY: Mapping[str, AttackForm] = MappingProxyType({**BLIND, **AROUND, **POISONS, **WRAPPED})

ALLOWED_ATTACKS = (
    ", ".join(form.usage(name) for name, form in REGISTRY.items())
    + f"; numbers up to {LARGEST:g}; `p2pfl sim attacks` says what they do"
)


def parse_attack(text: object) -> Attack:
    """The attack that `text` names. Raises ValueError: it names none; `ALLOWED_ATTACKS` says what would."""
    if not isinstance(text, str):
        raise ValueError("an attack is named by text")  # noqa: TRY004 - a reader has one way to refuse
    name, colon, written = text.partition(":")
    form = REGISTRY.get(name)
    if form is None:
        near = get_close_matches(name, REGISTRY, n=1)
        raise ValueError("no such attack" + (f"; did you mean {near[0]}?" if near else ""))
    if colon and form.parameter is None:
        raise ValueError(f"{name} takes no parameter")
    if form.wrap is not None:
        return _wrapped(form, name, written if colon else None)
    parameter = 0.0 if form.parameter is None else _number(written) if colon else form.default
    if not abs(parameter) <= LARGEST or (form.positive and parameter <= 0):
        raise ValueError(f"no {form.parameter} of {name}" + (", it has to be above 0" if parameter <= 0 else ""))
    return Attack(spec=text, **form.make(parameter))


def _number(written: str) -> float:
    """NaN where it is none."""
    try:
        return float(written)
    except ValueError:
        return math.nan


def _wrapped(form: AttackForm, name: str, written: str | None) -> Attack:
    """One attack around another, no deeper."""
    inner, period = None, PERIOD
    if written is not None:
        lie, at, rounds = written.partition("@")
        inner = parse_attack(lie)
        if at and (name != "sleeper" or not re.fullmatch("[0-9]{1,7}", rounds)):
            raise ValueError(f"no number of rounds of {name}: {rounds}")
        period = int(rounds) if at else PERIOD
        nested = REGISTRY[inner.spec.partition(":")[0]].wrap is not None
        if nested or (name == "sleeper" and inner.poison is not None):
            raise ValueError(f"{name} cannot be made of {lie}")
    if form.wrap is None or not 1 <= period <= LONGEST_PERIOD:
        raise ValueError(f"ROUNDS of {name} are from 1 to {LONGEST_PERIOD:,}")
    return form.wrap(inner, period)
