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

from p2pfl.specs import OBJECT
from sim.attacks import attack
from sim.attacks import false_models as lies
from sim.attacks.ascent import ascent
from sim.attacks.attack import Attack, Poison
from sim.attacks.own import OwnLie
from sim.attacks.poison import Backdoor, LabelFlip, Semantic
from sim.attacks.sight import Rows, Vector

NOTHING, PEER, NEIGHBORS, RULE, GRAPH, LOSS, DATA = (
    "nothing",
    "the model of its victim",
    "the models around its victim",
    "the models around its victim, and its rule",
    "all honest models, and the graph",
    "all honest models, the rule of its victim, and data: everybody's in a simulation, its own as a real node",
    "its own data",
)
"""What an attack needs to know."""

LIE, ROUNDS = "LIE", "LIE[@ROUNDS]"

LARGEST = 1e6
"""Largest parameter: beyond it float32 overflows, for which `nan` is the plainer attack."""
PERIOD, LONGEST_PERIOD = 10, 10**6
"""Default and longest period of a sleeper, in its own rounds."""


@dataclass(frozen=True, slots=True)
class AttackForm:
    """How an attack is written, and what it does.

    `parameter` is its parameter's name, None where there is none; `default` is NaN where it must be given. `blind` and
    `lie` take it last. Where the parameter is another attack, `wrap` makes one of it (None: not said) and of a number
    of rounds.
    """

    does: str
    source: str
    knows: str = NOTHING
    parameter: str | None = None
    default: float = math.nan
    positive: bool = False
    blind: Callable[..., Rows] | None = None
    lie: Callable[..., Vector] | None = None
    poison: Poison | None = None
    refused: bool = False
    climbs: bool = False
    wrap: Callable[[Attack | None, int], Attack] | None = None

    def usage(self, name: str) -> str:
        if self.parameter is None:
            return name
        return f"{name}:{self.parameter}" if math.isnan(self.default) else f"{name}[:{self.parameter}]"

    def attack(self, spec: str, parameter: float) -> Attack:
        last = () if self.parameter is None else (parameter,)
        own = self.poison is not None and parameter == 1  # its model as it is
        lie = None if own else _with(self.lie, last)
        blind = _with(self.blind, last)
        return Attack(spec=spec, blind=blind, lie=lie, poison=self.poison, refused=self.refused, climbs=self.climbs)


def _with(shown: Callable[..., Vector] | None, last: tuple[float, ...]) -> Callable[..., Vector] | None:
    return None if shown is None else lambda *seen: shown(*seen, *last)


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
        "its model times -SCALE (1)", RSA, parameter="SCALE", default=1.0, positive=True, blind=lies.sign_flip
    ),
    "noise": AttackForm(
        "its model plus normal noise of deviation SIGMA, fresh each time",
        RSA,
        parameter="SIGMA",
        positive=True,
        blind=lies.noise,
    ),
    "zero": AttackForm("zeros", WU, blind=lies.constant),
    "constant": AttackForm("VALUE in every entry", RSA, parameter="VALUE", blind=lies.constant),
    "replay": AttackForm(
        "the model from before the first round, for ever", "an old message sent again", blind=lies.replay
    ),
    "nan": AttackForm("no numbers", "a broken machine", blind=lies.nan, refused=True),
    "inf": AttackForm("infinities of both signs", "a broken machine", blind=lies.inf, refused=True),
    "wrong-shape": AttackForm(
        "its model cut short by a third", "a node of another federation", lie=attack.wrong_shape, refused=True
    ),
}

AROUND: Mapping[str, AttackForm] = {
    "alie": AttackForm(
        "mean - Z (1.5) deviations, coordinate by coordinate", BARUCH, NEIGHBORS, "Z", 1.5, lie=lies.alie
    ),
    "oscillate": AttackForm(
        "as alie, from the other side every other round", f"after {BARUCH}", NEIGHBORS, "Z", 1.5, lie=lies.oscillate
    ),
    "small-sign": AttackForm(
        "the mean, every coordinate Z (1.5) mean deviations nearer to zero",
        f"after {BARUCH}",
        NEIGHBORS,
        "Z",
        1.5,
        lie=lies.small_sign,
    ),
    "ipm": AttackForm("the mean times -EPS (0.1)", XIE, NEIGHBORS, "EPS", 0.1, positive=True, lie=lies.ipm),
    "foe": AttackForm(
        "fall of empires: the mean times 1 - EPS, EPS searched such that the victim's rule errs most",
        f"{XIE}; the search: Farhadkhani et al. 2022, arXiv 2205.12173",
        RULE,
        lie=lies.empires,
    ),
    "min-max": AttackForm(
        "as far from the mean as two honest models are from each other", AGR, NEIGHBORS, lie=lies.min_max
    ),
    "min-sum": AttackForm(
        "as far from the mean as sums of squared distances between honest models allow",
        AGR,
        NEIGHBORS,
        lie=lies.min_sum,
    ),
    "fang": AttackForm(
        "just outside the range of the honest, against the way that each coordinate has gone",
        FANG,
        NEIGHBORS,
        lie=lies.fang,
    ),
    "mimic": AttackForm(
        "a copy of one honest neighbor, the same from all liars",
        "Karimireddy et al. 2022, arXiv 2006.09365",
        NEIGHBORS,
        lie=lies.mimic,
    ),
    "mirror": AttackForm(
        "each neighbor its own model, which leaves no radius to rules that take it from the nearest",
        "against CS+ of Gaucher et al. 2025, arXiv 2410.10418",
        PEER,
        lie=lies.mirror,
    ),
    "collude-median": AttackForm(
        "a copy of the honest model furthest from the mean, to draw medians there",
        "after Karimireddy et al. 2022, arXiv 2006.09365",
        NEIGHBORS,
        lie=lies.extreme,
    ),
    "dissensus": AttackForm(
        "undoes EPS (1.5) times what the victim's honest neighbors pull it by",
        HE,
        NEIGHBORS,
        "EPS",
        1.5,
        positive=True,
        lie=lies.dissensus,
    ),
    "spectral": AttackForm(
        "pushes its victim along the slowest mode of the honest graph, by SCALE (1.5) deviations",
        "Gaucher et al. 2025, arXiv 2410.10418",
        GRAPH,
        "SCALE",
        1.5,
        positive=True,
        lie=lies.spectral,
    ),
    "ascent": AttackForm(
        "climbs the task's loss, and goes as far that way as raises it most after the victim's rule",
        "after PGA of Shejwalkar et al. 2022, arXiv 2108.10241",
        LOSS,
        lie=ascent,
        climbs=True,
    ),
    "two-faced": AttackForm(
        "another lie for each neighbor: its model and SCALE (1) times its length in a direction of the victim's",
        "Lamport et al. 1982, the Byzantine generals",
        parameter="SCALE",
        default=1.0,
        positive=True,
        lie=lies.two_faced,
    ),
}

