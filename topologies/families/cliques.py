"""The layers of a device network; two cliques with a bottleneck; and D-Cliques.

The layers are roots, gateways and devices. D-Cliques are cliques whose members together have about the overall label
distribution, joined by few edges.

Source: Bellet, Kermarrec and Lavoie, D-Cliques, 2022, arXiv:2104.07365: algorithm Greedy Swap, and the ways to join
cliques of its section 5 and appendix.

The file of label counts is CSV: one row per node, with its number of samples for each label. The first row is a header
if it begins with `name` or `node`, or if there is one row more than nodes. The first column holds the nodes' names if
its header says so, or if it holds anything but numbers. The names then say which row belongs to which node; without
names, the order does.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from topologies.errors import TopologyError, nearest
from topologies.families.classic import BOOK, path_form
from topologies.family import ClosedForm, Family, GraphRequest, choice, file, impossible, sizes_near, unfit, whole
from topologies.graph import Edge, Ends, Ints, cliques, cycle, even, line, pairs, together


def layers(request: GraphRequest) -> tuple[int, int]:
    """Return the numbers of roots and gateways; the other nodes are devices."""
    n, roots, gateways = request.nodes, request["roots"], request["gateways"]
    if roots > n:
        raise unfit("hierarchical:roots", roots, n, f"from 1 to {n}")
    if gateways is None:
        gateways = min(max(math.isqrt(n), request["uplinks"]), n - roots)
    if roots + gateways > n:
        raise unfit("hierarchical:gateways", gateways, n, f"from 1 to {n - roots}, beside the roots")
    if request["uplinks"] > max(1, gateways):
        raise unfit("hierarchical:uplinks", request["uplinks"], n, f"from 1 to {gateways}, the gateways")
    return roots, gateways


def hierarchical(request: GraphRequest) -> Ends:
    """Build the layers: roots, gateways, devices; device k has gateways k, k + 1, ..., wrapping around."""
    roots, gateways = layers(request)
    root, gateway = np.arange(roots), np.arange(roots, roots + gateways)
    device = np.arange(roots + gateways, request.nodes)
    above = [pairs(device, gateway[(device + link) % gateways]) for link in range(request["uplinks"]) if len(device)]
    between = pairs(np.repeat(gateway, roots), np.tile(root, gateways))
    return together(cycle(root), between, cycle(gateway), *above)


def barbell_parts(request: GraphRequest) -> tuple[int, int]:
    """Return the size of each clique and of the path between them."""
    n, between = request.nodes, request["path"]
    clique, odd = divmod(n - between, 2)
    if odd or clique < 1:
        sizes = sizes_near(n, lambda n: n > between and (n - between) % 2 == 0)
        raise impossible("barbell", n, f"an even number of nodes beside the path of {between}, at least 2: {sizes}")
    return clique, between


def barbell(request: GraphRequest) -> Ends:
    """Build two equal cliques joined by an edge, or by a path of `path` additional nodes."""
    clique, between = barbell_parts(request)
    first = cliques(np.array([0, clique]))
    return together(first, line(np.arange(clique - 1, clique + between + 1)), first + clique + between)


def barbell_form(request: GraphRequest) -> ClosedForm | None:
    """Return the closed form for cliques joined by an edge.

    Vectors that are opposite in the two cliques of m have the eigenvalues of [[m + 1, 1 - m], [-1, 1]].
    """
    m, between = barbell_parts(request)
    if between:
        return None
    if m == 1:
        return path_form(2)
    high = (m + 2 + math.sqrt((m + 2) ** 2 - 8)) / 2
    return ClosedForm(low=2 / high, high=high, edges=m * (m - 1) + 1, degrees=(m - 1, m), diameter=3)


CLIQUES: Mapping[str, Family] = {
    "hierarchical": Family(
        rule="devices dealt to gateways; gateways joined in a ring and to every root; roots in a ring",
        degree="uplinks at a device, about uplinks n / gateways above",
        build=hierarchical,
        parameters={
            "gateways": whole(None, 1, "how many; sqrt n by default"),
            "uplinks": whole(1, 1, "gateways of each device; from 2 on one dead gateway disconnects nobody"),
            "roots": whole(1, 1, "how many, the first nodes"),
        },
        expected=lambda request: math.prod(layers(request)) + request.nodes * request["uplinks"],
        source="Liu et al. 2020, arXiv:1905.06641, without a server",
    ),
    "barbell": Family(
        rule="two cliques joined by an edge, or by a path of so many nodes: a bottleneck",
        degree="n/2 - 1, n/2 at the ends of the bridge",
        build=barbell,
        parameters={"path": whole(0, 0, "nodes between the cliques")},
        closed=barbell_form,
        expected=lambda request: (request.nodes - request["path"]) ** 2 / 4,
        connectivity="(m + 2 - sqrt((m + 2)^2 - 8)) / 2, m = n/2, path 0",
        source=BOOK + " and equitable partitions",
    ),
}

KEY = "d-cliques:labels"
BYTES_LIMIT = 1 << 26
"""The maximum size of a file: many times what a federation's counts need. A device or a pipe may never end."""


