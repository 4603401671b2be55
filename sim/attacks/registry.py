"""Every attack by name: how it is written, what it does, and where it comes from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sim.attacks import around, blind, graphs, wrapped
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
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

BLIND: Mapping[str, Form] = {
    "sign-flip": Form(
        does="its model times -SCALE (1)",
        source=RSA,
        parameter="SCALE",
        default=1.0,
        positive=True,
        make=lambda scale: {"blind": blind.sign_flip(scale)},
    ),
    "noise": Form(
        does="its model plus normal noise of deviation SIGMA, fresh each time",
        source=RSA,
        parameter="SIGMA",
        positive=True,
        make=lambda sigma: {"blind": blind.noise(sigma)},
    ),
    "zero": Form(does="zeros", source=WU, make=lambda _: {"blind": blind.zero()}),
    "constant": Form(
        does="VALUE in every entry",
        source=RSA,
        parameter="VALUE",
        make=lambda value: {"blind": blind.constant(value)},
    ),
    "replay": Form(
        does="the model from before the first round, for ever",
        source="an old message sent again",
        make=lambda _: {"blind": blind.replay()},
    ),
    "nan": Form(
        does="no numbers",
        source="a broken machine",
        make=lambda _: {"blind": blind.nan(), "refused": True},
    ),
    "inf": Form(
        does="infinities of both signs",
        source="a broken machine",
        make=lambda _: {"blind": blind.inf(), "refused": True},
    ),
    "wrong-shape": Form(
        does="its model cut short by a third",
        source="a node of another federation",
        make=lambda _: {"lie": wrapped.wrong_shape(), "refused": True},
    ),
}

AROUND: Mapping[str, Form] = {
    "alie": Form(
        does="mean - Z (1.5) deviations, coordinate by coordinate",
        source=BARUCH,
        knows=NEIGHBORS,
        parameter="Z",
        default=1.5,
        make=lambda z: {"lie": around.alie(z)},
    ),
    "oscillate": Form(
        does="as alie, from the other side every other round",
        source=f"after {BARUCH}",
        knows=NEIGHBORS,
        parameter="Z",
        default=1.5,
        make=lambda z: {"lie": around.oscillate(z)},
    ),
    "small-sign": Form(
        does="the mean, every coordinate Z (1.5) mean deviations nearer to zero",
        source=f"after {BARUCH}",
        knows=NEIGHBORS,
        parameter="Z",
        default=1.5,
        make=lambda z: {"lie": around.small_sign(z)},
    ),
    "ipm": Form(
        does="the mean times -EPS (0.1)",
        source=XIE,
        knows=NEIGHBORS,
        parameter="EPS",
        default=0.1,
        positive=True,
        make=lambda eps: {"lie": around.ipm(eps)},
    ),
    "foe": Form(
        does="fall of empires: the mean times 1 - EPS, EPS searched such that the victim's rule errs most",
        source=f"{XIE}; the search: Farhadkhani et al. 2022, arXiv 2205.12173",
        knows=RULE,
        make=lambda _: {"lie": around.empires()},
    ),
    "min-max": Form(
        does="as far from the mean as two honest models are from each other",
        source=AGR,
        knows=NEIGHBORS,
        make=lambda _: {"lie": around.min_max()},
    ),
    "min-sum": Form(
        does="as far from the mean as sums of squared distances between honest models allow",
        source=AGR,
        knows=NEIGHBORS,
        make=lambda _: {"lie": around.min_sum()},
    ),
    "fang": Form(
        does="just outside the range of the honest, against the way that each coordinate has gone",
        source=FANG,
        knows=NEIGHBORS,
        make=lambda _: {"lie": around.fang()},
    ),
    "mimic": Form(
        does="a copy of one honest neighbor, the same from all liars",
        source="Karimireddy et al. 2022, arXiv 2006.09365",
        knows=NEIGHBORS,
        make=lambda _: {"lie": around.mimic()},
    ),
    "mirror": Form(
        does="each neighbor its own model, which leaves no radius to rules that take it from the nearest",
        source="against CS+ of Gaucher et al. 2025, arXiv 2410.10418",
        knows=PEER,
        make=lambda _: {"lie": around.mirror()},
    ),
    "collude-median": Form(
        does="a copy of the honest model furthest from the mean, to draw medians there",
        source="after Karimireddy et al. 2022, arXiv 2006.09365",
        knows=NEIGHBORS,
        make=lambda _: {"lie": around.extreme()},
    ),
    "dissensus": Form(
        does="undoes EPS (1.5) times what the victim's honest neighbors pull it by",
        source=HE,
        knows=NEIGHBORS,
        parameter="EPS",
        default=1.5,
        positive=True,
        make=lambda eps: {"lie": graphs.dissensus(eps)},
    ),
    "spectral": Form(
        does="pushes its victim along the slowest mode of the honest graph, by SCALE (1.5) deviations",
        source="Gaucher et al. 2025, arXiv 2410.10418",
        knows=GRAPH,
        parameter="SCALE",
        default=1.5,
        positive=True,
        make=lambda scale: {"lie": graphs.spectral(scale)},
    ),
    "two-faced": Form(
        does="another lie for each neighbor: its model and SCALE (1) times its length in a direction of the victim's",
        source="Lamport et al. 1982, the Byzantine generals",
        parameter="SCALE",
        default=1.0,
        positive=True,
        make=lambda scale: {"lie": graphs.two_faced(scale)},
    ),
}

POISONS: Mapping[str, Form] = {
    "label-flip": Form(
        does="trains on labels y turned into classes - 1 - y",
        source=FANG,
        knows=DATA,
        make=lambda _: {"poison": LabelFlip()},
    ),
    "backdoor": Form(
        does="half its training data triggered and labeled 0; its distance from the mean SCALE (1) times as long",
        source="Gu et al. 2017, arXiv 1708.06733; the scale: Bagdasaryan et al. 2020, arXiv 1807.00459",
        knows=DATA + "; with a SCALE " + NEIGHBORS,
        parameter="SCALE",
        default=1.0,
        positive=True,
        make=lambda scale: {"poison": Backdoor(), "lie": None if scale == 1 else around.replacement(scale)},
    ),
}

WRAPPED: Mapping[str, Form] = {
    "sleeper": Form(
        does="honest for so many (10) of its rounds, LIE for as many, by turns",
        source="on-off attack, Sun et al., INFOCOM 2006",
        knows="what LIE needs",
        parameter=ROUNDS,
        wrap=wrapped.sleeper,
    ),
    "flood": Form(
        does="exchanges as fast as it can, with its model or with LIE",
        source="denial of service",
        knows="what LIE needs",
        parameter=LIE,
        default=0.0,
        wrap=lambda lie, _: wrapped.flood(lie),
    ),
}

REGISTRY: Mapping[str, Form] = MappingProxyType({**BLIND, **AROUND, **POISONS, **WRAPPED})
