"""Privacy accounting: the epsilon of noisy steps, the noise for a given epsilon, and the ledger of a node's spending.

Each step is a sum over rows drawn by Poisson sampling, plus Gaussian noise. The bounds come from Opacus (an optional
dependency): numerical composition of the privacy loss (PRV, Gopi et al. 2021, arXiv 2106.02848) and Rényi moments
(RDP, Mironov et al. 2019, arXiv 1908.10530). Both are upper bounds, so the smaller one is used.

A ledger may record more than was used, because spending is durable before its steps are computed. It never records less
without a mark that it lacks entries. It is kept twice, in the state and beside the key; `reconcile` combines the two.
"""

from __future__ import annotations

import hashlib
import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import msgspec

from p2pfl.config.sections import MEMBER, MOST_NOISE, PRV, PrivacyConfig
from p2pfl.errors import UserError

_log = logging.getLogger(__name__)

INSTALL = "pip install '.[privacy]' in a checkout of p2pfl"
LEAST_NOISE = 0.01
CLOSE = 0.998
"""The smallest part of a budget that the noise found must spend."""
COARSE, FINE = 4.0, 1.15
"""Step factors of the noise search: first with RDP alone, then with both bounds."""
Orders = tuple[float, ...]
ORDERS: Orders = (*(1 + step / 10 for step in range(1, 100)), *range(12, 64))
"""The RDP orders that Opacus uses."""
WHOLE_ORDERS: Orders = (*range(2, 32), 48, 64, 128, 256, 512, 1024)
"""Fewer orders, ten times as fast."""
MOST_BY_PRV = 50.0
"""Above this epsilon, which protects nothing, only RDP is used, because PRV's arrays grow with epsilon."""
MOST_KINDS = 8
"""The most kinds of steps for which PRV is computed, because it is slow for each."""
ROUNDING = 1e-13
"""The smallest delta per step for PRV: its Fourier transforms of doubles erred by more than PRV_ERROR below 1e-15."""
PRV_ERROR = 0.01
"""The error allowed for PRV, which Opacus adds to its result."""


class Spend(NamedTuple):
    """A number of steps of one kind. With unit `member`, a round is one step at rate 1."""

    noise: float
    """The noise multiplier: the standard deviation of the noise, in units of the clipping bound."""
    rate: float
    """The probability with which a step samples each row, above 0 and up to 1."""
    steps: int


def require_opacus(file: object = None) -> None:
    """Require Opacus. Raises UserError: it is missing or broken, and `file` needs it."""
    if find_spec("opacus") is None:
        text, allowed = "needs Opacus, which is not installed", f"[privacy] after {INSTALL}; or no [privacy]"
        raise UserError(text, file=file, key="privacy", allowed=allowed)
    root = logging.getLogger()
    before = list(root.handlers)
    try:
        import_module("opacus.accountants.analysis.rdp")
    except ImportError as error:
        text, allowed = f"needs Opacus, which cannot be imported: {error}", f"{INSTALL}; or no [privacy]"
        raise UserError(text, file=file, key="privacy", allowed=allowed) from error
    root.handlers[:] = [old for old in root.handlers if old in before]  # Opacus captures the whole program's log


def epsilon_of(spent: Sequence[Spend], delta: float, accountant: str = PRV) -> float:
    """Return an upper bound on the epsilon of all steps together at this delta; infinite if there is none.

    Raises UserError: Opacus is not installed.
    """
    kinds = merged(spent)
    return _epsilon(kinds, delta, accountant) if kinds else 0.0


@lru_cache(maxsize=1024)
def noise_for(epsilon: float, delta: float, rate: float, steps: int, accountant: str = PRV) -> float:
    """Find a noise multiplier with which `steps` steps stay within epsilon. Raises ValueError: there is none.

    They spend at least CLOSE of epsilon, unless LEAST_NOISE suffices. Raises UserError: Opacus is not installed.
    """

    def bound(noise: float) -> float:
        return epsilon_of((Spend(noise, rate, steps),), delta, accountant)

    def rough_bound(noise: float) -> float:
        return _by_rdp((Spend(noise, rate, steps),), delta, WHOLE_ORDERS)

    start = _least(rough_bound, epsilon, 1.0, COARSE, close=0.9)
    return _least(bound, epsilon, start, FINE, close=CLOSE)


def _least(bound: Callable[[float], float], epsilon: float, start: float, factor: float, *, close: float) -> float:
    """Find the noise at which a decreasing `bound` is at most epsilon, and at least `close` times epsilon.

    The search goes in steps of `factor` from `start`, then bisects between two of them. If the bound jumps, the result
    is the noise beyond the jump. Raises ValueError: the noise is above MOST_NOISE.
    """
    enough = start
    while not bound(enough) <= epsilon:
        if enough == MOST_NOISE:
            raise ValueError(f"with noise {enough:g} epsilon is {bound(enough):.3g}")
        enough = min(enough * factor, MOST_NOISE)
    while enough > LEAST_NOISE and bound(enough / factor) <= epsilon:
        enough /= factor
    little = enough / factor
    while enough > LEAST_NOISE and bound(enough) < close * epsilon and enough / little > 1 + 1e-4:
        middle = little * (enough / little) ** _part(bound(little), bound(enough), (1 + close) / 2 * epsilon)
        if bound(middle) <= epsilon:
            enough = middle
        else:
            little = middle
    return enough


