"""Staleness weights s(tau): how much an exchange counts when the peer knew us `tau` of our own rounds ago.

`hinge-polynomial:b,a` is the default: 1 for tau <= b, then (tau - b + 1)^-a. constant, hinge and polynomial are
FedAsync's (Xie, Koyejo, Gupta 2019, arXiv 1903.03934, section 5). All are 0 above 64. Staleness is not a defence: a
liar chooses what it echoes.
"""

from __future__ import annotations

from collections.abc import Callable

LIMIT = 64

Staleness = Callable[[int], float]


def parse_staleness(spec: str) -> Staleness:
    """The function s: rounds -> [0, 1] that `spec` names.

    Raises:
        ValueError: unknown name or parameters.
    """
    name, _, rest = spec.partition(":")
    parameters = [float(part) for part in rest.split(",")] if rest else []
    match name, parameters:
        case "none", []:
            return lambda _tau: 1.0
        case "constant", ([] | [_]):
            return _limited(lambda _tau: parameters[0] if parameters else 1.0)
        case "hinge", [a, b]:
            return _limited(lambda tau: 1.0 if tau <= b else 1.0 / (a * (tau - b) + 1.0))
        case "polynomial", [a]:
            return _limited(lambda tau: (tau + 1.0) ** -a)
        case "hinge-polynomial", [b, a]:
            return _limited(lambda tau: 1.0 if tau <= b else (tau - b + 1.0) ** -a)
    raise ValueError(f"no staleness weight {spec!r}")


def _limited(weight: Staleness) -> Staleness:
    table = [min(1.0, max(0.0, weight(tau))) for tau in range(LIMIT + 1)]
    return lambda tau: 0.0 if tau > LIMIT else table[max(0, tau)]
