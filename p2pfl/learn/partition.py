"""Partitions of a common data set among nodes, as indices, for demos and simulations: docs/how-to/simulate.md has each.

flwr-datasets' pathological partition draws k classes for each node, so that a class may be on no node; here every class
is on at least one node.

Every node gets at least one row, no row is assigned twice, none is left over, and the same seed gives the same parts.
Only `draw` differs: nodes may share rows and some rows may belong to no node, so that a simulation can have more nodes
than the set has rows. With `draw`, a node's rows do not depend on the number of nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from p2pfl.chance import generator
from p2pfl.errors import UserError

Rows = NDArray[np.int64]
Labels = NDArray[Any]

ALIASES = {"shard": "shards", "pathological": "classes", "size": "sizes", "natural-id": "natural"}
"""The names that flwr-datasets uses for the same partitions."""
ALLOWED = "iid, dirichlet:ALPHA or ALPHA,LEAST, shards:K, classes:K, sizes:A,B,... (one per node), natural, draw:K"
_DIRICHLET_DRAWS = 10


@dataclass(frozen=True, slots=True)
class Partition:
    """A parsed spec. `numbers` are the ones after its colon."""

    spec: str
    name: str
    numbers: tuple[float, ...] = ()

    def split(self, labels: Labels, nodes: int, *, seed: int, ids: ArrayLike | None = None) -> list[Rows]:
        """Return each node's row numbers in ascending order, for `labels` (n,). `ids` (n,) are the groups for
        `natural`.

        Raises UserError: the set cannot be split in this way.
        """
        if labels.ndim != 1:
            raise UserError("labels must have one dimension", key="labels", value=labels.shape)
        if self.name == "draw":
            return [self._draw(len(labels), node, seed) for node in range(nodes)]
        if len(labels) < nodes:
            raise self.refusal(f"{len(labels)} samples cannot be split among {nodes} nodes")
        if self.name == "natural" and ids is None:
            raise self.refusal("this set has no natural ids", "another partition")
        by = labels if ids is None or self.name != "natural" else np.asarray(ids)
        if self.name in {"dirichlet", "classes"} and not np.issubdtype(by.dtype, np.integer):
            raise self.refusal("this needs integer class labels", "iid, shards:K or sizes:A,B,...")
        parts = _SPLITTERS[self.name](self, by, nodes, generator(seed, "partition"))
        if any(len(part) == 0 for part in parts):
            raise self.refusal(f"a node would be left without samples (nodes: {nodes}, samples: {len(labels)})")
        return [np.sort(part) for part in parts]

    def part(self, labels: Labels, node: int, nodes: int, *, seed: int) -> Rows:
        """Return one node's rows. The latest splits are cached, because a simulation calls this for every node of the
        same set.
        """
        if self.name == "draw":
            return self._draw(len(labels), node, seed)
        if labels.dtype.kind not in "iuf":
            return self.split(labels, nodes, seed=seed)[node]
        return _remembered(self, labels.tobytes(), labels.dtype.str, nodes, seed)[node].copy()

    def _draw(self, samples: int, node: int, seed: int) -> Rows:
        k = int(self.numbers[0])
        if k > samples:
            raise self.refusal(f"{k} rows cannot be drawn from {samples}", f"draw:1 to draw:{samples}")
        return np.sort(generator(seed, "partition", node).choice(samples, k, replace=False))

    def refusal(self, message: str, allowed: str | None = None) -> UserError:
        return UserError(message, key="task.partition", value=self.spec, allowed=allowed)


def _iid(_: Partition, labels: Labels, nodes: int, rng: np.random.Generator) -> list[Rows]:
    return np.array_split(rng.permutation(len(labels)), nodes)


def _sizes(split: Partition, labels: Labels, nodes: int, rng: np.random.Generator) -> list[Rows]:
    if len(split.numbers) != nodes:
        raise split.refusal(f"{len(split.numbers)} sizes for {nodes} nodes", "one size per node")
    ends = np.cumsum(split.numbers) / sum(split.numbers) * len(labels)
    return np.split(rng.permutation(len(labels)), np.rint(ends[:-1]).astype(np.int64))


def _dirichlet(split: Partition, labels: Labels, nodes: int, rng: np.random.Generator) -> list[Rows]:
    """Redraw while a node has too few rows; after several draws, move rows to it from the largest part."""
    least = int(split.numbers[1]) if len(split.numbers) > 1 else 1
    if least * nodes > len(labels):
        raise split.refusal(f"{nodes} nodes cannot have {least} of {len(labels)} samples each")
    classes = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    parts: list[Rows] = []
    for _ in range(_DIRICHLET_DRAWS):
        parts = _draw_shares(classes, nodes, split.numbers[0], rng)
        if all(len(part) >= least for part in parts):
            return parts
    return _fill_up(parts, least)


def _shards(split: Partition, labels: Labels, nodes: int, rng: np.random.Generator) -> list[Rows]:
    shards = nodes * int(split.numbers[0])
    if shards > len(labels):
        raise split.refusal(f"{shards} shards of {len(labels)} samples would leave some empty")
    shuffled = rng.permutation(len(labels))
    ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
    pieces = np.array_split(ordered, shards)
    hands = rng.permutation(shards).reshape(nodes, -1)
    return [np.concatenate([pieces[shard] for shard in hand]) for hand in hands]


def _classes(split: Partition, labels: Labels, nodes: int, rng: np.random.Generator) -> list[Rows]:
    values = rng.permutation(np.unique(labels))
    k = int(split.numbers[0])
    if k > len(values) or k * nodes < len(values):
        least = -(-len(values) // nodes)
        raise split.refusal(f"{nodes} nodes, {len(values)} classes", f"classes:{least} to classes:{len(values)}")
    parts: list[list[Rows]] = [[] for _ in range(nodes)]
    for place, value in enumerate(values):
        holders = [slot // k for slot in range(place, nodes * k, len(values))]
        rows = rng.permutation(np.flatnonzero(labels == value))
        if len(rows) < len(holders):
            raise split.refusal(f"class {value} has {len(rows)} samples for {len(holders)} nodes")
        for holder, share in zip(holders, np.array_split(rows, len(holders)), strict=True):
            parts[holder].append(share)
    return [np.concatenate(part) for part in parts]


def _natural(split: Partition, ids: Labels, nodes: int, rng: np.random.Generator) -> list[Rows]:
    """Give each node one group, in the groups' order; if there are more groups than nodes, the others are dealt out at
    random.
    """
    groups = np.unique(ids)
    if len(groups) < nodes:
        raise split.refusal(f"{len(groups)} groups for {nodes} nodes", "at least one group per node")
    dealt = groups if len(groups) == nodes else rng.permutation(groups)
    return [np.flatnonzero(np.isin(ids, dealt[node::nodes])) for node in range(nodes)]


_SPLITTERS: dict[str, Callable[[Partition, Labels, int, np.random.Generator], list[Rows]]] = {
    "iid": _iid,
    "dirichlet": _dirichlet,
    "shards": _shards,
    "classes": _classes,
    "sizes": _sizes,
    "natural": _natural,
}


@lru_cache(maxsize=4)
def _remembered(split: Partition, labels: bytes, dtype: str, nodes: int, seed: int) -> list[Rows]:
    return split.split(np.frombuffer(labels, dtype=dtype), nodes, seed=seed)


def _draw_shares(classes: list[Rows], nodes: int, alpha: float, rng: np.random.Generator) -> list[Rows]:
    pieces = []
    for rows in classes:
        ends = np.cumsum(rng.dirichlet(np.full(nodes, alpha)))[:-1] * len(rows)
        pieces.append(np.split(rows, np.minimum(ends, len(rows)).astype(np.int64)))
    return [np.concatenate(shares) for shares in zip(*pieces, strict=True)]


def _fill_up(parts: list[Rows], least: int) -> list[Rows]:
    for node in range(len(parts)):
        while len(parts[node]) < least:
            largest = max(range(len(parts)), key=lambda other: len(parts[other]))
            parts[node], parts[largest] = np.append(parts[node], parts[largest][-1:]), parts[largest][:-1]
    return parts


def leaves_few_classes(spec: str) -> bool:
    """Return True for a partition that gives each node a few classes."""
    name = spec.partition(":")[0]
    return ALIASES.get(name, name) in {"shards", "classes"}


def parse_partition(spec: str) -> Partition:
    """Read `name` or `name:numbers`. Raises UserError: there is no such partition, or its numbers are impossible."""
    name, _, text = spec.partition(":")
    name = ALIASES.get(name, name)
    try:
        numbers = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        numbers = (np.nan,)
    fits = {
        "iid": not numbers,
        "natural": not numbers,
        "dirichlet": len(numbers) == 1 or (len(numbers) == 2 and numbers[1].is_integer()),
        "shards": len(numbers) == 1 and numbers[0].is_integer(),
        "classes": len(numbers) == 1 and numbers[0].is_integer(),
        "sizes": len(numbers) >= 1,
        "draw": len(numbers) == 1 and numbers[0].is_integer(),
    }
    if not fits.get(name, False) or not all(0 < number < np.inf for number in numbers):
        raise UserError("no such partition", key="task.partition", value=spec, allowed=ALLOWED)
    return Partition(spec, name, numbers)