def _part(high: float, low: float, target: float) -> float:
    """Return how far `target` lies from `high` to `low`, in logarithms, as a fraction that is never near 0 or 1."""
    if not 0.0 < low < high < math.inf:
        return 0.5
    return min(max(math.log(high / target) / math.log(high / low), 0.05), 0.95)


def merged(spent: Sequence[Spend]) -> tuple[Spend, ...]:
    """Add up steps of the same kind; return the kinds in a fixed order, on which composition does not depend."""
    steps: dict[tuple[float, float], int] = {}
    for noise, rate, count in spent:
        if count:
            steps[noise, rate] = steps.get((noise, rate), 0) + count
    return tuple(Spend(*kind, count) for kind, count in sorted(steps.items()))


@lru_cache(maxsize=1024)
def _epsilon(kinds: tuple[Spend, ...], delta: float, accountant: str) -> float:
    by_rdp = _by_rdp(kinds, delta)
    steps = sum(kind.steps for kind in kinds)
    is_for_prv = len(kinds) <= MOST_KINDS and by_rdp <= MOST_BY_PRV and delta >= ROUNDING * steps
    if accountant != PRV or not is_for_prv:
        return by_rdp
    try:
        by_prv = _by_prv(kinds, delta)
    except (ArithmeticError, RuntimeError, ValueError, MemoryError) as error:
        _log.info("PRV has no bound for %s (%s): RDP has, %.4g", kinds, error, by_rdp)
        return by_rdp
    if not 0.0 <= by_prv < math.inf:
        _log.info("PRV gives no number for %s: RDP has a bound, %.4g", kinds, by_rdp)
        return by_rdp
    return min(by_prv, by_rdp)


def _by_prv(kinds: tuple[Spend, ...], delta: float) -> float:
    """Compute epsilon as Opacus's `PRVAccountant.get_epsilon`, which computes the same moments three times more."""
    import numpy as np  # noqa: PLC0415 - as Opacus, for who has [privacy] alone
    from opacus.accountants.analysis import prv  # noqa: PLC0415 - as above

    error = delta / 1000
    steps = [kind.steps for kind in kinds]
    mesh = PRV_ERROR / math.sqrt(sum(steps) * math.log(12 / error) / 2)
    alone = [_by_rdp((kind._replace(steps=1),), error / (8 * sum(steps))) for kind in kinds]
    reach = max(_by_rdp(kinds, error / 4), *alone, PRV_ERROR) + 3
    domain = prv.Domain.create_aligned(-reach, reach, mesh)
    with np.errstate(all="ignore"):  # at rate 1 Opacus takes the logarithm of 0, correctly
        losses = [prv.PoissonSubsampledGaussianPRV(rate, noise) for noise, rate, _ in kinds]
        cut = [prv.TruncatedPrivacyRandomVariable(loss, domain.t_min, domain.t_max) for loss in losses]
        discrete = [prv.discretize(loss, domain) for loss in cut]
        whole = prv.compose_heterogeneous(dprvs=discrete, num_self_compositions=steps)
        return float(whole.compute_epsilon(delta, error, PRV_ERROR)[2])


def _by_rdp(kinds: tuple[Spend, ...], delta: float, orders: Orders = ORDERS) -> float:
    require_opacus()
    from opacus.accountants.analysis.rdp import get_privacy_spent  # noqa: PLC0415 - as above

    warnings.filterwarnings("ignore", "Optimal order is", UserWarning)  # the result is still a bound
    try:
        moments = sum(_moments(noise, rate, orders) * steps for noise, rate, steps in kinds)
        epsilon = float(get_privacy_spent(orders=orders, rdp=moments, delta=delta)[0])
    except (ArithmeticError, ValueError):
        return math.inf
    return max(epsilon, 0.0) if math.isfinite(epsilon) else math.inf


@lru_cache(maxsize=256)
def _moments(noise: float, rate: float, orders: Orders) -> Any:
    """Return the Rényi moments of one step, as an array by order."""
    from opacus.accountants.analysis.rdp import compute_rdp  # noqa: PLC0415 - as above

    return compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=orders)


SAME_EPSILON = 1e-6
"""The allowed relative difference between two computations of one epsilon."""