def read_counts(path: Path, nodes: int, names: Sequence[str] = ()) -> NDArray[np.int64]:
    """Read counts of shape (nodes, labels). Raises TopologyError if the file is unreadable, or does not have one
    nonzero row per node.
    """
    rows = _rows(path)
    first = rows[0][1] if rows else [""]
    titled = first[0].lower() in {"name", "node"} and first[0] not in names
    rows = rows[1:] if titled or len(rows) == nodes + 1 else rows
    if len(rows) != nodes:
        allowed = f"{nodes} rows, and a header"
        raise TopologyError(f"{path}: not one row for each node", key=KEY, value=len(rows), allowed=allowed)
    named = titled or any(not _is_count(cells[0]) for _, cells in rows)
    counts = np.array([_counts(path, line, cells[named:], len(rows[0][1]) - named) for line, cells in rows])
    called = names or [str(node) for node in range(nodes)]
    if named and (names or {cells[0] for _, cells in rows} == set(called)):
        return counts[_places(path, rows, called)]
    return counts


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """Return line number and cells of each line that is not empty."""
    try:
        reader = csv.reader(io.StringIO(_bytes(path).decode("utf-8-sig"), newline=""))
        return [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(map(str.strip, row))]
    except TopologyError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        # a ValueError: not UTF-8, or a path that no system knows
        raise TopologyError(f"cannot read the counts of labels: {error}", key=KEY, value=str(path)) from None


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(BYTES_LIMIT + 1)
    if len(data) > BYTES_LIMIT:
        raise TopologyError("too large a file", key=KEY, value=str(path), allowed=f"up to {BYTES_LIMIT} bytes")
    return data


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 15


def _counts(path: Path, line: int, cells: list[str], width: int) -> list[int]:
    counts = [int(cell) for cell in cells if _is_count(cell)]
    if len(counts) != len(cells) or len(cells) != width or sum(counts) == 0:
        allowed = f"{width} whole numbers from 0, not all of them 0"
        raise TopologyError("not counts of labels", key=f"{path}:{line}", value=",".join(cells), allowed=allowed)
    return counts


def _places(path: Path, rows: list[tuple[int, list[str]]], names: Sequence[str]) -> list[int]:
    """Return the row of each node."""
    place = {cells[0]: number for number, (_, cells) in enumerate(rows)}
    for at, cells in rows:
        if cells[0] not in names:
            raise TopologyError("unknown node", key=f"{path}:{at}", value=cells[0], allowed=nearest(cells[0], names))
    missing = [name for name in names if name not in place]
    if missing:
        raise TopologyError("a row is missing", key=str(path), value=missing[0], allowed="one row for each node")
    return [place[name] for name in names]


Counts = NDArray[np.int64]
SAME = 1e-9
"""The smallest improvement that justifies a swap: within rounding, two machines could decide differently."""


