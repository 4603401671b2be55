"""Rounds in which nobody sees a node's model: each gives its change of a local round, and all take a step by their sum.

A part is the change times the node's rows, rotated at random (`compress.rotation`), clipped, and rounded at random to
`bits` bits. These numbers lie side by side in words of 64 bits, each with room for the sum of all members: adding words
modulo 2^64 adds numbers, and a secure sum needs to know nothing of it. In front are the rows of the nodes in the sum,
which divide it, and how many nodes had to clip much; behind each tile of words is a check of it.

All nodes must compute the same bits from the same sum: after it come integers and single operations of IEEE 754. The
common step is that of an outer optimizer (Reddi et al. 2021, arXiv 2003.00295); `mean` is federated averaging.

With the method `variate` a node adds its variate C_i to each gradient, and gives the change without it: -a g_i, where
g_i is the mean gradient on its way, and a the learning rate times the steps. So the mean gradient follows from the sum,
and C_i <- (1 - beta) C_i + beta (mean of g - g_i). If all take part, sum_i n_i C_i is zero, and `beta` = 1 is SCAFFOLD
(arXiv 1910.06378, option II). That sums -a (g_i + C_i): the same then, but what a crash or a node that leaves has left
in the sum of all C_i would pull the model aside for good. This does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.rotation import LARGEST, rotate_rows, rotate_rows_back
from p2pfl.config.sections import HideConfig
from p2pfl.learn.interface import Learner, LocalRound, RoundStart, Vector
from p2pfl.learn.privacy.rounds import AVERAGED, AlikeRounds, WrappedLearner, own_part
from p2pfl.methods import CORRECTION, Method, Normalized, Variate, overrides

Words = NDArray[np.uint64]
TILE = 1 << 16
"""The numbers that are rotated, packed and checked together."""
HEAD = 2
"""The words in front: the rows of the nodes in the sum, and how much they had to clip."""
ODD = np.uint64(0x9E3779B97F4A7C15)
MOST_TIMES = 2
"""A node counts for so many times the mean of all nodes' rows at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How `size` numbers of `bits` bits become words whose sum over `members` has the sums of the numbers."""

    size: int
    bits: int
    members: int

    @property
    def levels(self) -> int:
        """The largest number."""
        return (1 << self.bits) - 1

    @property
    def width(self) -> int:
        """The bits of a lane, in which the sum of all members' numbers fits."""
        return self.bits + math.ceil(math.log2(self.members))

    @property
    def lanes(self) -> int:
        return 64 // self.width

    @property
    def entries(self) -> int:
        """The words of one part: head, packed numbers, and a check for each tile."""
        return HEAD + 1 + sum(self.words(tile) + 1 for tile in self.tiles())

    def words(self, tile: slice) -> int:
        size: int = tile.stop - tile.start
        return -(-size // self.lanes)

    def tiles(self) -> Iterator[slice]:
        for start in range(0, self.size, TILE):
            yield slice(start, min(start + TILE, self.size))

    def pack(self, numbers: Words) -> Words:
        """Return the words (w,) of the numbers (d,) of one tile."""
        count = -(-numbers.size // self.lanes)
        padded = np.zeros(count * self.lanes, np.uint64)
        padded[: numbers.size] = numbers
        words = np.zeros(count, np.uint64)
        for lane in range(self.lanes):
            words |= padded[lane * count : (lane + 1) * count] << np.uint64(lane * self.width)
        return words

    def unpack(self, words: Words, size: int) -> Words:
        """Return the numbers (size,) of one tile's words, or their sums."""
        mask = np.uint64((1 << self.width) - 1)
        lanes = [words >> np.uint64(lane * self.width) & mask for lane in range(self.lanes)]
        return np.concatenate(lanes)[:size]

    def exceeds(self, words: Words, size: int, members: int) -> bool:
        """Return True if no numbers of so many members have this sum: one is too large, or unused bits are set."""
        used, lanes = self.lanes * self.width, self.unpack(words, words.size * self.lanes)
        spare = used < 64 and bool((words >> np.uint64(used)).any())
        return spare or bool(lanes.max() > members * self.levels) or bool(lanes[size:].any())


def check_of(words: Words) -> np.uint64:
    """Return a word that adds up as the words do, and that others than theirs have with a chance of 2^-63 only."""
    factors = (np.arange(words.size, dtype=np.uint64) * np.uint64(2) + np.uint64(1)) * ODD
    return np.uint64((words * factors).sum(dtype=np.uint64))


OUTER_RATE = {"adam": 0.05, "mean": 1.0, "momentum": 1.0}
BETA1, BETA2, FLOOR = 0.9, 0.99, 1e-3
"""FedAdam's, as in the paper (momentum's is BETA1, too)."""
FIRST, SECOND, SHARE = "first", "second", "share"
VECTORS = {"adam": (FIRST, SECOND), "momentum": (FIRST,), "mean": ()}
"""The names of an outer optimizer's vectors."""
CLIPPED = (0.002, 0.05, 0.5)
"""A node says how many of these shares of its numbers it had to clip more than."""
WIDER = ((2.0, 16.0), (1.0, 3.0), (0.25, 1.5))
"""If nodes say more than that on average, the range is widened by this factor."""
NARROWER = 0.95
LEAST_SHARE, MOST_SHARE = 2.0**-20, 2.0**20
LEAST_RMS = 2.0**-10
"""The root mean square of a model's numbers is taken for at least this: a model may begin with zeros."""
FINE = 2.0**16
MOST_NORM = 1e14
"""A model of a larger norm is not taken; the engine takes none of ten times that."""


class AveragedRounds(AlikeRounds):
    """One node's parts and the common step. `part` is this node's part of the present round's sum, (entries,) words.

    `common` has the arrays that all nodes keep alike besides the model: the outer optimizer's, and `share`, by which
    changes are clipped: the range of a number in root mean squares of the common model's. Vectors of the model's size
    are what a node's memory goes to, so all is done by tile, and `next_model` writes into the optimizer's.
    """

    prefix = AVERAGED
    dtype = "<f4"
    counts_rows = True
    delta = 0.0
    _drift = 0.0
    """How far the latest round would have gone along a gradient of 1."""

    def __init__(
        self, hides: HideConfig, *, size: int, members: int, seed: int, node: int, method: Method | None = None
    ) -> None:
        self.hides, self.size, self.members, self.method = hides, size, members, method or Method()
        if isinstance(self.method, Variate):
            self.variate = np.zeros(size, np.float32)
        self.packing = Packing(size=size, bits=hides.bits, members=members)
        self.entries = self.packing.entries
        self.rate = hides.outer_rate or OUTER_RATE[hides.outer]
        self.sizes = dict.fromkeys(VECTORS[hides.outer], size) | {SHARE: 1}
        self.common: dict[str, NDArray[np.float32]] = {SHARE: np.ones(1, np.float32)}
        self._seed, self._node = seed, node

    @property
    def given(self) -> dict[str, Vector]:
        """What the method's steps of the next round need, by name."""
        return {} if self.variate is None else {CORRECTION: self.variate}

    def fits(self, rows: int) -> bool:
        """Return True if a sum over so many rows is surely below 2^63."""
        return rows * MOST_TIMES * self.members < 2**62

    def take_rows(self, rows: int, members: int) -> None:
        """Note the rows of all: where groups are missing, as many for each as the others have on average."""
        self.rows = rows * self.members // members

    @property
    def mean_rows(self) -> int:
        if self.rows is None:
            raise ValueError("the rows of all nodes are not known")
        return max(1, round(self.rows / self.members))

    def range_of(self, model: Vector) -> float:
        """Return the largest number that is not clipped, the same at all nodes from the same model (d,)."""
        most, fine = self._largest(model), 0
        for part in self.packing.tiles() if most > 0.0 else ():  # in integers, whose sum has no order
            fine += int((np.rint(model[part].astype(np.float64) / most * FINE).astype(np.int64) ** 2).sum())
        rms = most * math.sqrt(fine / max(1, self.size)) / FINE
        return float(self.common[SHARE][0]) * max(LEAST_RMS, rms)

    def give_change(
        self, start: Vector, ended: Vector, samples: int, round_index: int, *, steps: int = 1, rate: float = 1.0
    ) -> None:
        """Make this node's part from the change (d,) of so many steps at a learning rate, on so many rows; one that has
        diverged counts as zero.
        """
        packing, most, method = self.packing, self.range_of(start), self.method
        if isinstance(method, Variate):
            self._drift = rate * method.reach(steps)
        weight = min(samples, MOST_TIMES * self.mean_rows)
        # Of larger ones the rotation would overflow.
        is_sound = all(bool((np.abs(ended[tile]) < LARGEST).all()) for tile in packing.tiles())
        part = np.zeros(self.entries, np.uint64)
        draws = np.random.default_rng((self._seed, self._node, round_index))
        at, clipped = HEAD, 0
        for number, tile in enumerate(packing.tiles()):
            change = np.zeros((1, tile.stop - tile.start), np.float32)
            if is_sound:
                np.subtract(ended[tile], start[tile], out=change[0])
                if self.variate is not None:
                    change[0] += self.variate[tile] * np.float32(self._drift)
                elif isinstance(method, Normalized):
                    change *= np.float32(method.steps / steps)
            change *= np.float32(weight / self.mean_rows)
            rotate_rows(change, self._turn(number, round_index))
            clipped += int((np.abs(change) > most).sum())
            scaled = (np.clip(change[0].astype(np.float64) / most, -1.0, 1.0) + 1.0) * (0.5 * packing.levels)
            numbers = np.floor(scaled + draws.random(scaled.size)).astype(np.uint64)
            words = packing.pack(np.minimum(numbers, np.uint64(packing.levels)))
            part[at : at + words.size] = words
            part[at + words.size] = check_of(words)
            at += words.size + 1
        part[0], part[1] = weight, sum(clipped > share * self.size for share in CLIPPED)
        self.clipped = clipped / self.size if is_sound else 1.0
        part[at] = check_of(part[:HEAD])
        self.part = part.astype("<u8", copy=False)

    def _turn(self, tile: int, round_index: int) -> NDArray[np.uint64]:
        """Return the seed of a tile's rotation, which anybody may know."""
        return np.array([round_index << 24 | tile], np.uint64)

    def _words(self, total: Words) -> Iterator[tuple[slice, Words, np.uint64]]:
        """Yield for each tile its place in the model, its words and their check."""
        at = HEAD
        for tile in self.packing.tiles():
            count = self.packing.words(tile)
            yield tile, total[at : at + count], total[at + count]
            at += count + 1

    def is_possible(self, total: Words, members: int) -> bool:
        """Return False if no right parts of so many members have this sum (entries,) modulo 2^64."""
        total = total.astype(np.uint64, copy=False)
        most = members * MOST_TIMES * self.mean_rows
        head = total.size == self.entries and 0 < int(total[0]) <= most and int(total[1]) <= members * len(CLIPPED)
        return (
            head
            and check_of(total[:HEAD]) == total[-1]
            and all(
                check_of(words) == check and not self.packing.exceeds(words, tile.stop - tile.start, members)
                for tile, words, check in self._words(total)
            )
        )

    def next_model(
        self, start: Vector, total: Words, members: int, round_index: int, *, in_place: bool = False
    ) -> Vector:
        """Return the model (d,) after the sum (entries,) of the parts of so many members, and write to `common`.

        With a variate: `part` is this node's among them, or None, and `variate` is written to, too. `in_place` writes
        to `start`, with the bits of adding the difference to it. If that model would be too large, another one is
        returned, which is infinite, and nothing is written.
        """
        total, most = total.astype(np.uint64, copy=False), self.range_of(start)
        common, outer, method = dict(self.common), VECTORS[self.hides.outer], self.method
        for name in outer:
            if name not in common:
                common[name] = np.zeros(self.size, np.float32)
        if not self._is_surely_small(start, total, members, most, common):
            for tile, change in self._mean_changes(total, members, most, round_index):
                tried = {name: common[name][tile].copy() for name in outer}
                after = start[tile] + self._step(change, tried, slice(None))
                if not float(np.abs(after).max()) * math.sqrt(self.size) < MOST_NORM:
                    return np.full_like(start, np.inf)  # before anything is written, as nothing can undo it
        part, variate = self.part if self._drift else None, self.variate
        # From the node's part as it was rounded: so the variates of all add up to nothing.
        own = None if part is None else self._mean_changes(part.view(np.uint64), 1, most, round_index)
        ended = start if in_place else np.empty_like(start)
        for tile, change in self._mean_changes(total, members, most, round_index):
            if own is not None and variate is not None and isinstance(method, Variate):
                _, mine = next(own)
                variate[tile] *= np.float32(1.0 - method.beta)
                variate[tile] += (mine - change) * np.float32(method.beta / self._drift)
            after = start[tile] + self._step(change, common, tile)
            ended[tile] = start[tile] + (after - start[tile]) if in_place else after
        clipped = int(total[1]) / members
        factor = next((factor for least, factor in WIDER if clipped > least), 1.0 if clipped else NARROWER)
        common[SHARE] = np.clip(common[SHARE] * np.float32(factor), LEAST_SHARE, MOST_SHARE)
        self.common = common
        return ended

    def _is_surely_small(
        self, start: Vector, total: Words, members: int, most: float, common: dict[str, NDArray[np.float32]]
    ) -> bool:
        """Return True if a bound says that no model after such a sum is too large: then none must be tried."""
        packing = self.packing
        # A rotation keeps a tile's norm, and its numbers are at most what a lane holds.
        change = math.sqrt(TILE) * ((2 << packing.width) / packing.levels + members) * most * self.mean_rows
        first = self._largest(common[FIRST]) if FIRST in common else 0.0
        step = (first + change / int(total[0])) / (FLOOR if self.hides.outer == "adam" else 1.0) * self.rate
        return (self._largest(start) + 2.0 * step) * math.sqrt(self.size) < MOST_NORM

    def _largest(self, vector: Vector) -> float:
        return float(np.max([np.abs(vector[tile]).max() for tile in self.packing.tiles()], initial=0.0))

    def _mean_changes(
        self, total: Words, members: int, most: float, round_index: int
    ) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """Yield for each tile its place in the model and the mean change there."""
        packing, share = self.packing, np.float32(self.mean_rows / int(total[0]))
        for number, (tile, words, _) in enumerate(self._words(total)):
            sums = packing.unpack(words, tile.stop - tile.start).astype(np.float64)
            change = ((sums * (2.0 / packing.levels) - members) * most).astype(np.float32)[None]
            rotate_rows_back(change, self._turn(number, round_index))
            yield tile, change[0] * share

    def _step(self, change: NDArray[np.float32], common: dict[str, NDArray[np.float32]], tile: slice) -> Any:
        """Return the outer step of a tile by the mean change, and note it in `common`."""
        if self.hides.outer == "mean":
            return change * self.rate
        first = common[FIRST][tile]
        first *= BETA1
        if self.hides.outer == "momentum":
            first += change
            return first * self.rate
        first += change * (1.0 - BETA1)
        second = common[SECOND][tile]
        second *= BETA2
        second += change * change * (1.0 - BETA2)
        return first / (np.sqrt(second) + FLOOR) * self.rate


class AveragedLearner(WrappedLearner):
    """A learner whose rounds end with a part of a sum (`averaged`) in place of a model."""

    def __init__(self, learner: Learner, hides: HideConfig, **how: Any) -> None:
        """`how` as for `AveragedRounds`."""
        super().__init__(learner)
        self.averaged = AveragedRounds(hides, size=learner.size, **how)

    def train(self, start: RoundStart, round_index: int) -> LocalRound:
        if overrides(self.averaged.method, "gradient"):
            start = replace(start, method=self.averaged.method, given=self.averaged.given)
        local = self.learner.train(start, round_index)
        about = (start.model, local.vector, local.samples, round_index)
        self.averaged.give_change(*about, steps=local.steps, rate=local.learning_rate)
        return replace(local, vector=start.model)

    def local_state(self) -> dict[str, NDArray[np.generic]]:
        return self.learner.local_state() | self.averaged.kept()

    def load_local_state(self, state: dict[str, NDArray[np.generic]]) -> None:
        self.learner.load_local_state(own_part(None, self.averaged.load_kept(state)))