class Promise(NamedTuple):
    """The figures that a person permits. `epsilon` or `noise` is None if it follows from the other."""

    unit: str
    epsilon: float | None
    delta: float
    noise: float | None = None

    @classmethod
    def in_file(cls, privacy: PrivacyConfig) -> Promise:
        return cls(privacy.unit, privacy.epsilon, privacy.delta, privacy.multiplier)

    def weaker_than(self, permitted: Promise) -> str:
        """Return, in words, the figures in which this promise is weaker; empty if there are none."""
        weaker = []
        if permitted.unit == MEMBER != self.unit:
            weaker.append(f"a {self.unit} is protected, where it is a {MEMBER}")
        if _above(self.epsilon, permitted.epsilon):
            weaker.append(f"epsilon {self.epsilon:g} in place of {permitted.epsilon:g}")
        if _above(self.delta, permitted.delta):
            weaker.append(f"delta {self.delta:g} in place of {permitted.delta:g}")
        if permitted.noise is not None and self.noise is None:
            weaker.append(f"no noise in place of {permitted.noise:g}")
        if _above(permitted.noise, self.noise):
            weaker.append(f"noise {self.noise:g} in place of {permitted.noise:g}")
        return ", ".join(weaker)


def _above(figure: float | None, bound: float | None) -> bool:
    return figure is not None and bound is not None and figure > bound * (1 + SAME_EPSILON)


class Signed(NamedTuple):
    """A ledger's account, signed for others: `order` and `name` identify the budget, `steps` are those paid for."""

    order: int
    name: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The ledger of one budget.

    `unit` is what is protected, a row or the whole node; steps for one unit say nothing about the other. `word` is the
    permission that began the budget, unique to this ledger.
    """

    unit: str
    word: str
    spent: tuple[Spend, ...] = ()
    """Payments in order; consecutive ones of the same kind are merged."""
    is_whole: bool = True
    """True if the ledger is complete; False if data on disk were lost, so that more may have been spent."""
    order: int = 1
    """The number of this node's budgets known to have begun, including this one."""
    promise: Promise | None = None
    """The figures that the person permits; None if they are not known, so that nothing is."""
    signed: Signed | None = None
    """An account signed by this node that this ledger does not cover."""

    @property
    def steps(self) -> int:
        return sum(spend.steps for spend in self.spent)

    @property
    def has_paid(self) -> bool:
        """True if rounds are known to have been paid for, by this budget or an earlier one."""
        return bool(self.spent) or self.order > 1

    @property
    def account(self) -> Signed:
        """The account given to others, so that they can return it to the node if it has forgotten."""
        digest = hashlib.blake2b(self.word.encode(), digest_size=8, person=b"p2pfl-budget").digest()
        name = int.from_bytes(digest, "little") >> 11  # a double holds it
        own = Signed(self.order, name, self.steps)
        return own if self.signed is None else max(own, self.signed)

    def plus(self, spend: Spend) -> Ledger:
        *before, last = self.spent or (spend._replace(steps=0),)
        if (last.noise, last.rate) == (spend.noise, spend.rate):
            return replace(self, spent=(*before, spend._replace(steps=last.steps + spend.steps)))
        return replace(self, spent=(*self.spent, spend))

    def covers(self, other: Ledger) -> bool:
        """Return True if this ledger begins with everything that `other` has spent, in the same order."""
        if len(other.spent) > len(self.spent):
            return False
        *before, last = other.spent or (Spend(0.0, 0.0, 0),)
        here = self.spent[len(before)] if other.spent else last
        same = tuple(before) == self.spent[: len(before)] and last[:2] == here[:2]
        return same and last.steps <= here.steps

    def as_incomplete(self, signed: Signed | None = None) -> Ledger:
        """Return the ledger marked as incomplete; an account signed by the node may prove that more was spent."""
        return replace(self, is_whole=False, signed=signed or self.signed)

    def plain(self) -> dict[str, Any]:
        """Return the ledger as JSON values."""
        return {name: value for name, value in msgspec.to_builtins(self).items() if value is not None}

    @classmethod
    def of(cls, plain: Mapping[str, Any] | None) -> Ledger | None:
        """Return the ledger that `plain` converted to values; None for None. Keys of the version before are ignored."""
        return None if plain is None else msgspec.convert(plain, cls)


def reconcile(state: Ledger | None, beside: Ledger | None) -> Ledger | None:
    """Choose between the ledger in the state and the one beside the key: return the one with more entries.

    Every payment is first written beside the key. A crash therefore leaves that ledger equal or ahead; if it is missing
    although there was one, or the two contradict each other, data on disk were lost.
    """
    if state is None:
        return beside
    if beside is None:
        return state.as_incomplete()
    if state.word != beside.word:
        if state.order == beside.order:
            return state.as_incomplete()
        return max(state, beside, key=lambda ledger: ledger.order)
    more, less = (beside, state) if beside.covers(state) else (state, beside)
    return more if more.covers(less) and less.is_whole else more.as_incomplete(less.signed)
