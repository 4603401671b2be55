"""One simulation from start to end: facts, measured beside predicted, and its history round by round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from topologies.errors import TopologyError, nearest
from topologies.families.stream import generator
from topologies.graph import Topology
from topologies.metrics.consensus import rounds_to_consensus
from topologies.simulation.delay import OLDEST, TAIL, delayed, measured_over
from topologies.simulation.gossip import RUNS_LIMIT, Bracket, enough_runs, gossip, tick_work
from topologies.simulation.start import (
    VALUES_LIMIT,
    random_values,
    require_connected,
    require_epsilon,
    require_held,
    require_whole,
)
from topologies.simulation.synchronous import mixing_step, require_rounds, rounds_limit, run, tail
from topologies.spectral import spectrum

MODES = ("sync", "gossip", "delay")
GOSSIP_WORK = 1_000_000_000
"""ticks times runs: about half a minute, where nobody says how many ticks."""
TICKS_LIMIT = 100_000_000
"""that can be asked for, within ten times the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """`rounds`: exactly so many, in gossip at most so many ticks; None: until `epsilon`, within limits of work.

    `dimension`: values at each node. `runs`: of gossip; None for as many as `epsilon` needs.
    `max_delay`: rounds, of delay. `seed` is for the start, the edges and the delays.
    """

    epsilon: float = 1e-3
    weights: str = "metropolis"
    rounds: int | None = None
    dimension: int = 1
    runs: int | None = None
    max_delay: int = 3
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """`history`: rows of the same keys: the round or tick, the distance to consensus over that at the start, and
    what is predicted. `notes`: what the figures do not say by themselves.
    """

    facts: dict[str, Any]
    history: list[dict[str, Any]]
    notes: tuple[str, ...] = ()


def simulate(topology: Topology, mode: str = "sync", asked: Asked | None = None) -> Report:
    """Of one connected static graph.

    Raises:
        TopologyError: unknown mode, or an impossible request.
        DisconnectedError: the graph is not connected.
    """
    asked = asked or Asked()
    if mode not in MODES:
        raise TopologyError("unknown mode", key="mode", value=mode, allowed=nearest(mode, MODES))
    require_epsilon(asked.epsilon)
    require_runs(asked.runs, mode)
    if mode != "gossip":
        require_rounds(asked.rounds, topology.edge_count * asked.dimension)
    elif asked.rounds is not None:
        require_whole("rounds", asked.rounds, 1, TICKS_LIMIT)
    require_connected(topology)
    by_mode = {"sync": _synchronous, "gossip": _gossip, "delay": _delayed}
    return by_mode[mode](topology, asked)


def _synchronous(topology: Topology, asked: Asked) -> Report:
    step = mixing_step(topology, asked.weights)
    x = random_values(topology.nodes, asked.dimension, generator(asked.seed))
    limit = rounds_limit(topology.edge_count * asked.dimension)
    done = run([step], x, asked.epsilon, rounds=asked.rounds, limit=limit)
    slowest = tail(step, x, limit)
    rate = spectrum(topology, asked.weights).mixing_rate
    facts = {
        **_about(topology, "sync", asked),
        "weights": asked.weights,
        "predicted_contraction": rate,
        "measured_contraction": slowest.contraction,
        "settled": slowest.settled,
        "predicted_rounds": rounds_to_consensus(rate, asked.epsilon),
        "measured_rounds": done.rounds,
        "measured_messages": None if done.rounds is None else 2 * topology.edge_count * done.rounds,
        "mean_drift": done.mean_drift,
    }
    notes = [] if slowest.settled else [f"the contraction had not settled after {slowest.rounds} rounds"]
    return Report(facts, _rounds(done.distances, rate), (*notes, *unreached(done.rounds, len(done.distances) - 1)))