POISONS: Mapping[str, AttackForm] = {
    "label-flip": AttackForm("trains on labels y turned into classes - 1 - y", FANG, DATA, poison=LabelFlip()),
    "backdoor": AttackForm(
        "half its training data triggered and labeled 0; its distance from the mean SCALE (1) times as long",
        "Gu et al. 2017, arXiv 1708.06733; the scale: Bagdasaryan et al. 2020, arXiv 1807.00459",
        DATA + "; with a SCALE " + NEIGHBORS,
        "SCALE",
        1.0,
        positive=True,
        poison=Backdoor(),
        lie=lies.replacement,
    ),
    "semantic": AttackForm(
        "half its training data of the brightest tenth, labeled 0, with no trigger; scaled by SCALE (1) as backdoor is",
        "Bagdasaryan et al. 2020, arXiv 1807.00459",
        DATA + "; with a SCALE " + NEIGHBORS,
        "SCALE",
        1.0,
        positive=True,
        poison=Semantic(),
        lie=lies.replacement,
    ),
}

WRAPPED: Mapping[str, AttackForm] = {
    "sleeper": AttackForm(
        "honest for so many (10) of its rounds, LIE for as many, by turns",
        "on-off attack, Sun et al., INFOCOM 2006",
        "what LIE needs",
        ROUNDS,
        wrap=attack.sleeper,
    ),
    "flood": AttackForm(
        "exchanges as fast as it can, with its model or with LIE",
        "denial of service",
        "what LIE needs",
        LIE,
        0.0,
        wrap=lambda lie, _: attack.flood(lie),
    ),
}

REGISTRY: Mapping[str, AttackForm] = MappingProxyType({**BLIND, **AROUND, **POISONS, **WRAPPED})

ALLOWED_ATTACKS = (
    ", ".join(form.usage(name) for name, form in REGISTRY.items())
    + f"; numbers up to {LARGEST:g}; `p2pfl sim attacks` says what they do. Or your own: file.py:object, module:object"
)


def parse_attack(text: object) -> Attack:
    """The attack that `text` names; one of the user's own is not imported yet.

    Raises ValueError: it names none; `ALLOWED_ATTACKS` says what would.
    """
    if not isinstance(text, str):
        raise ValueError("an attack is named by text")  # noqa: TRY004 - a reader has one way to refuse
    name, colon, written = text.partition(":")
    form = REGISTRY.get(name)
    if form is None and OBJECT.fullmatch(text):
        own = OwnLie(text)
        return Attack(spec=text, lie=own, own=own)
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
    return form.attack(text, parameter)


def make_attack(text: object) -> Attack:
    """As `parse_attack`, ready to lie. Raises ValueError: as there; UserError: the user's own cannot be imported."""
    attack = parse_attack(text)
    if attack.own is not None:
        attack.own.load()
    return attack


def _lie_and_rounds(written: str) -> tuple[str, str, str]:
    """As `partition("@")` has it; the path of a file may have an @ too."""
    if OBJECT.fullmatch(written):
        return written, "", ""
    lie, at, rounds = written.rpartition("@")
    return (lie, at, rounds) if OBJECT.fullmatch(lie) else written.partition("@")


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
        lie, at, rounds = _lie_and_rounds(written)
        inner = parse_attack(lie)
        if at and (name != "sleeper" or not re.fullmatch("[0-9]{1,7}", rounds)):
            raise ValueError(f"no number of rounds of {name}: {rounds}")
        period = int(rounds) if at else PERIOD
        nested = inner.own is None and REGISTRY[inner.spec.partition(":")[0]].wrap is not None
        if nested or (name == "sleeper" and inner.poison is not None):
            raise ValueError(f"{name} cannot be made of {lie}")
    if form.wrap is None or not 1 <= period <= LONGEST_PERIOD:
        raise ValueError(f"ROUNDS of {name} are from 1 to {LONGEST_PERIOD:,}")
    return form.wrap(inner, period)
