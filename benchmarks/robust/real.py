"""A world of the study with real processes: of degree-4.edges the last node lies to the twenty others.

    python benchmarks/robust/real.py --rule hampel:b=1 --attack ascent --dir FOLDER      # the options of `p2pfl demo`

A real malicious node knows its own data and what its neighbors show it; in the simulator it knows everybody's.
"""

from __future__ import annotations

import sys
from pathlib import Path

from p2pfl.cli.main import main
from sim.attackers import offer

if __name__ == "__main__":
    offer.spread_out = lambda nodes, *_: (nodes - 1,)
    graph = str(Path(__file__).parent / "degree-4.edges")
    world = ["--nodes", "21", "--partition", "dirichlet:0.5", "--byzantine", "1", "--rounds", "30", "--topology"]
    main(["demo", *world, graph, *sys.argv[1:]])