def _delayed(topology: Topology, asked: Asked) -> Report:
    require_whole("max-delay", asked.max_delay, 0, OLDEST)
    kept = (asked.max_delay + 1) * topology.nodes * asked.dimension
    require_held(kept, "max-delay", asked.max_delay)
    work = 2 * topology.edge_count * asked.dimension + kept
    require_rounds(asked.rounds, work)
    limit = rounds_limit(work)
    rng = generator(asked.seed)
    done = delayed(
        topology,
        random_values(topology.nodes, asked.dimension, rng),
        weights=asked.weights,
        epsilon=asked.epsilon,
        oldest=asked.max_delay,
        rounds=asked.rounds,
        limit=limit,
        rng=rng,
    )
    rate = spectrum(topology, asked.weights).mixing_rate
    facts = {
        **_about(topology, "delay", asked),
        "weights": asked.weights,
        "max_delay": asked.max_delay,
        "undelayed_contraction": rate,
        "measured_contraction": done.contraction,
        "undelayed_rounds": rounds_to_consensus(rate, asked.epsilon),
        "measured_rounds": done.rounds,
        "measured_messages": None if done.rounds is None else 2 * topology.edge_count * done.rounds,
        "mean_drift": done.mean_drift,
    }
    notes = ["no formula predicts the contraction with delays; what stands beside it is that without"]
    if (over := measured_over(limit)) < TAIL:
        notes.append(f"the contraction may not have settled: on so many nodes and edges it is that of {over} rounds")
    return Report(facts, _rounds(done.distances, rate), (*notes, *unreached(done.rounds, len(done.distances) - 1)))


def _gossip(topology: Topology, asked: Asked) -> Report:
    bracket = Bracket.of(topology, asked.epsilon)
    held = max(1, VALUES_LIMIT // topology.nodes)
    runs = min(enough_runs(asked.epsilon), held) if asked.runs is None else asked.runs
    require_held(topology.nodes * runs, "runs", runs)
    most = max(1, GOSSIP_WORK // tick_work(topology.nodes, runs))
    if asked.rounds is not None:
        require_whole("rounds", asked.rounds, 1, min(TICKS_LIMIT, 10 * most))
    limit = min(most, math.ceil(bracket.high)) if asked.rounds is None else asked.rounds
    done = gossip(topology, asked.epsilon, runs=runs, limit=limit, rng=generator(asked.seed))
    ticks = done.averaging_ticks(asked.epsilon)
    facts = {
        **_about(topology, "gossip", asked),
        "runs": runs,
        "expected_matrix_eigenvalue": bracket.eigenvalue,
        "predicted_ticks_low": bracket.low,
        "predicted_ticks_high": bracket.high,
        "measured_ticks": ticks,
        "median_ticks": done.median_ticks,
        "measured_messages": None if ticks is None else 2 * ticks,
        "mean_drift": done.mean_drift,
    }
    history = [
        {"tick": tick, "distance": distance, "predicted": bracket.eigenvalue ** (tick / 2)}
        for tick, distance in done.history
    ]
    few = [f"{runs} runs are few for a probability of {asked.epsilon:g}"] if runs * asked.epsilon < 1 else []
    return Report(facts, history, (*few, *unreached(ticks, limit, "ticks")))


def _about(topology: Topology, mode: str, asked: Asked) -> dict[str, Any]:
    return {
        "spec": topology.spec,
        "seed": asked.seed,
        "nodes": topology.nodes,
        "edges": topology.edge_count,
        "mode": mode,
        "epsilon": asked.epsilon,
    }


def _rounds(distances: tuple[float, ...], rate: float) -> list[dict[str, Any]]:
    """The prediction is for the worst start: no other is farther away."""
    return [{"round": t, "distance": distance, "predicted": rate**t} for t, distance in enumerate(distances)]


def require_runs(runs: int | None, mode: str) -> None:
    if runs is not None and mode != "gossip":
        raise TopologyError("only gossip has several", key="runs", value=runs, allowed="with --mode gossip")
    if runs is not None:
        require_whole("runs", runs, 1, RUNS_LIMIT)


def unreached(reached: int | None, limit: int, unit: str = "rounds") -> tuple[str, ...]:
    return () if reached is not None else (f"epsilon was not reached within {limit} {unit}",)
