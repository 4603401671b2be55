"""Writes the study's graphs: 20 honest nodes on a random regular graph, and 1 or 2 liars that are neighbors of all.

python benchmarks/robust/graphs.py        # from the repository's root; the files stand beside this one
"""

from __future__ import annotations

from pathlib import Path

from topologies import build

HONEST = 20
LIARS = {4: 1, 6: 2, 8: 1}
"""by the degree of the graph of honest nodes."""
SEED = 0


def write(folder: Path) -> None:
    for degree, liars in LIARS.items():
        honest = build(f"random-regular:degree={degree}", HONEST, seed=SEED)
        edges = [*honest.edges, *((node, HONEST + liar) for node in range(HONEST) for liar in range(liars))]
        head = f"# nodes: {HONEST + liars}\n# from {HONEST} on they are neighbors of all the others\n"
        lines = "".join(f"{low} {high}\n" for low, high in sorted(edges))
        (folder / f"degree-{degree}.edges").write_text(head + lines)


if __name__ == "__main__":
    write(Path(__file__).parent)
