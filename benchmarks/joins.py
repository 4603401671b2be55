"""Count the edges that change when a member joins, for graphs that suit changing membership.

    python benchmarks/joins.py [--sizes 5 20 200] [--joins 20]

For each graph and size it shows the edges, and how many are added and removed per new member, averaged over the joins.
Members are called pi0, pi1 and so on, and the newcomer comes last, as under a charter.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from statistics import fmean

from topologies import TopologyError, build

SPECS = ("keyed-rings", "keyed-rings:r=3", "ring", "random-regular:degree=4", "exponential", "complete")


def changes(spec: str, nodes: int, joins: int) -> tuple[float, float, float] | None:
    """Return edges, added edges, removed edges; None if the graph does not exist at one of the sizes."""
    try:
        graphs = [set(_edges(spec, size)) for size in range(nodes, nodes + joins + 1)]
    except TopologyError:
        return None
    pairs = list(pairwise(graphs))
    came = fmean(len(after - before) for before, after in pairs)
    return fmean(map(len, graphs)), came, fmean(len(before - after) for before, after in pairs)


def _edges(spec: str, nodes: int) -> tuple[tuple[int, int], ...]:
    return build(spec, nodes, names=[f"pi{index}" for index in range(nodes)]).edges


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[5, 20, 200])
    parser.add_argument("--joins", type=int, default=20)
    options = parser.parse_args()
    print("| graph | " + " | ".join(f"{size} members" for size in options.sizes) + " |")
    print("|---|" + "---|" * len(options.sizes))
    for spec in SPECS:
        cells = []
        for size in options.sizes:
            changed = changes(spec, size, options.joins)
            cells.append("not at every size" if changed is None else "{:.0f} edges, +{:.1f} -{:.1f}".format(*changed))
        print(f"| {spec} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
