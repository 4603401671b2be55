"""Writes the study's graphs: 20 honest nodes on a random regular graph, and 1 or 2 liars that are neighbors of all.

python benchmarks/robust/graphs.py        # from the repository's root; the files stand beside this one
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

from topologies import build

HONEST = 20
LIARS = {4: 1, 6: 2, 8: 1}
"""The number of liars by the degree of the graph of honest nodes."""
SEED = 0
CLIQUE = 10
RING = 5


def write(folder: Path) -> None:
    for degree, count in LIARS.items():
        honest = build(f"random-regular:degree={degree}", HONEST, seed=SEED)
        edges = [*honest.edges, *((node, HONEST + liar) for node in range(HONEST) for liar in range(count))]
        _write(folder / f"degree-{degree}.edges", edges, f"from {HONEST} on they are neighbors of all the others")
    cliques = [pair for side in (0, 1) for pair in combinations(range(side, 2 * CLIQUE, 2), 2)]
    _write(folder / "dumbbell.edges", [(0, 1), *cliques], "the even ones are a clique, and so are the odd ones")
    around = [(node, (node + 1) % RING) for node in range(RING)]
    liars = [(node, node + RING * turn) for node in range(RING) for turn in (1, 2)]
    _write(folder / "ring.edges", [*around, *liars, (0, 3 * RING)], f"from {RING} on each has one neighbor in the ring")


def _write(file: Path, edges: Iterable[tuple[int, int]], words: str) -> None:
    ordered = sorted((min(edge), max(edge)) for edge in edges)
    nodes = 1 + max(high for _, high in ordered)
    file.write_text(f"# nodes: {nodes}\n# {words}\n" + "".join(f"{low} {high}\n" for low, high in ordered))


if __name__ == "__main__":
    write(Path(__file__).parent)
