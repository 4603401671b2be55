"""Partitions of a common data set among nodes, as indices, for demos and simulations.

| spec | flwr-datasets calls it | a node holds |
|---|---|---|
| `iid` | IidPartitioner | an equal random share |
| `dirichlet:0.5` | DirichletPartitioner | shares of each class drawn from Dir(alpha) (arXiv 1909.06335) |
| `shards:2` | ShardPartitioner | k of nodes * k shards of the set sorted by label (arXiv 1602.05629, section 3) |
| `classes:2` | PathologicalPartitioner | exactly k classes, each split evenly among its holders |
| `sizes:3,1,1` | SizePartitioner | a random share in these proportions |
| `natural` | NaturalIdPartitioner, GroupedNaturalIdPartitioner | whole groups of equal `ids` |
| `draw:14` | - | k distinct rows, drawn by each node for itself |

`dirichlet:0.5,10` is drawn anew, then mended, until each node has at least 10 rows (flwr-datasets' min_partition_size).
flwr-datasets' names `shard`, `pathological`, `size` and `natural-id` mean `shards`, `classes`, `sizes` and `natural`.
Its pathological partition draws k classes for each node, so that no node may have some class; here every class has a
holder.

Every node gets at least one row, no row is held twice, none is left over; the same seed gives the same parts. Only
`draw` breaks this: nodes may share rows and some rows may belong to no node, so that a simulation can have more nodes
than the set has rows. A node's rows are then the same however many nodes there are.
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
"""Names of flwr-datasets for the same thing."""
ALLOWED = "iid, dirichlet:ALPHA or ALPHA,LEAST, shards:K, classes:K, sizes:A,B,... (one per node), natural, draw:K"
_DIRICHLET_DRAWS = 10


@dataclass(frozen=True, slots=True)
class Partition:
    """A parsed spec. `numbers` are those after its colon."""

    spec: str
    name: str
    numbers: tuple[float, ...] = ()

    def split(self, labels: Labels, nodes: int, *, seed: int, ids: ArrayLike | None = None) -> list[Rows]:
        """Row numbers per node, ascending, for `labels` (n,); `ids` (n,) are the groups of `natural`.

        Raises UserError: the set cannot be split so.
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
        """One node's rows. The last splits are cached: a simulation calls this for every node of the same set."""
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
    """Draw anew while a node has too few rows; after some draws, the largest part gives it some."""
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
    """Give each node one group, in the groups' order; if there are more groups than nodes, they are dealt out at
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


def parse_partition(spec: str) -> Partition:
    """Read `name` or `name:numbers`. Raises UserError: no such partition, or impossible numbers."""
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
