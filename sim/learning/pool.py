"""The data of many nodes in one pair of tensors: a node's rows are a range of them.

Sets that are the same tensors, or that the task made equal for every node, are held once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from p2pfl.learn.samples import Samples, TensorSamples


@dataclass(frozen=True, slots=True)
class Pool:
    """`first` and `counts` (nodes,) int64 say which rows of `rows` are whose; nodes may share them."""

    rows: TensorSamples
    first: NDArray[np.int64]
    counts: NDArray[np.int64]

    def of(self, node: int) -> TensorSamples:
        """Views, not copies."""
        part = slice(int(self.first[node]), int(self.first[node] + self.counts[node]))
        return TensorSamples(self.rows.inputs[part], self.rows.targets[part])


def pooled(sets: Sequence[Samples]) -> Pool | str:
    """One pool of all sets, or why there is none."""
    tensors = [samples for samples in sets if isinstance(samples, TensorSamples)]
    if len(tensors) < len(sets):
        return "a node reads its data row by row"
    if len({(s.inputs.shape[1:], s.inputs.dtype, s.targets.shape[1:], s.targets.dtype) for s in tensors}) > 1:
        return "the nodes' data differ in shape or type"
    distinct: dict[tuple[object, ...], TensorSamples] = {}
    for samples in tensors:
        distinct.setdefault(_place(samples), samples)
    starts = dict(zip(distinct, np.cumsum([0, *map(len, distinct.values())]).tolist(), strict=False))
    return Pool(
        rows=_joined(list(distinct.values())),
        first=np.array([starts[_place(samples)] for samples in tensors], dtype=np.int64),
        counts=np.array([len(samples) for samples in tensors], dtype=np.int64),
    )


class Distinct:
    """Test sets, each kept once however often it is added."""

    def __init__(self) -> None:
        self.sets: list[Samples] = []
        self._known: dict[tuple[object, ...], int] = {}

    def add(self, samples: Samples | None) -> int:
        """Its number; -1 for none."""
        if samples is None:
            return -1
        place = _place(samples)
        if place in self._known:
            return self._known[place]
        if self.sets and _same(self.sets[-1], samples):  # the common one made anew, or there are as many as nodes
            return len(self.sets) - 1
        self._known[place] = len(self.sets)
        self.sets.append(samples)
        return self._known[place]


def _same(one: Samples, other: Samples) -> bool:
    if not (isinstance(one, TensorSamples) and isinstance(other, TensorSamples)):
        return False
    pairs = ((one.inputs, other.inputs), (one.targets, other.targets))
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def _place(samples: Samples) -> tuple[object, ...]:
    """Equal for two sets in the same memory, as long as both are alive."""
    if not isinstance(samples, TensorSamples):
        return (id(samples),)
    both = (samples.inputs, samples.targets)
    return tuple(what for t in both for what in (t.data_ptr(), t.shape, t.stride(), t.dtype))


def _joined(sets: list[TensorSamples]) -> TensorSamples:
    if len(sets) == 1:
        return sets[0]
    return TensorSamples(torch.cat([s.inputs for s in sets]), torch.cat([s.targets for s in sets]))
