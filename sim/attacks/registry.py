"""Every attack by name, how it is written, and where it comes from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sim.attacks import blind
from sim.attacks.attack import Attack

LARGEST = 1e6
"""a parameter is at most so large: beyond it float32 overflows, and `nan` says that more plainly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How an attack is written, and what it does.

    `parameter` is its parameter's name, None where there is none; `default` is NaN where it must be given. `make` gives
    the fields of an `Attack`. `knows` says what a liar needs to know for it.
    """

    does: str
    source: str
    knows: str
    make: Callable[[float], dict[str, Any]]
    parameter: str | None = None
    default: float = math.nan
    positive: bool = False

    def usage(self, name: str) -> str:
        if self.parameter is None:
            return name
        return f"{name}:{self.parameter}" if math.isnan(self.default) else f"{name}[:{self.parameter}]"


RSA = "Li et al. 2019, arXiv 1811.03761"
NOTHING = "nothing"

REGISTRY: Mapping[str, Form] = MappingProxyType(
    {
        "sign-flip": Form(
            does="its model times -SCALE (1)",
            source=RSA,
            knows=NOTHING,
            parameter="SCALE",
            default=1.0,
            positive=True,
            make=lambda scale: {"blind": blind.sign_flip(scale)},
        ),
        "noise": Form(
            does="its model plus normal noise of deviation SIGMA, fresh each time",
            source=RSA,
            knows=NOTHING,
            parameter="SIGMA",
            positive=True,
            make=lambda sigma: {"blind": blind.noise(sigma)},
        ),
        "zero": Form(
            does="zeros",
            source="Wu et al. 2020, arXiv 1912.12716",
            knows=NOTHING,
            make=lambda _: {"blind": blind.zero()},
        ),
        "constant": Form(
            does="VALUE in every entry",
            source=RSA,
            knows=NOTHING,
            parameter="VALUE",
            make=lambda value: {"blind": blind.constant(value)},
        ),
        "replay": Form(
            does="the model from before the first round, for ever",
            source="an old message sent again",
            knows=NOTHING,
            make=lambda _: {"blind": blind.replay()},
        ),
        "nan": Form(
            does="no numbers",
            source="a broken machine",
            knows=NOTHING,
            make=lambda _: {"blind": blind.nan(), "refused": True},
        ),
        "inf": Form(
            does="infinities of both signs",
            source="a broken machine",
            knows=NOTHING,
            make=lambda _: {"blind": blind.inf(), "refused": True},
        ),
    }
)

ALLOWED_ATTACKS = (
    ", ".join(form.usage(name) for name, form in REGISTRY.items())
    + f"; numbers up to {LARGEST:g}; `p2pfl sim attacks` describes them"
)


def parse_attack(text: object) -> Attack:
    """The attack that `text` names.

    Raises:
        ValueError: it names none; `ALLOWED_ATTACKS` says what would.
    """
    if not isinstance(text, str):
        raise ValueError("an attack is named by text")  # noqa: TRY004 - a reader has one way to refuse
    name, colon, written = text.partition(":")
    form = REGISTRY.get(name)
    if form is None or (colon and form.parameter is None):
        raise ValueError(f"no such attack: {text}")
    parameter = 0.0 if form.parameter is None else float(written) if colon else form.default
    if not abs(parameter) <= LARGEST or (form.positive and parameter <= 0):
        raise ValueError(f"no parameter of {name}: {written}")
    return Attack(spec=text, **form.make(parameter))
