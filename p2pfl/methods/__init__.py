"""Learning methods define how local rounds and mixing change a node's model. Nothing here depends on tasks or torch.

`method` has the interface, with `plain` as its base class, `variate`, and what makes them; `published` has the others.
"""

from p2pfl.methods.method import (
    CONSERVATIVE,
    CORRECTION,
    FLOW,
    KEY,
    METHODS,
    MODEL,
    ROBUST,
    Array,
    Method,
    New,
    NodeVectors,
    Number,
    Round,
    Variate,
    Vectors,
    allowed,
    from_here,
    like,
    make_method,
    overrides,
    parse_method,
)
from p2pfl.methods.published import Momentum, Normalized, Tracking

__all__ = [
    "CONSERVATIVE",
    "CORRECTION",
    "FLOW",
    "KEY",
    "METHODS",
    "MODEL",
    "ROBUST",
    "Array",
    "Method",
    "Momentum",
    "New",
    "NodeVectors",
    "Normalized",
    "Number",
    "Round",
    "Tracking",
    "Variate",
    "Vectors",
    "allowed",
    "from_here",
    "like",
    "make_method",
    "overrides",
    "parse_method",
]
