"""Runs a federation as arrays, and makes a report of the same shape as the exact simulator's.

It is a model of that simulator: `apart` has its algorithm and its clock, `in-step` the mathematics alone. What is left
out, and by how much it was off: docs/how-to/simulate.md.
"""

from __future__ import annotations

import dataclasses
import math
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from statistics import fmean
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from p2pfl.chance import stream
from p2pfl.compress import Fragments
from p2pfl.config.cores import FARTHEST
from p2pfl.config.model import FederationConfig
from p2pfl.core.census import SEND_WITHIN_S, SOON_FOR_S, SOON_S
from p2pfl.core.messages import Ready, Reply, Request
from p2pfl.core.training import LEAST_BEYOND, SPREAD
from p2pfl.learn.interface import Score
from p2pfl.reporting.figures import ClosingPoint, configuration, contraction_between, predicted, spread
from p2pfl.reporting.history import Point
from p2pfl.reporting.measures import measures_in, metrics_in, rounded, spreads
from p2pfl.reporting.report import Batching, Contraction, Cost, EdgeTraffic, NodeReport, Report
from p2pfl.reporting.sketch import consensus_distance
from p2pfl.reporting.status import MeanAndMax
from p2pfl.wire import PREFIX_BYTES, header_bytes
from sim.arrays.clock import NEVER, Clock, Course
from sim.arrays.foresight import check_arrays_memory, foreseen
from sim.arrays.in_step import InStep
from sim.arrays.setting import Setting, is_directed, setting_of
from sim.arrays.training import Rounds
from sim.arrays.vectors import Vectors
from sim.kernel import NS
from sim.links import GOODBYE_BYTES, LOWER_OPENING_BYTES, UPPER_OPENING_BYTES, sealed_bytes
from sim.report import KIBI, MOST_EVALUATED, distance
from sim.simulation import RunProgress
from sim.worlds.drawn import sample
from sim.worlds.model import WorldSpec
from sim.worlds.speeds import node_speeds
from topologies import Topology, build_schedule
from topologies.schedule import MixingMatrix
from topologies.spectral import plain_extremes

