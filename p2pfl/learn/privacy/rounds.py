"""Rounds with shared noise: each node gives one vector of whole numbers, and all take the same step by their sum.

A node's part is its rows' clipped gradients (unit `record`: DP-SGD over the rows of all nodes, Abadi et al., arXiv
1607.00133) or its clipped change of a local round (`member`: DP-FedAvg, McMahan et al., arXiv 1710.06963), plus its
share of the noise. Only the sum of all parts becomes known, so the noise is that of one trusted center. Shares are
discrete Gaussians (`gaussian`); the sum of such is one too but for terms of exp(-pi^2 UNIT^2) (Kairouz, Liu and
Steinke, arXiv 2102.06387), so accountants for Gaussians apply.

All nodes must compute the same bits from the same sum: every operation here is one of IEEE 754 on doubles, each
rounded by itself, and none is a function of a library for mathematics.

Without shared noise, all rows of a node are protected by DP-FedAvg in which each node adds its own noise, as no other
party is trusted: the noise in a mean over n nodes has variance of order 1/n, where a trusted server achieves 1/n^2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.config.sections import MEMBER, RECORD
from p2pfl.errors import UserError
from p2pfl.learn.interface import Learner, LocalRound, RoundStart, Score, Vector, plan_by
from p2pfl.learn.privacy.noise import FACTOR, HALF, LEVELS, Draws, Grid, Reals
from p2pfl.learn.privacy.plan import Plan, Protection

PREFIX, AVERAGED = "shared:", "averaged:"
"""The prefixes for the names of the arrays that all nodes keep alike, stored with what a learner keeps for itself: with
shared noise, and without noise (`learn.averaging`).
"""
MOST_SUM = 2**62
MOST_NOISE_STEPS = HALF * sum(FACTOR**level for level in range(LEVELS))
"""No noise of one node has more steps."""
DIGITS = 9
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
FIRST, SECOND, POWERS, VARIATE = "first", "second", "powers", "variate"

Words = NDArray[np.uint64]


class AlikeRounds:
    """The state that all nodes keep alike besides the model. `common` has its arrays; only a step may write to them.

    A subclass says the `prefix` of their names where they are stored with what a learner keeps for itself, their dtype,
    and each one's name with its size; and it has `fits`, `is_possible` and `next_model`.
    """

    prefix: str
    dtype: str
    rows: int | None = None
    """The rows of all nodes together; None until their sum is known, or where none is needed."""
    part: NDArray[Any] | None = None
    """This node's part of the present round's sum, (entries,)."""
    common: dict[str, NDArray[Any]]
    clipped: float = 0.0
    """The share of this node's numbers that were clipped in the latest round, where that is counted."""
    entries: int
    counts_rows: bool
    """True if a step is divided by the rows of all nodes, which must be known first."""
    delta: float
    """The chance that a budget does not hold, 0 without one."""

    sizes: dict[str, int]
    """The size of each array of `common`, by name."""
    variate: NDArray[np.float32] | None = None
    """This node's own control variate (d,), which nobody else sees, where the method has one."""

    def take_rows(self, rows: int, members: int) -> None:  # noqa: ARG002 - hidden models need them
        """Note the sum of the rows of so many members."""
        self.rows = rows

    def kept(self) -> dict[str, NDArray[np.generic]]:
        """Return what must survive a restart, by name."""
        rows = {} if self.rows is None else {"rows": np.array([self.rows], np.float64)}
        own = {} if self.variate is None else {VARIATE: self.variate}
        return {self.prefix + name: array for name, array in (self.common | rows | own).items()}

    def load_kept(self, state: dict[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        """Restore what `kept` returned; return the rest of the state."""
        mine = {name.removeprefix(self.prefix): array for name, array in state.items() if name.startswith(self.prefix)}
        self.common = {name: array.astype(self.dtype, copy=False) for name, array in mine.items() if name in self.sizes}
        if self.variate is not None and VARIATE in mine:
            self.variate = mine[VARIATE].astype(np.float32, copy=False)
        if "rows" in mine:
            self.rows = round(float(mine["rows"].sum()))
        return {name: array for name, array in state.items() if not name.startswith(self.prefix)}

    @property
    def packed_bytes(self) -> int:
        """The largest size of `packed` beside the model."""
        return np.dtype(self.dtype).itemsize * sum(self.sizes.values()) + 64

    def packed(self, model: Vector, rounds: int) -> list[memoryview]:
        """Return the state after so many rounds, the same bytes at all nodes, in pieces: the memory of the arrays."""
        arrays = [self.common.get(name, np.zeros(0)) for name in self.sizes]
        head = np.array([rounds, self.rows or 0, *(array.size for array in arrays)], "<i8")
        whole = [head, model.astype("<f4", copy=False), *(array.astype(self.dtype, copy=False) for array in arrays)]
        return [array.view(np.uint8).data for array in whole if array.size]

    def unpack(self, state: bytes | bytearray | memoryview, size: int) -> tuple[int, Vector, Callable[[], None]]:
        """Return the rounds and the model (size,) of a packed state, and what adopts the rest of it.

        Raises ValueError: it is no state of such a model.
        """
        most, item = self.sizes, np.dtype(self.dtype).itemsize
        head = np.frombuffer(state, "<i8", count=2 + len(most)).tolist()
        rounds, rows, *sizes = head
        known = all(length in {0, full} for length, full in zip(sizes, most.values(), strict=True))
        if not known or rounds < 0 or rows < 0 or len(state) != 8 * len(head) + 4 * size + item * sum(sizes):
            raise ValueError("no state of this model")
        model = np.frombuffer(state, "<f4", count=size, offset=8 * len(head)).astype(np.float32)
        arrays, offset = {}, 8 * len(head) + 4 * size
        for name, count in zip(most, sizes, strict=True):
            if count:
                arrays[name] = np.frombuffer(state, self.dtype, count=count, offset=offset).astype(self.dtype)
            offset += item * count

        def adopt() -> None:
            self.common, self.rows, self.part = arrays, rows or None, None

        return rounds, model, adopt


class SharedRounds(AlikeRounds):
    """One node's rounds with shared noise. `places` has, for each trained tensor, its part of the model's vector.

    `part` is this node's part of the present round's sum, (n,) in steps of the grid. `common` has the optimizer's
    arrays.
    """

    prefix = PREFIX
    dtype = "<f8"

    def __init__(self, plan: Plan, samples: int, places: Sequence[slice]) -> None:
        """Prepare the rounds. Raises UserError: a sum of such parts might not fit."""
        self.plan = plan
        self.counts_rows, self.delta = plan.unit == RECORD, plan.delta
        self.places = tuple(places)
        self.entries = sum(place.stop - place.start for place in places)
        self.sizes = {FIRST: self.entries, SECOND: self.entries, POWERS: 2}
        self.common: dict[str, NDArray[np.float64]] = {}
        if not self.fits(samples):
            text = f"{samples:,} rows times the clip are {self._most_steps(samples, 1):.3g} steps of the noise's grid"
            raise UserError(f"{text}, above 2^62", key="privacy.noise", allowed="more noise: a smaller epsilon")

    def fits(self, rows: int) -> bool:
        """Return True if a sum over so many rows is surely below 2^63 steps."""
        return self._most_steps(rows, 1) < MOST_SUM

    def _most_steps(self, rows: int, members: int) -> float:
        """Return a bound on each number of a sum of right parts, in steps of the grid."""
        vectors = rows if self.counts_rows else members
        return float(vectors * self.plan.clip / self.step + members * MOST_NOISE_STEPS)

    @property
    def step(self) -> float:
        """The distance between the grid's points, the same at all nodes."""
        return Grid.step_of(noise=self.plan.noise * self.plan.share, clip=self.plan.clip)

    def give_change(self, start: Vector, ended: Vector, draws: Draws) -> None:
        """Make this node's part from a round's change (d,), clipped; one that is not finite counts as zero."""
        plan = self.plan
        grid = Grid.of(noise=plan.noise * plan.share, clip=plan.clip, size=self.entries, rows=1, in_sequence=1)
        change = self._trained(ended.astype(np.float64) - start)
        self.part = grid.hidden_steps(_clipped(change, grid.length), draws)

    def is_possible(self, total: Words, members: int) -> bool:
        """Return False if no right parts of so many members have this sum (n,) modulo 2^64."""
        steps = total.view(np.int64)
        bound = self._most_steps(self.rows or 0, members)
        return total.size == self.entries and bool(-bound <= steps.min()) and bool(steps.max() <= bound)

    def next_model(
        self,
        start: Vector,
        total: Words,
        members: int,
        round_index: int,
        *,
        in_place: bool = False,  # noqa: ARG002 - hidden models need it
    ) -> Vector:
        """Return the model (d,) after the sum (n,) modulo 2^64 of the parts of so many members, and replace `common`.

        Raises ValueError: the rows of all nodes are not known.
        """
        summed = total.view(np.int64).astype(np.float64) * self.step
        model = self._trained(start).astype(np.float64)
        if self.counts_rows:
            if self.rows is None or self.plan.shared_rate is None:
                raise ValueError("a step is divided by the rows of all nodes, which are not known")
            # Divided by the expected number of rows, as in DP-SGD: the actual one must stay secret.
            after = self._descended(model, summed / (self.plan.shared_rate * self.rows), round_index)
        else:
            after = model + summed / members
        ended, at = start.copy(), 0
        for place in self.places:
            size = place.stop - place.start
            ended[place] = after[at : at + size]
            at += size
        return ended

    def _trained(self, vector: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([vector[place] for place in self.places])

    def _descended(self, model: Reals, gradient: Reals, round_index: int) -> Reals:
        """Take a step of the optimizer: torch's SGD, Adam or AdamW, on doubles."""
        training, common = self.plan.training, dict(self.common)
        self.common = common
        # A cosine schedule is a function of a library for mathematics, whose last bit may differ.
        rate = float(f"{training.rate(round_index, 0.0):.{DIGITS}g}")
        decay = training.weight_decay
        if decay and training.optimizer != "adamw":
            gradient = gradient + model * decay
        if training.optimizer == "sgd" and training.momentum:
            common[FIRST] = gradient = common.get(FIRST, np.zeros_like(model)) * training.momentum + gradient
        if training.optimizer == "sgd":
            moved: Reals = model - gradient * rate
            return moved
        if training.optimizer == "adamw":
            model = model * (1.0 - rate * decay)
        zero = np.zeros_like(model)
        first = common.get(FIRST, zero) * BETA1 + gradient * (1.0 - BETA1)
        second = common.get(SECOND, zero) * BETA2 + gradient * gradient * (1.0 - BETA2)
        powers = common.get(POWERS, np.ones(2)) * np.array([BETA1, BETA2])
        common.update({FIRST: first, SECOND: second, POWERS: powers})
        size = np.sqrt(second) / np.sqrt(1.0 - powers[1]) + EPSILON
        adapted: Reals = model - first / size * (rate / (1.0 - powers[0]))
        return adapted


def own_part(shared: SharedRounds | None, state: dict[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
    """Return the part of a learner's state that is its own, and let `shared` take the rest.

    Raises UserError: the state was learned with shared noise, and is to go on without.
    """
    if shared is not None:
        return shared.load_kept(state)
    for prefix, key, value in ((PREFIX, "noise", "shared"), (AVERAGED, "hide", "models")):
        if any(name.startswith(prefix) for name in state):
            text = f"this state was learned with {key} = {value!r}"
            allowed = f'{key} = "{value}"; or another folder, to begin anew'
            raise UserError(text, key=f"privacy.{key}", allowed=allowed)
    return state


def shared_by(learner: Learner) -> SharedRounds | None:
    """Return a learner's rounds with shared noise, or None if it has no such rounds."""
    if plan_by(learner) is None:
        return None
    own = vars(learner)  # not what a wrapped learner of the user's may call so
    shared: SharedRounds | None = own.get("shared") or getattr(own.get("private"), "shared", None)
    return shared


def hide_round(start: Vector, ended: Vector, plan: Plan, draws: Draws) -> Vector:
    """Return the model (d,) after a round: its change is clipped, or zero if it is not finite, and gets noise."""
    grid = Grid.of(noise=plan.noise, clip=plan.clip, size=start.size, rows=1, in_sequence=1)
    change = _clipped(ended.astype(np.float64) - start, grid.length)
    return (start + grid.hidden(change, draws)).astype(ended.dtype)


def _clipped(change: Reals, most: float) -> Reals:
    """Return a change (d,) of norm `most` at most; zeros for one that is not finite."""
    length = float(np.linalg.norm(change))
    if not np.isfinite(length):
        return np.zeros(change.shape)
    return change * (most / length) if length > most else change


class WrappedLearner:
    """A learner that does what another does; a subclass changes its rounds."""

    size: int
    personal: int
    shape_digest: bytes
    samples: int

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def __getattr__(self, name: str) -> Any:
        """Return the learner's attribute, including optional ones such as measures, device and data files."""
        if name == "learner":
            raise AttributeError(name)
        return getattr(self.learner, name)

    def initial(self) -> Vector:
        return self.learner.initial()

    def evaluate(self, vector: Vector, part: str) -> Score | None:
        return self.learner.evaluate(vector, part)

    def state_dict(self, vector: Vector) -> dict[str, NDArray[np.generic]]:
        return self.learner.state_dict(vector)


class HiddenRounds(WrappedLearner):
    """A learner without torch whose rounds are hidden by noise."""

    def __init__(self, learner: Learner, protection: Protection, node: int) -> None:
        """Wrap a learner. Raises UserError: single rows are to be protected, whose gradients it does not expose; or the
        model has integer tensors that may count rows, which exported files would contain unchanged.

        The batch counters in torch's normalization layers are accepted: they do not depend on rows.
        """
        whole = [name for name, array in learner.local_state().items() if array.dtype.kind in "iu"]
        if counts := [name for name in whole if not name.endswith("num_batches_tracked")]:
            text = "integer tensors get no noise, and an exported model would contain them"
            raise UserError(text, key="task", value=", ".join(counts), allowed="a model without such tensors")
        super().__init__(learner)
        self.node = node
        self.protection = protection
        self.plan = plan = protection.plan_for(learner.samples)
        if plan.unit != MEMBER:
            text, allowed = (
                "the task has its own learner, which does not expose single rows",
                "a task with a torch model",
            )
            raise UserError(text, key="privacy.unit", value=plan.unit, allowed=f"{MEMBER}, or {allowed}")
        is_shared = plan.shared_rate is not None
        self.shared = SharedRounds(plan, learner.samples, [slice(0, learner.size)]) if is_shared else None

    def train(self, start: RoundStart, round_index: int) -> LocalRound:
        local = self.learner.train(start, round_index)
        draws = self.protection.chance.of_round(self.node, round_index)
        if self.shared is None:
            vector = hide_round(start.model, local.vector, self.plan, draws)
        else:
            self.shared.give_change(start.model, local.vector, draws)
            vector = start.model
        return replace(local, vector=vector, loss=self.protection.public_loss(local.loss))

    def evaluate(self, vector: Vector, part: str) -> Score | None:
        return self.learner.evaluate(vector, part) if self.protection.may_report(part) else None

    def local_state(self) -> dict[str, NDArray[np.generic]]:
        return self.learner.local_state() | ({} if self.shared is None else self.shared.kept())

    def load_local_state(self, state: dict[str, NDArray[np.generic]]) -> None:
        self.learner.load_local_state(own_part(self.shared, state))
