"""The data plane put off: what the cores decide is only noted, and done later for many nodes at once.

A core never looks at a value, so a run's events do not depend on when its arithmetic is done, nor with whose. `control`
answers the cores, `plane` keeps what is to be done in each node's order and picks what can be done together, `rows` is
the arithmetic. Operation by operation it is what `p2pfl.engine` does, and gives the same bits.

The one thing that values may decide is a refusal: a message whose vector fails a check, a local round that ends in no
finite model. Here everything is taken to pass, and the checks run with the arithmetic: where one might fail,
`MisjudgedError` ends the run, which then has to be done one operation at a time.
"""

from sim.lazy.control import LazyEngine, Pairs
from sim.lazy.plane import Begun, Plane
from sim.lazy.rows import EdgeCodecs, MisjudgedError

__all__ = ["Begun", "EdgeCodecs", "LazyEngine", "MisjudgedError", "Pairs", "Plane"]
