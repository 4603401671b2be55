"""What a liar shows its neighbors instead of its model: pure functions on rows, one registry of names.

Named as in Li et al. 2019 (RSA, arXiv 1811.03761) and Wu et al. 2020 (arXiv 1912.12716), whose liars send gradients;
here they show models. A row depends on nothing but its model and (seed, node, count), whatever the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.chance import generator

Rows = NDArray[np.floating[Any]]
Draw = Callable[[int, int], NDArray[np.float64]]
"""(row, size) to standard normal numbers of that row's own, (size,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One lie with its parameter filled in; `spec` is the text that gives it again."""

    spec: str
    rows: Callable[[Rows, Rows, Draw], Rows]

    def show(self, models: Rows, initial: Rows, *, seed: int, nodes: Sequence[int], counts: Sequence[int]) -> Rows:
        """What the liars `nodes` show for the `counts`-th time, (b, d) in the type of `models` (b, d).

        `initial` (d,) is the model that every node starts from.
        """

        def draw(row: int, size: int) -> NDArray[np.float64]:
            return generator(seed, "attack", int(nodes[row]), int(counts[row])).standard_normal(size)

        shown = self.rows(models, initial, draw)
        return shown.astype(models.dtype, copy=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """How an attack is written: `default` is its parameter, None where there is none, NaN where it must be given."""

    default: float | None
    make: Callable[[float], Callable[[Rows, Rows, Draw], Rows]]
    positive: bool = False


def _sign_flip(scale: float) -> Callable[[Rows, Rows, Draw], Rows]:
    """Sign-flipping attack: the model times `-scale`."""
    return lambda models, _initial, _draw: models * models.dtype.type(-scale)


def _noise(sigma: float) -> Callable[[Rows, Rows, Draw], Rows]:
    """Gaussian attack: independent noise of deviation `sigma` on each entry, fresh each time."""

    def rows(models: Rows, _initial: Rows, draw: Draw) -> Rows:
        shown = models.copy()
        for row in range(len(models)):
            shown[row] += (sigma * draw(row, models.shape[1])).astype(models.dtype)
        return shown

    return rows


def _constant(value: float) -> Callable[[Rows, Rows, Draw], Rows]:
    """Same-value attack: `value` in every entry."""
    return lambda models, _initial, _draw: np.full_like(models, value)


def _zero(_: float) -> Callable[[Rows, Rows, Draw], Rows]:
    """Zero attack (zero-gradient where gradients are sent): drags everybody to the origin."""
    return _constant(0.0)


def _replay(_: float) -> Callable[[Rows, Rows, Draw], Rows]:
    """Replay of an old model: the one from before the first round, for ever."""
    return lambda models, initial, _draw: np.broadcast_to(initial.astype(models.dtype), models.shape).copy()


def _nan(_: float) -> Callable[[Rows, Rows, Draw], Rows]:
    """Non-finite values, as from a broken machine: an honest node must refuse them before anything is applied."""
    return _constant(math.nan)


ATTACKS: Mapping[str, _Form] = MappingProxyType(
    {
        "sign-flip": _Form(default=1.0, make=_sign_flip, positive=True),
        "noise": _Form(default=math.nan, make=_noise, positive=True),
        "zero": _Form(default=None, make=_zero),
        "constant": _Form(default=math.nan, make=_constant),
        "replay": _Form(default=None, make=_replay),
        "nan": _Form(default=None, make=_nan),
    }
)

ALLOWED_ATTACKS = (
    "sign-flip, sign-flip:SCALE, noise:SIGMA, zero, constant:VALUE, replay, nan; SCALE and SIGMA above 0, all up to 1e6"
)
LARGEST = 1e6
"""a parameter is at most so large: beyond it float32 overflows, and `nan` says that more plainly."""


def parse_attack(text: object) -> Attack:
    """The attack that `text` names.

    Raises:
        ValueError: it names none; `ALLOWED_ATTACKS` says what would.
    """
    if not isinstance(text, str):
        raise ValueError("an attack is named by text")  # noqa: TRY004 - a reader has one way to refuse
    name, colon, written = text.partition(":")
    form = ATTACKS.get(name)
    if form is None or (colon and form.default is None):
        raise ValueError(f"no such attack: {text}")
    parameter = float(written) if colon else form.default or 0.0
    if not abs(parameter) <= LARGEST or (form.positive and parameter <= 0):
        raise ValueError(f"no parameter of {name}: {written}")
    return Attack(spec=text, rows=form.make(parameter))