def d_cliques(request: GraphRequest) -> Ends:
    """Build the cliques. Without a file of labels, nodes are dealt to the cliques in order: 0 .. M-1 to the first."""
    starts = _starts(request)
    members = np.arange(request.nodes)
    if request["labels"] is not None:
        counts = read_counts(request.folder / request["labels"], request.nodes, request.names)
        steps = max(1_000, 10 * request.nodes) if request["steps"] is None else request["steps"]
        members = greedy_swap(counts, starts, steps if len(starts) > 2 else 0, request.seed)
    groups = [part.tolist() for part in np.split(members, starts[1:-1])]
    between = np.array(sorted(_BETWEEN[request["inter"]](groups)), dtype=np.int64).reshape(-1, 2)
    return together(members[cliques(starts)], between)


def skew(counts: Counts, overall: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far the label distribution of groups is from the overall one: sum over labels of |p_C(y) - p(y)|.

    `counts` has samples per label in each group, shape (..., labels); `overall` has the shares, shape (labels,).
    """
    return np.asarray(np.abs(counts / counts.sum(axis=-1, keepdims=True) - overall).sum(axis=-1))


def greedy_swap(counts: Counts, starts: Ints, steps: int, seed: int) -> Ints:
    """Permute the nodes; clique k has the ones at starts[k] .. starts[k + 1]. `counts`: (nodes, labels).

    Starting from a random deal, each step draws two cliques and swaps two of their members, drawn from the swaps that
    reduce the sum of both skews.
    """
    rng = Random(seed)
    members = np.array(rng.sample(range(len(counts)), len(counts)))
    total = counts.sum(axis=0)
    overall = total / total.sum()
    for _ in range(steps):
        first, second = (np.arange(starts[k], starts[k + 1]) for k in rng.sample(range(len(starts) - 1), 2))
        left, right = counts[members[first]], counts[members[second]]
        moved = right[None, :, :] - left[:, None, :]
        after = skew(left.sum(axis=0) + moved, overall) + skew(right.sum(axis=0) - moved, overall)
        before = skew(left.sum(axis=0), overall) + skew(right.sum(axis=0), overall)
        better = np.argwhere(after < before - SAME)
        if len(better):
            i, j = better[rng.randrange(len(better))]
            members[first[i]], members[second[j]] = members[second[j]], members[first[i]]
    return members


class _Joiner:
    """Joins groups of nodes, each time at the node with the fewest edges between cliques so far."""

    def __init__(self) -> None:
        self.edges: dict[int, int] = {}

    def join(self, first: list[int], second: list[int]) -> Edge:
        ends = self._least_joined(first), self._least_joined(second)
        for end in ends:
            self.edges[end] = self.edges.get(end, 0) + 1
        return min(ends), max(ends)

    def _least_joined(self, group: list[int]) -> int:
        return min(group, key=lambda node: (self.edges.get(node, 0), node))


def _ring(groups: list[list[int]]) -> Iterator[Edge]:
    joiner = _Joiner()
    last = len(groups) if len(groups) > 2 else len(groups) - 1
    for k in range(last):
        yield joiner.join(groups[k], groups[(k + 1) % len(groups)])


def _full(groups: list[list[int]]) -> Iterator[Edge]:
    joiner = _Joiner()
    for first, second in combinations(groups, 2):
        yield joiner.join(first, second)


_BETWEEN = {"ring": _ring, "full": _full}


def _starts(request: GraphRequest) -> Ints:
    return even(request.nodes, -(-request.nodes // request["size"]))


def _expected(request: GraphRequest) -> float:
    sizes = np.diff(_starts(request))
    q = len(sizes)
    return int((sizes * (sizes - 1) // 2).sum()) + (q * (q - 1) / 2 if request["inter"] == "full" else 0)


D_CLIQUES: Mapping[str, Family] = {
    "d-cliques": Family(
        rule="cliques with about the labels of all nodes, by greedy swaps; without labels dealt in order",
        degree="about size, a little more where cliques are joined",
        build=d_cliques,
        parameters={
            "size": whole(10, 1, "most nodes of a clique; all are of nearly equal size"),
            "labels": file("CSV, one row for each node: how many samples of each label; a name may come first"),
            "inter": choice("ring", "full", meaning="how cliques are joined"),
            "steps": whole(None, 0, "swaps tried; ten for each node by default, at least 1000"),
        },
        expected=_expected,
        source="Bellet, Kermarrec and Lavoie 2022, arXiv:2104.07365",
        random=True,
    )
}
