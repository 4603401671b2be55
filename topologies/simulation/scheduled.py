"""A schedule, or a directed graph, mixes random values: round by round, and over whole periods in the long run."""

from __future__ import annotations

from typing import Any

import numpy as np

from topologies.errors import TopologyError
from topologies.families.stream import generator
from topologies.laplacian import Array
from topologies.metrics.schedules import describe_schedule, messages
from topologies.schedules.schedule import Schedule
from topologies.simulation.report import Asked, Report, require_runs, unreached
from topologies.simulation.start import VANISHED, random_values, require_connected, require_epsilon
from topologies.simulation.synchronous import Run, cyclic_tail, require_rounds, rounds_limit, run

PERIODS = 2_000
"""over whose last half the contraction is measured."""


def simulate_schedule(schedule: Schedule, mode: str = "sync", asked: Asked | None = None) -> Report:
    """As `report.simulate`; there is no other mode than `sync`, and a schedule brings its weights along.

    Raises:
        TopologyError: another mode, or an impossible request.
        DisconnectedError: the union of all rounds is not connected.
    """
    asked = asked or Asked()
    if mode != "sync":
        raise TopologyError("only for static undirected graphs", key="mode", value=mode, allowed="sync")
    require_epsilon(asked.epsilon)
    require_runs(asked.runs, mode)
    links = asked.dimension * max(mixing.messages for mixing in schedule.mixings)
    require_rounds(asked.rounds, links)
    require_connected(schedule.union())
    x = random_values(schedule.nodes, asked.dimension, generator(asked.seed))
    steps = [mixing.apply for mixing in schedule.mixings]
    limit = rounds_limit(links)
    done = run(steps, x, asked.epsilon, rounds=asked.rounds, limit=limit)
    slope = cyclic_tail(steps, x, max(4, min(PERIODS, limit // schedule.period)))
    known = describe_schedule(schedule, asked.epsilon)
    facts = {
        "spec": schedule.spec,
        "seed": asked.seed,
        "nodes": schedule.nodes,
        "edges": known["edges"],
        "mode": mode,
        "epsilon": asked.epsilon,
        "period": schedule.period,
        "directed": schedule.directed,
        "predicted_contraction": known["mixing_rate"],
        "predicted_long_run_contraction": known["asymptotic_rate"],
        "measured_contraction": slope.contraction,
        "settled": slope.settled,
        "predicted_rounds": known["rounds_to_consensus"],
        "measured_rounds": done.rounds,
        "predicted_exact_after": known["exact_after"],
        "measured_exact_after": exact_after(schedule, x),
        "measured_messages": None if done.rounds is None else messages(schedule, done.rounds),
        "mean_drift": done.mean_drift,
    }
    return Report(facts, _history(done, schedule, known), unreached(done.rounds, len(done.distances) - 1))


def exact_after(schedule: Schedule, x: Array) -> int | None:
    """The round in which the distance vanished at one blow, as it does only where the product of rounds is J/n."""
    limit = max(schedule.period, 2 * schedule.nodes.bit_length())
    done = run([mixing.apply for mixing in schedule.mixings], x, VANISHED, rounds=None, limit=limit)
    return done.rounds if done.rounds is not None and done.distances[-2] > np.sqrt(VANISHED) else None


def _history(done: Run, schedule: Schedule, known: dict[str, Any]) -> list[dict[str, Any]]:
    """Predicted is a bound: what whole periods have done to the worst start."""
    period, exact = schedule.period, known["exact_after"]
    return [
        {
            "round": t,
            "distance": distance,
            "predicted": 0.0 if exact is not None and t >= exact else known["mixing_rate"] ** (t - t % period),
        }
        for t, distance in enumerate(done.distances)
    ]
