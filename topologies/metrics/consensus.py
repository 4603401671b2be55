"""How many rounds of mixing bring all nodes together."""

from __future__ import annotations

import math

from topologies.errors import TopologyError

EPSILON = 1e-3


def require_epsilon(epsilon: float, below: float = 1.0) -> None:
    if not 0.0 < epsilon < below:
        raise TopologyError("impossible accuracy", key="epsilon", value=epsilon, allowed=f"between 0 and {below:g}")


def rounds_to_consensus(mixing_rate: float, epsilon: float = EPSILON) -> int | None:
    """Synchronous mixing steps until the distance to consensus is `epsilon` of what it was; None if never."""
    require_epsilon(epsilon)
    if mixing_rate >= 1.0:
        return None
    if mixing_rate <= epsilon:
        return 1
    # the small subtraction keeps an exact power, such as a rate of 0.1 and 1e-3, from being rounded up
    return math.ceil(math.log(epsilon) / math.log(mixing_rate) - 1e-9)


def rate_text(rate: float, digits: int = 6) -> str:
    """Digits that matter: what is below one, and so has a number of rounds, must not be written as 1."""
    rounded = f"{rate:.{digits}g}"
    return f"1 - {1.0 - rate:.{digits}g}" if rounded == "1" and rate < 1.0 else rounded