Word = Literal["apart", "in-step"]
POINTS = 40
LATEST_SOURCES = 16
"""Of so many nodes that were the last to be through, the word is followed to every other node."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Traffic:
    """The bytes and messages that each node has sent (n,)."""

    bytes_sent: NDArray[np.int64]
    messages_sent: NDArray[np.int64]


@dataclasses.dataclass(slots=True, kw_only=True)
class Moment:
    """Where a run stands: how far, out of `whole`, and in which unit its history counts."""

    done: float
    whole: float
    time_s: float
    rounds: NDArray[np.int64]
    closing: bool
    exchanges: float
    """How often each edge of a round has exchanged, on average."""


class Apart:
    """Nodes with clocks of their own."""

    def __init__(self, setting: Setting, train: Rounds) -> None:
        federation, world = setting.federation, setting.world
        latency_s = setting.latencies_s()
        speeds = node_speeds(world, federation)
        steps = setting.steps.tolist()

        def round_s(nodes: NDArray[np.int64]) -> NDArray[np.float64]:
            return np.array([speeds[node].round_ns(steps[node], 0) for node in nodes.tolist()]) / NS

        rounds = federation.training.rounds or 0
        graph = _Graph(setting.nodes, setting.ends)
        start_s, most = graph.start_s(setting.ends, latency_s), beyond(federation)
        self.whole_s = fmean(speed.estimate_ns(own) for speed, own in zip(speeds, steps, strict=True)) / NS * rounds
        self.look_s = world.evaluate_every_s or self.whole_s / POINTS
        self.clock = Clock(
            Course(
                nodes=setting.nodes,
                ends=setting.ends,
                latency_s=latency_s,
                engine_s=world.compute.engine_s,
                shortest_s=min(speed.estimate_ns(own) for speed, own in zip(speeds, steps, strict=True)) / NS,
                round_s=round_s,
                start_s=start_s,
                rounds=rounds,
                beyond=most,
                closing=federation.training.closing_rounds,
                weigh=setting.weights_by_staleness(),
                factor=setting.factor,
                known_s=lambda through: graph.known_s(through, latency_s, start_s, rounds, most),
            )
        )
        self.vectors = Vectors(
            torch.from_numpy(setting.learners.prototype.initial()).to(setting.device),
            setting.samples,
            setting.ends,
            train,
            compressor=setting.compressor,
            drift=setting.drift,
            beta=getattr(setting.method, "beta", 0.0),
        )

    @property
    def x(self) -> torch.Tensor:
        return self.vectors.x

    def run(self) -> Iterator[Moment]:
        for events in self.clock.windows(self.look_s):
            self.vectors.carry_out(events)
            closing = bool((self.clock.closed_at < np.inf).any())
            yield Moment(
                done=self.clock.now_s,
                whole=self.whole_s,
                time_s=self.clock.now_s,
                rounds=self.clock.rounds,
                closing=closing,
                exchanges=float(self.clock.exchanged.mean()) if closing else 0.0,
            )

    @property
    def messages(self) -> NDArray[np.int64]:
        """How many requests and how many replies each edge has carried (2, m)."""
        return np.stack([self.clock.exchanged, self.clock.exchanged])

    @property
    def words(self) -> NDArray[np.int64]:
        return self.clock.words

    @property
    def staleness(self) -> MeanAndMax | None:
        clock = self.clock
        return MeanAndMax(mean=clock.staleness_sum / max(1, clock.weighed), max=clock.staleness_max)


class Together:
    """All nodes in step."""

    def __init__(self, setting: Setting, train: Rounds) -> None:
        federation = setting.federation
        nodes, lists = setting.nodes, federation.schedule or (federation.edges,)
        graphs = [np.array(edges, dtype=np.int64).reshape(-1, 2) for edges in lists]
        mixings = _mixings(federation) if is_directed(federation) else ()
        links = [np.stack([one.senders, one.receivers], axis=1) for one in mixings]
        links = links or [np.concatenate([graph, graph[:, ::-1]]) for graph in graphs]
        self.setting, self.links = setting, [link @ [nodes, 1] for link in links]
        """The senders and receivers of each round of a period, as sender times n plus receiver."""
        if isinstance(setting.compressor, Fragments):
            count = setting.compressor.count
            graphs = [graph[graph.sum(axis=1) % count == kind] for graph in graphs for kind in range(count)]
        degrees = [np.bincount(graph.ravel(), minlength=nodes) for graph in graphs]
        most = degrees if isinstance(setting.compressor, Fragments) else [np.max(degrees, axis=0)] * len(graphs)
        self.stage = InStep(
            torch.from_numpy(setting.learners.prototype.initial()).to(setting.device),
            setting.samples,
            [(graph, setting.factors(graph, each)) for graph, each in zip(graphs, most, strict=True) if not mixings],
            train,
            compressor=setting.compressor,
            drift=setting.drift,
            beta=getattr(setting.method, "beta", 0.0),
            mixings=mixings,
        )
        self.done = 0
        self.words = np.zeros(setting.nodes, np.int64)
        self.staleness: MeanAndMax | None = None

    @property
    def x(self) -> torch.Tensor:
        return self.stage.x

    def run(self) -> Iterator[Moment]:
        training = self.setting.federation.training
        rounds = training.rounds or 0
        for done in self.stage.run(rounds, training.closing_rounds):
            self.done = done
            own = np.full(self.setting.nodes, min(done, rounds))
            now = float(done)
            yield Moment(done=now, whole=rounds, time_s=now, rounds=own, closing=done > rounds, exchanges=now)

    @property
    def messages(self) -> NDArray[np.int64]:
        """How many messages each edge has carried from its lower end, and how many from its upper one (2, m)."""
        nodes, ends, period = self.setting.nodes, self.setting.ends, len(self.links)
        keys = np.stack([ends @ [nodes, 1], ends @ [1, nodes]])
        times = [(self.done - phase + period - 1) // period for phase in range(period)]
        used = [many * np.isin(keys, links) for many, links in zip(times, self.links, strict=True)]
        return np.asarray(np.sum(used, axis=0), dtype=np.int64)


def _mixings(federation: FederationConfig) -> tuple[MixingMatrix, ...]:
    return build_schedule(federation.topology, len(federation.members), federation.seed).mixings


class _Graph:
    """Distances between nodes, in hops."""

    def __init__(self, nodes: int, ends: NDArray[np.int64]) -> None:
        self.nodes = nodes
        source, target = np.concatenate([ends, ends[:, ::-1]]).T
        order = np.argsort(source, kind="stable")
        self.target, self.edge = target[order], order % max(1, len(ends))
        self.first = np.searchsorted(source[order], np.arange(nodes + 1))

    def hops_from(self, node: int) -> NDArray[np.int64]:
        found = np.full(self.nodes, -1, np.int64)
        found[node], front, hop = 0, np.array([node]), 0
        while len(front):
            hop += 1
            reach = np.concatenate([self.target[self.first[one] : self.first[one + 1]] for one in front.tolist()])
            front = np.unique(reach[found[reach] < 0])
            found[front] = hop
        return found

    def start_s(self, ends: NDArray[np.int64], latency_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return when each node begins: a level of `p2pfl.core.joining` after the other, up to the farthest node's."""
        at = np.zeros(self.nodes)
        for _ in range(min(FARTHEST, int(self.hops_from(0).max()))):
            before, at = at, np.zeros(self.nodes)
            for one, other in (ends.T, ends.T[::-1]):
                np.maximum.at(at, one, before[other] + latency_s)
        return at

    def known_s(
        self,
        through_s: NDArray[np.float64],
        latency_s: NDArray[np.float64],
        start_s: NDArray[np.float64],
        rounds: int,
        most: int | None,
    ) -> NDArray[np.float64]:
        """Return when each node knows that all are through, from when each began and was through, and the latencies."""
        latest = np.argsort(through_s)[-LATEST_SOURCES:].tolist()
        known, everything = through_s.copy(), (1 << len(latest)) - 1
        told, due = [0] * self.nodes, [NEVER] * self.nodes
        hops, first = list(zip(self.target.tolist(), latency_s[self.edge].tolist(), strict=True)), self.first.tolist()
        events = [(float(through_s[node]), node, 1 << bit) for bit, node in enumerate(latest)]
        heapify(events)
        while events:
            at, node, word = heappop(events)
            if word & ~told[node]:
                told[node] |= word
                if told[node] == everything:
                    known[node] = max(at, known[node])
                began, own = float(start_s[node]), float(through_s[node])
                send_at = at if told[node] == everything else at + _may_hold_s(at, began, own, rounds, most)
                if send_at < due[node]:
                    due[node] = send_at
                    heappush(events, (send_at, node, 0))
            elif not word and at == due[node]:
                due[node] = NEVER
                for other, hop_s in hops[first[node] : first[node + 1]]:
                    if told[node] & ~told[other]:
                        heappush(events, (at + hop_s, other, told[node]))
        return known


