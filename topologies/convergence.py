"""Consensus without learning, in numpy: what theory predicts, measured, and its history round by round.

No network, no time, no models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from topologies import averaging
from topologies.averaging import Approach, OldValues, Tail, averaging_ticks, require_held, require_whole, run
from topologies.chance import generator
from topologies.errors import TopologyError, nearest
from topologies.graph import Topology
from topologies.laplacian import Array
from topologies.metrics.describe import describe_schedule, messages
from topologies.schedules.schedule import Schedule
from topologies.spectral import require_epsilon, rounds_to_consensus, spectrum

MODES = ("sync", "gossip", "delay")
GOSSIP_WORK = 1_000_000_000
"""Ticks times runs by default, about half a minute; ten times that on request."""
TICKS_LIMIT = 100_000_000
OLDEST = 1_000
PERIODS = 2_000
"""Periods of a schedule; the contraction is measured over the last half."""


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
class Consensus:
    """`history`: rows of the same keys: the round or tick, the distance to consensus over that at the start, and
    what is predicted. `notes`: what the figures do not say by themselves.
    """

    facts: dict[str, Any]
    history: list[dict[str, Any]]
    notes: tuple[str, ...] = ()


def simulate(topology: Topology, mode: str = "sync", asked: Asked | None = None) -> Consensus:
    """Raises TopologyError: unknown mode, or an impossible request; DisconnectedError: not connected."""
    asked = asked or Asked()
    if mode not in MODES:
        raise TopologyError("unknown mode", key="mode", value=mode, allowed=nearest(mode, MODES))
    _check(asked, mode, topology.edge_count)
    averaging.require_connected(topology)
    return {"sync": _present, "gossip": _gossip, "delay": _old}[mode](topology, asked)


def simulate_schedule(schedule: Schedule, mode: str = "sync", asked: Asked | None = None) -> Consensus:
    """As `simulate`; there is no other mode than `sync`, and a schedule brings its weights along.
    Raises TopologyError: another mode, or an impossible request; DisconnectedError: the union of all rounds is not
    connected.
    """
    asked = asked or Asked()
    if mode != "sync":
        raise TopologyError("only for static undirected graphs", key="mode", value=mode, allowed="sync")
    limit = _check(asked, mode, max(mixing.messages for mixing in schedule.mixings))
    averaging.require_connected(schedule.union())
    x = averaging.random_values(schedule.nodes, asked.dimension, generator(asked.seed))
    steps = [mixing.apply for mixing in schedule.mixings]
    done = run(averaging.mixed(steps, x), x, asked.epsilon, asked.rounds, limit)
    slope = averaging.cyclic_tail(steps, x, max(4, min(PERIODS, limit // schedule.period)))
    known = describe_schedule(schedule, asked.epsilon)
    facts = {
        **_about(schedule, known["edges"], mode, asked),
        "period": schedule.period,
        "directed": schedule.directed,
        "predicted_contraction": known["mixing_rate"],
        "predicted_long_run_contraction": known["asymptotic_rate"],
        "measured_contraction": slope.contraction,
        "settled": slope.settled,
        "predicted_rounds": known["rounds_to_consensus"],
        "measured_rounds": done.reached,
        "predicted_exact_after": known["exact_after"],
        "measured_exact_after": _exact_after(schedule, x),
        "measured_messages": None if done.reached is None else messages(schedule, done.reached),
        "mean_drift": done.mean_drift,
    }
    rate, exact = known["mixing_rate"], math.inf if known["exact_after"] is None else known["exact_after"]
    # a bound: what whole periods have done to the worst start
    return _consensus(facts, done, lambda t: 0.0 if t >= exact else rate ** (t - t % schedule.period))


def _check(asked: Asked, mode: str, links: int) -> int:
    """Most rounds of a simulation in which each round uses this many edges or links."""
    require_epsilon(asked.epsilon)
    if asked.runs is not None and mode != "gossip":
        raise TopologyError("only gossip has several", key="runs", value=asked.runs, allowed="with --mode gossip")
    if asked.runs is not None:
        require_whole("runs", asked.runs, 1, averaging.RUNS_LIMIT)
    if mode != "gossip":
        return averaging.rounds_limit(links * asked.dimension, asked.rounds)
    if asked.rounds is not None:
        require_whole("rounds", asked.rounds, 1, TICKS_LIMIT)
    return TICKS_LIMIT


def _present(topology: Topology, asked: Asked) -> Consensus:
    step = averaging.mixing_step(topology, asked.weights)
    x = averaging.random_values(topology.nodes, asked.dimension, generator(asked.seed))
    limit = averaging.rounds_limit(topology.edge_count * asked.dimension)
    done = run(averaging.mixed([step], x), x, asked.epsilon, asked.rounds, limit)
    slowest = averaging.tail(step, x, limit)
    note = f"the contraction had not settled after {slowest.rounds} rounds"
    return _static(topology, asked, done, slowest, [] if slowest.settled else [note])


def _old(topology: Topology, asked: Asked) -> Consensus:
    require_whole("max-delay", asked.max_delay, 0, OLDEST)
    kept = (asked.max_delay + 1) * topology.nodes * asked.dimension
    require_held("max-delay", asked.max_delay, kept)
    limit = averaging.rounds_limit(2 * topology.edge_count * asked.dimension + kept, asked.rounds)
    rng = generator(asked.seed)
    x = averaging.random_values(topology.nodes, asked.dimension, rng)
    process = OldValues(topology, asked.weights, x, asked.max_delay, rng)
    done = run(process, x, asked.epsilon, asked.rounds, limit)
    slowest = process.tail(limit)
    notes = ["no formula predicts the contraction with delays; what stands beside it is that without"]
    if not slowest.settled:
        text = "the contraction may not have settled: on so many nodes and edges it is that of"
        notes.append(f"{text} {slowest.rounds} rounds")
    return _static(topology, asked, done, slowest, notes, delayed=True)


def _static(
    topology: Topology, asked: Asked, done: Approach, slowest: Tail, notes: list[str], *, delayed: bool = False
) -> Consensus:
    rate = spectrum(topology, asked.weights).mixing_rate
    word = "undelayed" if delayed else "predicted"
    facts = {
        **_about(topology, topology.edge_count, "delay" if delayed else "sync", asked),
        "weights": asked.weights,
        **({"max_delay": asked.max_delay} if delayed else {}),
        f"{word}_contraction": rate,
        "measured_contraction": slowest.contraction,
        **({} if delayed else {"settled": slowest.settled}),
        f"{word}_rounds": rounds_to_consensus(rate, asked.epsilon),
        "measured_rounds": done.reached,
        "measured_messages": None if done.reached is None else 2 * topology.edge_count * done.reached,
        "mean_drift": done.mean_drift,
    }
    # the prediction is for the worst start: no other is farther away
    return _consensus(facts, done, lambda t: rate**t, notes)


def _gossip(topology: Topology, asked: Asked) -> Consensus:
    known = averaging.bracket(topology, asked.epsilon)
    runs = asked.runs
    if runs is None:  # two may be late: fewer cannot tell the quantile
        enough = min(averaging.RUNS_LIMIT, max(100, math.ceil(2.0 / asked.epsilon)))
        runs = min(enough, max(1, averaging.VALUES_LIMIT // topology.nodes))
    require_held("runs", runs, topology.nodes * runs)
    # to look at 500 nodes, once in 128 ticks, takes as long as the ticks
    most = max(1, GOSSIP_WORK // (runs * (1 + topology.nodes // 500)))
    if asked.rounds is not None:
        require_whole("rounds", asked.rounds, 1, min(TICKS_LIMIT, 10 * most))
    limit = min(most, math.ceil(known.high)) if asked.rounds is None else asked.rounds
    done = averaging.gossip(topology, asked.epsilon, runs=runs, limit=limit, rng=generator(asked.seed))
    ticks = averaging_ticks(done.reached, asked.epsilon)
    facts = {
        **_about(topology, topology.edge_count, "gossip", asked),
        "runs": runs,
        "expected_matrix_eigenvalue": known.eigenvalue,
        "predicted_ticks_low": known.low,
        "predicted_ticks_high": known.high,
        "measured_ticks": ticks,
        "median_ticks": averaging_ticks(done.reached, 0.5),
        "measured_messages": None if ticks is None else 2 * ticks,
        "mean_drift": done.mean_drift,
    }
    history = [{"tick": t, "distance": far, "predicted": known.eigenvalue ** (t / 2)} for t, far in done.history]
    few = [f"{runs} runs are few for a probability of {asked.epsilon:g}"] if runs * asked.epsilon < 1 else []
    return Consensus(facts, history, (*few, *_unreached(ticks, limit, "ticks")))


def _about(graph: Topology | Schedule, edges: int, mode: str, asked: Asked) -> dict[str, Any]:
    about = {"spec": graph.spec, "seed": asked.seed, "nodes": graph.nodes, "edges": edges}
    return {**about, "mode": mode, "epsilon": asked.epsilon}


def _consensus(
    facts: dict[str, Any], done: Approach, predicted: Callable[[int], float], notes: Sequence[str] = ()
) -> Consensus:
    rows = [{"round": t, "distance": far, "predicted": predicted(t)} for t, far in enumerate(done.distances)]
    return Consensus(facts, rows, (*notes, *_unreached(done.reached, len(rows) - 1)))


def _exact_after(schedule: Schedule, x: Array) -> int | None:
    """The round in which the distance dropped to zero at once, as only a product of J/n makes it."""
    states = averaging.mixed([mixing.apply for mixing in schedule.mixings], x)
    done = run(states, x, averaging.VANISHED, None, max(schedule.period, 2 * schedule.nodes.bit_length()))
    return done.reached if done.reached is not None and done.distances[-2] > np.sqrt(averaging.VANISHED) else None


def _unreached(reached: int | None, limit: int, unit: str = "rounds") -> tuple[str, ...]:
    return () if reached is not None else (f"epsilon was not reached within {limit} {unit}",)
