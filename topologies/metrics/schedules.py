"""One flat description of a schedule or of a directed graph, with the keys of `describe` where they make sense."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from topologies.errors import TopologyError
from topologies.graph import component_count
from topologies.metrics.consensus import EPSILON
from topologies.metrics.distance import diameter
from topologies.schedules.contraction import LANCZOS, ROUNDING, Contraction, contraction
from topologies.schedules.exact import exact_after
from topologies.schedules.schedule import Schedule
from topologies.spectral import plain_extremes


def describe_schedule(schedule: Schedule, epsilon: float = EPSILON) -> dict[str, Any]:
    """All of it. Mixing must have rows and columns that sum to one, as in all families here.

    `edges`, `diameter` and the Laplacian's eigenvalues are those of the union of all rounds, without directions.
    `degree`: how many models a node receives in a round. `mixing_rate`: the spectral norm of D = W_period ... W_1 -
    J/n, to the power 1/period: what a round shrinks the distance to consensus by, over a period. `asymptotic_rate`: the
    same in the long run, of one directed matrix. `rounds_to_consensus`: the least t with ||W_t ... W_1 - J/n|| <=
    epsilon for every start, an upper bound where `method` says so. `exact_after`: the round in which all hold the
    mean itself. `method`, `residual` and `certified` are about the mixing rate, `connectivity_method` and
    `connectivity_certified` about the union's eigenvalues.
    """
    if not 0.0 < epsilon < 1.0:
        raise TopologyError("impossible accuracy", key="epsilon", value=epsilon, allowed="between 0 and 1")
    started = time.perf_counter()
    union = schedule.union()
    parts = component_count(union)
    found = _contraction(schedule, epsilon, parts)
    exact = exact_after(schedule) if parts == 1 else None
    # with all weights in whole numbers, or the whole matrix at hand: a norm of zero needs no relative accuracy
    nothing = exact is not None and exact <= schedule.period
    proven = nothing and found.norm <= ROUNDING and found.method != LANCZOS
    # an exact schedule needs no more, whatever rounding makes of a norm of zero
    rounds = found.rounds if exact is None or found.rounds is None else min(found.rounds, exact)
    plain = plain_extremes(union)
    return {
        "spec": schedule.spec,
        "seed": schedule.seed,
        "nodes": schedule.nodes,
        "period": schedule.period,
        "directed": schedule.directed,
        "random": schedule.random,
        "live": not schedule.directed,
        "edges": union.edge_count,
        "connected": parts == 1,
        "components": parts,
        "degree": _degree(schedule),
        "diameter": diameter(union),
        "algebraic_connectivity": plain.low,
        "laplacian_max_eigenvalue": plain.high,
        "connectivity_method": plain.method,
        "connectivity_certified": bool(plain.certified),
        "mixing_rate": 0.0 if nothing else min(1.0, found.norm) ** (1.0 / schedule.period),
        "asymptotic_rate": 0.0 if exact is not None else found.asymptotic,
        "epsilon": epsilon,
        "exact_after": exact,
        "rounds_to_consensus": rounds,
        "messages_to_consensus": None if rounds is None else messages(schedule, rounds),
        "method": found.method,
        "residual": found.residual,
        "certified": found.certified or proven,
        "seconds": time.perf_counter() - started,
    }


def messages(schedule: Schedule, rounds: int) -> int:
    """Models sent in the first so many rounds."""
    sent = [mixing.messages for mixing in schedule.mixings]
    periods, rest = divmod(rounds, schedule.period)
    return periods * sum(sent) + sum(sent[:rest])


def _contraction(schedule: Schedule, epsilon: float, parts: int) -> Contraction:
    if schedule.nodes == 1:
        return _plain(0.0, 0, "one node")
    if parts > 1:
        return _plain(1.0, None, "disconnected")
    return contraction(schedule, epsilon)


def _plain(norm: float, rounds: int | None, method: str) -> Contraction:
    return Contraction(norm=norm, rounds=rounds, method=method, residual=0.0, certified=True, asymptotic=norm)


def _degree(schedule: Schedule) -> dict[str, float]:
    least, most, total = schedule.nodes, 0, 0
    for mixing in schedule.mixings:
        heard = np.bincount(mixing.receivers, minlength=schedule.nodes)
        least, most, total = min(least, int(heard.min())), max(most, int(heard.max())), total + mixing.messages
    return {"min": least, "mean": total / (schedule.nodes * schedule.period), "max": most}