def _may_hold_s(at_s: float, start_s: float, through_s: float, rounds: int, most: int | None) -> float:
    """Return how long a node that is through at `through_s` holds word at `at_s`.

    It is what `p2pfl.core.census` allows, or until its next round ends, of the `rounds` or of those beyond: that is
    told in any case.
    """
    own_s, hold_s = through_s - start_s, SEND_WITHIN_S
    round_s = own_s / max(1, rounds)
    if at_s < through_s or most is None:
        return min(hold_s, (through_s - at_s) % round_s)
    if at_s < through_s + SOON_FOR_S:
        hold_s = SOON_S
    place = math.ceil(most * math.log(max(1.0, (at_s - start_s - round_s) / own_s), SPREAD))
    if place > most or not most:
        return hold_s
    return min(hold_s, start_s + own_s * math.pow(SPREAD, max(1, place) / most) + round_s - at_s)


def beyond(federation: FederationConfig) -> int | None:
    """Return how many rounds a node may train beyond those asked, while others are at work; None without a bound."""
    rounds, how = federation.training.rounds or 0, federation.training.when_through
    bounds = {"mix": 0, "train": max(LEAST_BEYOND, rounds // 10), "train-on": None}
    return bounds[how]


def simulate_arrays(
    federation: FederationConfig,
    world: WorldSpec,
    *,
    data: Mapping[str, Mapping[str, Any]] | None,
    clock: Word = "apart",
    device: str | None = None,
    on_progress: Callable[[RunProgress], None] | None = None,
    on_models: Callable[[NDArray[Any]], object] | None = None,
) -> Report:
    """Simulate as arrays; `world` is settled. Raises UserError for what arrays cannot simulate."""
    began, wall = time.process_time(), time.monotonic()
    setting = setting_of(federation, world, data, clock=clock, device=device)
    check_arrays_memory(setting, in_step=clock == "in-step")
    train = Rounds(setting.grouped, setting.method, setting.device)
    stage: Apart | Together = Apart(setting, train) if clock == "apart" else Together(setting, train)
    figures = _Figures(setting, train, stage)
    to_do = setting.nodes * (federation.training.rounds or 0)
    if on_progress is not None:
        words = foreseen(setting, train, in_step=clock == "in-step")
        on_progress(RunProgress(time_s=0.0, rounds=0, rounds_to_do=to_do, point=None, foreseen=words))
    ready, tested_s = time.process_time(), 0.0
    next_at = 0.0
    moment: Moment | None = None
    for moment in stage.run():
        if moment.closing:
            figures.look_at_mixing(moment)
        if moment.done >= next_at:
            since = time.process_time()
            figures.look(moment)
            tested_s += time.process_time() - since
            every = world.evaluate_every_s or moment.whole / POINTS
            if len(figures.history) > 2 * POINTS:  # longer than expected: some nodes are much slower than the others
                every = max(every, moment.done / POINTS)
            next_at = (moment.done // every + 1) * every
            if on_progress is not None:
                on_progress(
                    RunProgress(
                        time_s=moment.time_s,
                        rounds=int(moment.rounds.sum()),
                        rounds_to_do=to_do,
                        point=figures.history[-1],
                        measures=tuple(figures.measures),
                    )
                )
    if moment is None:
        raise ValueError("a federation without rounds")
    since = time.process_time()
    figures.look(moment)
    ran = time.process_time()
    models = stage.x.cpu().numpy()
    if on_models is not None:
        on_models(models)
    report = figures.report(moment, models)
    node_rounds = int(moment.rounds.sum())
    run_s = since - ready - tested_s
    report.cost = Cost(
        cpu_s=time.process_time() - began,
        set_up_cpu_s=ready - began,
        run_cpu_s=run_s,
        evaluation_cpu_s=tested_s + ran - since,
        report_cpu_s=time.process_time() - ran,
        node_rounds=node_rounds,
        node_rounds_per_cpu_s=node_rounds / run_s if run_s > 0 else None,
        events=0,
    )
    report.batching = Batching(operations=f"arrays, {clock}", training=train.how)
    report.wall_time_s = round(time.monotonic() - wall, 3)
    return report


class _Figures:
    """What is measured of a run, and its report."""

    def __init__(self, setting: Setting, train: Rounds, stage: Apart | Together) -> None:
        self.setting, self.train, self.stage = setting, train, stage
        chosen = stream(setting.federation.seed, "evaluated")
        everybody = range(setting.nodes)
        few = setting.nodes <= MOST_EVALUATED
        self.sample = np.array(list(everybody) if few else sorted(sample(chosen, everybody, MOST_EVALUATED)))
        if isinstance(stage, Apart):
            stage.vectors.watch(self.sample)
        self.measures = measures_in(setting.learners.prototype, None)
        self.history: list[Point] = []
        self.mixing: list[ClosingPoint] = []
        self.trained = 0

    def look_at_mixing(self, moment: Moment) -> None:
        """Note how far apart the models are after each exchange of all edges, from when nobody trains any more."""
        trained = int(moment.rounds.sum())
        if trained > self.trained:
            self.trained, self.mixing = trained, []
        if not self.mixing or moment.exchanges >= self.mixing[-1].exchanges + 1:
            square = float(self.stage.x.var(dim=0, correction=0).sum())
            self.mixing.append(ClosingPoint(square**0.5, moment.exchanges))

    def look(self, moment: Moment) -> None:
        """Add a point to the history."""
        shown = self.stage.x[torch.as_tensor(self.sample)]
        if isinstance(self.stage, Apart):  # as in the exact simulator, a node that trains shows what it began with
            trains = torch.from_numpy(self.stage.clock.closed_at[self.sample] == np.inf)
            shown[trains] = self.stage.vectors.begun[trains]
        rows = shown.cpu().numpy()
        scores = self._scores(rows, "test", self.sample)
        traffic = self._traffic()
        self.history.append(
            Point(
                time_s=moment.time_s,
                rounds=spread(moment.rounds.tolist()),
                accuracy=spread(score.accuracy for score in scores if score),
                loss=spread(score.loss for score in scores if score),
                metrics=spreads(metrics_in(score) for score in scores if score),
                train_loss=spread(_known(self.train.losses[self.sample])),
                consensus_distance=consensus_distance(rows.astype(np.float64)) if len(rows) > 1 else None,
                staleness=self.stage.staleness,
                bytes_sent=int(traffic.bytes_sent.sum()),
                messages_sent=int(traffic.messages_sent.sum()),
                running=self.setting.nodes,
                evaluated=len(self.sample),
            )
        )

    def report(self, moment: Moment, models: NDArray[Any]) -> Report:
        federation, setting = self.setting.federation, self.setting
        everybody = np.arange(setting.nodes)
        test, local = (self._scores(models, part, everybody) for part in ("test", "local"))
        traffic, asked = self._traffic(), federation.training.rounds or 0
        nodes = [
            NodeReport(
                name=federation.members[node].name,
                state="finished",
                finished=True,
                rounds=int(moment.rounds[node]),
                rounds_beyond=max(0, int(moment.rounds[node]) - asked),
                accuracy=None if score is None else score.accuracy,
                test_loss=None if score is None else score.loss,
                local_accuracy=None if own is None else own.accuracy,
                metrics={} if score is None else metrics_in(score),
                test_samples=None if score is None else score.samples,
                intervals={} if score is None else rounded(score.intervals),
                local_metrics={} if own is None else metrics_in(own),
                loss=None if np.isnan(self.train.losses[node]) else float(self.train.losses[node]),
                samples=int(setting.samples[node]),
                bytes_sent=int(traffic.bytes_sent[node]),
                messages_sent=int(traffic.messages_sent[node]),
            )
            for node, score, own in zip(range(setting.nodes), test, local, strict=True)
        ]
        sent = EdgeTraffic(edges=len(setting.ends), bytes_sent=int(traffic.bytes_sent.sum()))
        rate = None if is_directed(federation) else predicted(federation, setting.samples.tolist(), setting.size)
        graph = plain_extremes(Topology(federation.topology, setting.nodes, federation.edges, federation.seed))
        return Report(
            nodes=nodes,
            topology=federation.topology,
            algebraic_connectivity=graph.low,
            rounds={node.name: node.rounds for node in nodes},
            rounds_asked=federation.training.rounds,
            rounds_beyond=spread(node.rounds_beyond for node in nodes),
            accuracy=spread(node.accuracy for node in nodes),
            local_accuracy=spread(node.local_accuracy for node in nodes),
            loss=spread(node.test_loss for node in nodes),
            measures=self.measures,
            metrics=spreads(node.metrics for node in nodes),
            local_metrics=spreads((node.local_metrics for node in nodes), defined=True),
            consensus_distance=distance(models, everybody.tolist()),
            bytes_sent=sent.bytes_sent,
            messages_sent=int(traffic.messages_sent.sum()),
            compressors={federation.gossip.compressor: sent},
            virtual_time_s=moment.time_s if isinstance(self.stage, Apart) else None,
            staleness=self.stage.staleness,
            contraction=Contraction(predicted=rate, measured=contraction_between(self.mixing)),
            rule=federation.gossip.rule,
            reached_limit=False,
            history=self.history,
            config=configuration(federation),
            seed=federation.seed,
            simulated=True,
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBI,
        )

    def _scores(self, rows: NDArray[Any], part: str, nodes: NDArray[np.int64]) -> list[Score | None]:
        return self.train.evaluate(rows, part, nodes)

    def _traffic(self) -> Traffic:
        """Count what each node has sent: its sessions, its requests or replies, and words."""
        setting, (low, high) = self.setting, self.setting.ends.T
        size = setting.size if setting.compressor is None else 0
        body = 4 * size if setting.compressor is None else setting.compressor.size_bytes(setting.size)
        terms = setting.method.no_terms
        request = Request(
            incarnation=0, seq=1000, version=1000, echo=1000, weight=7.1, staleness=1.0, pace_s=0.1, terms=terms,
            audit=b"", body=b"",
        )  # fmt: skip
        reply = Reply(
            incarnation=0, seq=1000, request_digest=bytes(16), version=1000, factor=7.1, pace_s=0.1, terms=terms,
            weight=7.1, body=b"",
        )  # fmt: skip
        asked, answered = (sealed_bytes(PREFIX_BYTES + header_bytes(one), body) for one in (request, reply))
        word = sealed_bytes(PREFIX_BYTES + header_bytes(Ready(version=1000, trained=1000, bound=1000, known=2**60)), 0)
        (asks, answers), nodes = self.stage.messages, setting.nodes
        once = np.ones(len(low), np.int64)
        sent = np.bincount(low, asked * asks + once * (LOWER_OPENING_BYTES + GOODBYE_BYTES), nodes)
        sent += np.bincount(high, answered * answers + once * (UPPER_OPENING_BYTES + GOODBYE_BYTES), nodes)
        sent += word * self.stage.words
        messages = np.bincount(low, asks, nodes) + np.bincount(high, answers, nodes) + self.stage.words
        return Traffic(bytes_sent=sent.astype(np.int64), messages_sent=messages.astype(np.int64))


def _known(values: NDArray[np.float64]) -> list[float]:
    return [float(value) for value in values if not np.isnan(value)]
