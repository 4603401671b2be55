"""Runs a federation as arrays, and makes a report of the same shape as the exact simulator's.

It is a model of that simulator: `apart` has its algorithm and its clock, `in-step` the mathematics alone. What is left
out, and by how much it was off: docs/how-to/simulate.md. Hidden models have the rounds of real nodes, in step (`sums`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, takewhile
from statistics import fmean
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from p2pfl.compress import Fragments, make_compressor
from p2pfl.config.graph import hops
from p2pfl.config.model import FederationConfig
from p2pfl.console.output import size
from p2pfl.core.messages import Ready, Reply, Request
from p2pfl.core.settings import LIMIT, parse_staleness
from p2pfl.core.training import begins_beyond
from p2pfl.features.sums.rounds import bytes_each
from p2pfl.reporting.figures import ClosingPoint, contraction_between, predicted
from p2pfl.reporting.measures import Point, measures_in, rounds_beyond, spread
from p2pfl.reporting.report import Contraction, NodeReport, Report
from p2pfl.reporting.status import MeanAndMax
from p2pfl.wire import PREFIX_BYTES, to_header
from sim.arrays.clock import NEVER, Clock, Timing
from sim.arrays.in_step import InStep, by_rule_of
from sim.arrays.setting import Setting, is_directed, memory_of, refuse_far, setting_of
from sim.arrays.sums import Sums
from sim.arrays.vectors import CHUNK_FLOATS, Vectors
from sim.federations import arrays_bytes, refuse_too_large
from sim.kernel import NS
from sim.learning.nodes import success
from sim.learning.rounds import Rounds
from sim.network import GOODBYE_BYTES, LOWER_OPENING_BYTES, UPPER_OPENING_BYTES, sealed_bytes, slow_ends
from sim.network import latency_s as latency_s_of
from sim.progress import RunProgress, duration
from sim.report import cost_of, evaluated, point_of, report_of, scored
from sim.worlds.model import WorldSpec
from sim.worlds.settling import settle
from sim.worlds.timeline import node_speeds
from topologies import build_schedule

PER_ROUND = 1.5
"""Exchanges of an edge in a round of nodes that are apart, measured beside the exact simulator."""
PASSES = 20
"""An exchange without its compressor takes as long as so many copies of a model."""


def checked_bytes(setting: Setting, *, in_step: bool) -> int:
    """Return the bytes that a run needs, with its data, which are there. Raises UserError if the others are not
    available; on a GPU that is left to torch.
    """
    shape: dict[str, Any] = {"nodes": setting.nodes, "edges": len(setting.ends), "size": setting.size}
    replicas, corrected = setting.compressor is not None, len(setting.method.kept) or bool(setting.method.given)
    needed = arrays_bytes(**shape, in_step=in_step, replicas=replicas, corrected=corrected)
    if setting.device.type == "cpu":
        refuse_too_large(needed, **shape)
    rows = setting.grouped.pool.rows
    return needed + rows.inputs.nbytes + rows.targets.nbytes


def foresee(federation: FederationConfig, data: Mapping[str, Mapping[str, Any]]) -> str:
    """Say what a run apart will take in the usual world. Raises UserError for what arrays cannot simulate."""
    world = settle(WorldSpec(), len(federation.members), federation.seed)
    setting = setting_of(federation, world, data, clock="apart", device=None)
    needed = checked_bytes(setting, in_step=False)
    train = Rounds(setting.grouped, setting.method, setting.device, own_draws=False)
    return foreseen(setting, train, needed, in_step=False)


def foreseen(setting: Setting, train: Rounds, needed: int, *, in_step: bool) -> str:
    """Say what the run will take, also `needed` bytes. Times a local round of a few nodes, and their compressor."""
    nodes = np.arange(min(setting.nodes, max(1, CHUNK_FLOATS // setting.size)))
    if setting.federation.hides is not None:
        sums = Sums(setting, train)
        cpu_s = setting.rounds * setting.nodes * _took(lambda: sums.sum_of(nodes, 0)) / len(nodes)
        train.losses[:] = np.nan
        return _foreseen(cpu_s, needed)
    models, compressor = setting.initial.repeat(len(nodes), 1), setting.compressor
    given = torch.zeros_like(models) if setting.method.given else None
    round_s = _took(lambda: train(nodes, 0 * nodes, models.clone(), given))
    train.losses[:] = np.nan
    moved_s, shown_s = PASSES * _took(models.clone), 0.0
    if compressor is not None and not isinstance(compressor, Fragments):
        rows = np.random.default_rng(0).normal(size=models.shape).astype(np.float32)
        chances = nodes.tolist() if compressor.random else None
        shown_s = _took(lambda: compressor.quantize_rows(rows, chances=chances))
    mixings = setting.rounds + setting.federation.training.closing_rounds
    mixed = mixings * (1 if in_step else PER_ROUND) * len(setting.ends)
    shown = mixings * setting.nodes if in_step else 2 * mixed
    cpu_s = (setting.rounds * setting.nodes * round_s + mixed * moved_s + shown * shown_s) / len(nodes)
    return _foreseen(cpu_s, needed)


def _foreseen(cpu_s: float, needed: int) -> str:
    return f"about {duration(max(1.0, cpu_s))} of CPU for the rounds, {size(needed)} of memory"


def _took(call: Callable[[], object]) -> float:
    """Return the CPU time of a call, after one that warms up."""
    call()
    began = time.process_time()
    call()
    return time.process_time() - began


Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
POINTS = 40
PART = 256
"""How many models are looked at at a time."""
MOST_PAIRED = 500
"""Up to so many nodes that are apart, or hide their models, draw the batches that they draw as real ones."""
PASSES = 6
"""A sum's trips over the graph: its wave goes out, parts come back, list and total go out, votes and secrets both ways.
"""
ROWS_ENTRIES = 2
"""Before the first round is a sum of the nodes' rows, and of a salt."""


class Moment(NamedTuple):
    """Where a run stands: in seconds if nodes are apart, in rounds if they are in step."""

    now: float
    rounds: Integers
    """The rounds that each node has trained (n,)."""
    exchanges: float | None
    """How often each edge of a round has exchanged, on average; None before the first closing round."""
    staleness: MeanAndMax | None = None


class Apart:
    """Nodes with clocks of their own."""

    def __init__(self, setting: Setting, train: Rounds) -> None:
        federation, world = setting.federation, setting.world
        speeds, steps = node_speeds(world, federation), setting.steps.tolist()
        usual_ns = [speed.estimate_ns(own) for speed, own in zip(speeds, steps, strict=True)]
        rounds, (far_s, _), weigh = setting.rounds, slow_ends(world.slow), parse_staleness(federation.gossip.staleness)
        latency_s = np.array([latency_s_of(edge, world.links, far_s, federation.seed) for edge in federation.edges])
        refuse_far(setting, latency_s, np.array(usual_ns) / NS)
        begins = takewhile(lambda multiple: multiple < NEVER, (begins_beyond(1 + done, rounds) for done in count()))
        more = {"mix": (), "train": tuple(begins)}.get(federation.training.when_through)
        self.every = world.evaluate_every_s or fmean(usual_ns) / NS * rounds / POINTS
        self.clock = Clock(
            Timing(
                nodes=setting.nodes,
                ends=setting.ends,
                latency_s=latency_s,
                engine_s=world.compute.engine_s,
                shortest_s=min(usual_ns) / NS,
                round_s=lambda nodes: np.array([speeds[node].round_ns(steps[node]) for node in nodes.tolist()]) / NS,
                start_s=_start_s(federation, setting.ends, latency_s),
                rounds=rounds,
                beyond=more,
                closing=federation.training.closing_rounds,
                weigh=np.array([weigh(tau) for tau in range(LIMIT + 2)]),
                factor=setting.factor,
                replicas=setting.compressor is not None,
            )
        )
        self.stage = Vectors(ends=setting.ends, train=train, **_kept(setting))
        self.words = self.clock.words

    @property
    def messages(self) -> Sequence[NDArray[Any]]:
        """How many requests and how many replies each node has sent (n,)."""
        clock = self.clock
        return [np.bincount(end, clock.exchanged, clock.timing.nodes) for end in (clock.low, clock.high)]

    def run(self) -> Iterator[Moment]:
        clock = self.clock
        for events in clock.windows(self.every):
            self.stage.carry_out(events)
            exchanges = float(clock.exchanged.mean()) if (clock.closed >= 0).any() else None
            staleness = MeanAndMax(mean=clock.staleness_sum / max(1, clock.weighed), max=clock.staleness_max)
            yield Moment(clock.now_s, clock.rounds, exchanges, staleness)


class Together:
    """All nodes in step."""

    def __init__(self, setting: Setting, train: Rounds) -> None:
        federation, nodes, fragments = setting.federation, setting.nodes, setting.compressor
        graphs = [np.array(edges, np.int64).reshape(-1, 2) for edges in federation.schedule or (federation.edges,)]
        directed = is_directed(federation)
        mixings = build_schedule(federation.topology, nodes, federation.seed).mixings if directed else ()
        links = [np.stack([mixing.senders, mixing.receivers], axis=1) for mixing in mixings]
        links = links or [np.concatenate([graph, graph[:, ::-1]]) for graph in graphs]
        self.setting, self.links = setting, links
        """The senders and receivers of each round of a period."""
        degrees = [np.array(federation.degrees)] * len(graphs)
        if isinstance(fragments, Fragments):
            kinds = range(fragments.count)
            graphs = [graph[graph.sum(axis=1) % fragments.count == kind] for graph in graphs for kind in kinds]
            degrees = [np.bincount(graph.ravel(), minlength=nodes) for graph in graphs]
        by_rule = by_rule_of(setting)
        mixed = [] if directed or by_rule else list(zip(graphs, map(setting.factors, graphs, degrees), strict=True))
        self.stage = InStep(graphs=mixed, train=train, mixings=mixings, by_rule=by_rule, **_kept(setting))
        self.rounds = setting.rounds
        self.every = setting.world.evaluate_every_s or self.rounds / POINTS
        self.done = 0
        self.words = np.zeros(nodes, np.int64)

    def run(self) -> Iterator[Moment]:
        training = self.setting.federation.training
        trains, every = training.trained_rounds or self.rounds, self.rounds + training.closing_rounds
        for done in self.stage.run(trains, every - trains):
            self.done, closing = done, done > trains
            trained = np.full(self.setting.nodes, min(done, trains))
            yield Moment(float(done), trained, float(done) if closing else None)

    @property
    def messages(self) -> Sequence[NDArray[Any]]:
        """How many messages each node has sent to nodes above it and to nodes below it (n,)."""
        sent, period = np.zeros((2, self.setting.nodes)), len(self.links)
        for phase, link in enumerate(self.links):
            times = (self.done - phase + period - 1) // period
            np.add.at(sent, ((link[:, 0] > link[:, 1]).astype(int), link[:, 0]), times)
        return list(sent)


class Summed:
    """Nodes with hidden models: all train a round, then there is a sum. The virtual time of both is the slowest node's
    and that of `PASSES` trips from the lowest node to the farthest one, at the slowest latency. Set-ups are left out.
    """

    def __init__(self, setting: Setting, train: Rounds) -> None:
        federation, world = setting.federation, setting.world
        self.setting, self.stage = setting, Sums(setting, train)
        self.speeds, (far_s, _) = node_speeds(world, federation), slow_ends(world.slow)
        trip_s = max(latency_s_of(edge, world.links, far_s, federation.seed) for edge in federation.edges)
        self.sum_s = PASSES * hops(federation, 0) * (trip_s + world.compute.engine_s)
        usual_ns = max(speed.estimate_ns(own) for speed, own in zip(self.speeds, setting.steps.tolist(), strict=True))
        self.every = world.evaluate_every_s or (usual_ns / NS + self.sum_s) * setting.rounds / POINTS
        self.done = 0

    def run(self) -> Iterator[Moment]:
        now_s, steps = self.sum_s, self.setting.steps.tolist()
        for done in self.stage.run(self.setting.rounds):
            trained_ns = max(speed.round_ns(own) for speed, own in zip(self.speeds, steps, strict=True))
            self.done, now_s = done, now_s + trained_ns / NS + self.sum_s
            yield Moment(now_s, np.full(self.setting.nodes, done), None)

    @property
    def bytes_each(self) -> int:
        """The bytes that each node has sent, as `p2pfl check` estimates them, and those of the sum of rows."""
        nodes = self.setting.nodes
        return bytes_each(ROWS_ENTRIES, nodes) + self.done * bytes_each(self.stage.entries, nodes)


def _kept(setting: Setting) -> dict[str, Any]:
    """Return the model (d,) with which all nodes begin, and what decides which vectors are kept beside theirs."""
    kept = {"initial": setting.initial, "samples": setting.samples, "compressor": setting.compressor}
    return kept | {"memory": memory_of(setting)}


def _start_s(federation: FederationConfig, ends: Integers, latency_s: Floats) -> Floats:
    """Return when each node begins: a level of `p2pfl.core.training` after the other, up to the farthest node's."""
    at = np.zeros(len(federation.members))
    for _ in range(hops(federation, 0)):
        before, at = at, np.zeros(len(at))
        for end, other in (ends.T, ends.T[::-1]):
            np.maximum.at(at, end, before[other] + latency_s)
    return at


def simulate_arrays(
    federation: FederationConfig,
    world: WorldSpec,
    *,
    data: Mapping[str, Mapping[str, Any]] | None,
    clock: Literal["apart", "in-step"] = "apart",
    device: str | None = None,
    on_progress: Callable[[RunProgress], None] | None = None,
    on_models: Callable[[NDArray[Any]], object] | None = None,
) -> Report:
    """Simulate as arrays; `world` is settled. Raises UserError for what arrays cannot simulate."""
    began, wall = time.process_time(), time.monotonic()
    setting = setting_of(federation, world, data, clock=clock, device=device)
    in_step = clock == "in-step"
    needed = checked_bytes(setting, in_step=in_step)
    train = Rounds(
        setting.grouped, setting.method, setting.device, own_draws=not in_step and setting.nodes <= MOST_PAIRED
    )
    hidden = federation.hides is not None
    run = Summed(setting, train) if hidden else Together(setting, train) if in_step else Apart(setting, train)
    figures = _Figures(setting, train, run)
    to_do = setting.nodes * (federation.training.trained_rounds or setting.rounds)
    if on_progress is not None:
        words = foreseen(setting, train, needed, in_step=in_step)
        on_progress(RunProgress(time_s=0.0, rounds=0, rounds_to_do=to_do, point=None, foreseen=words))
    set_up, next_at = time.process_time(), 0.0
    for moment in run.run():
        figures.look_at_mixing(moment)
        if moment.now < next_at:
            continue
        figures.look(moment)
        every = run.every
        if len(figures.history) > 2 * POINTS:  # longer than expected: some nodes are much slower than the others
            every = max(every, moment.now / POINTS)
        next_at = (moment.now // every + 1) * every
        if on_progress is not None:
            on_progress(
                RunProgress(
                    time_s=moment.now,
                    rounds=int(moment.rounds.sum()),
                    rounds_to_do=to_do,
                    point=figures.history[-1],
                    measures=tuple(figures.measures),
                )
            )
    figures.look(moment)
    ran, models = time.process_time(), run.stage.x.cpu().numpy()
    if on_models is not None:
        on_models(models)
    report = figures.report(moment, models)
    rounds = int(moment.rounds.sum())
    report.cost = cost_of(
        began=began, set_up=set_up, ran=ran, evaluation_s=figures.evaluation_cpu_s, rounds=rounds, events=0
    )
    report.computed = f"arrays, {'a sum each round' if hidden else clock}; training {train.how}"
    report.wall_time_s = round(time.monotonic() - wall, 3)
    return report


class _Figures:
    """Measures a run, and makes its report."""

    def __init__(self, setting: Setting, train: Rounds, run: Apart | Together | Summed) -> None:
        self.setting, self.train, self.run = setting, train, run
        self.honest = [node for node in range(setting.nodes) if node not in setting.liars]
        self.sample = np.array(evaluated(setting.federation, self.honest))
        if isinstance(run, Apart):
            run.stage.watch(self.sample)
        self.measures = measures_in(setting.learners.prototype, None)
        self.history: list[Point] = []
        self.mixing: list[ClosingPoint] = []
        self.trained = 0
        self.evaluation_cpu_s = 0.0

    def look_at_mixing(self, moment: Moment) -> None:
        """Note how far apart the models are after each exchange of all edges, from when nobody trains any more."""
        if moment.exchanges is None:
            return
        trained = int(moment.rounds.sum())
        if trained > self.trained:
            self.trained, self.mixing = trained, []
        if not self.mixing or moment.exchanges >= self.mixing[-1].exchanges + 1:
            models = self.run.stage.x
            mean = models.mean(dim=0)
            parts = (models[first : first + PART] - mean for first in range(0, len(models), PART))
            square = sum(float(part.square().sum()) for part in parts) / len(models)
            self.mixing.append(ClosingPoint(math.sqrt(square), moment.exchanges))

    def look(self, moment: Moment) -> None:
        """Add a point to the history."""
        began = time.process_time()
        rows = self.run.stage.x[torch.as_tensor(self.sample)]
        if isinstance(self.run, Apart):  # as in the exact simulator, a node that trains shows what it began with
            trains = torch.from_numpy(self.run.clock.closed[self.sample] < 0)
            rows[trains] = self.run.stage.begun[trains]
        models = rows.cpu().numpy()
        bytes_sent, messages_sent = self._sent_in_all()
        self.history.append(
            point_of(
                self.train.evaluate(models, "test", self.sample),
                models,
                time_s=moment.now,
                rounds=spread(moment.rounds.tolist()),
                train_loss=spread(_known(self.train.losses[self.sample])),
                staleness=moment.staleness,
                bytes_sent=bytes_sent,
                messages_sent=messages_sent,
                running=self.setting.nodes,
            )
        )
        self.evaluation_cpu_s += time.process_time() - began

    def report(self, moment: Moment, models: NDArray[Any]) -> Report:
        federation, setting = self.setting.federation, self.setting
        everybody = np.arange(setting.nodes)
        scores = (self.train.evaluate(models, part, everybody) for part in ("test", "local"))
        figures: list[list[Any]] = [moment.rounds.tolist(), _known(self.train.losses), *self._traffic(), *scores]
        poison = None if setting.attack is None else setting.attack.poison
        learned = success(setting.learners, poison, models, range(setting.nodes)) if poison else [None] * setting.nodes
        nodes = [
            NodeReport(
                name=federation.members[node].name,
                state="finished",
                finished=True,
                byzantine=node in setting.liars,
                attack_success=learned[node],
                rounds=rounds,
                rounds_beyond=rounds_beyond(rounds, federation.training.trained_rounds),
                loss=loss,
                samples=int(setting.samples[node]),
                bytes_sent=bytes_sent,
                messages_sent=messages_sent,
                **scored(test, local),
            )
            for node, (rounds, loss, bytes_sent, messages_sent, test, local) in enumerate(zip(*figures, strict=True))
        ]
        bytes_sent, messages_sent = self._sent_in_all()
        rate = (
            None
            if is_directed(federation) or federation.hides
            else predicted(federation, setting.samples.tolist(), setting.size)
        )
        return report_of(
            federation,
            nodes,
            self.honest,
            models,
            measures=self.measures,
            bytes_sent=bytes_sent,
            messages_sent=messages_sent,
            virtual_time_s=None if isinstance(self.run, Together) else moment.now,
            staleness=moment.staleness,
            contraction=Contraction(predicted=rate, measured=contraction_between(self.mixing)),
            attack=None if setting.attack is None else setting.attack.spec,
            reached_limit=False,
            history=self.history,
        )

    def _sent_in_all(self) -> tuple[int, int | None]:
        sent, messages = self._traffic()
        return sum(sent), None if messages[0] is None else sum(messages)

    def _traffic(self) -> tuple[list[int], list[Any]]:
        """Return the bytes and messages that each node has sent: sessions, requests or replies, and words. Messages of
        sums are not known.
        """
        if isinstance(self.run, Summed):
            return [self.run.bytes_each] * self.setting.nodes, [None] * self.setting.nodes
        setting, words, (low, high) = self.setting, self.run.words, self.setting.ends.T
        body = make_compressor(setting.federation.gossip.compressor).size_bytes(setting.size)
        fields: dict[str, Any] = {"incarnation": 0, "seq": 1000, "version": 1000, "weight": 7.1, "pace_s": 0.1}
        fields |= {"terms": setting.method.no_terms, "body": b""}
        request = Request(**fields, echo=1000, staleness=1.0, audit=b"")
        reply = Reply(**fields, request_digest=bytes(16), factor=7.1)
        ready = Ready(version=1000, trained=1000, bound=1000, known=2**50)
        heads = (PREFIX_BYTES + len(to_header(message)) for message in (request, reply, ready))
        asked, answered, word = map(sealed_bytes, heads, (body, body, 0))
        (asks, answers), nodes = self.run.messages, setting.nodes
        sessions = np.bincount(low, minlength=nodes) * LOWER_OPENING_BYTES
        sessions += np.bincount(high, minlength=nodes) * UPPER_OPENING_BYTES
        sessions += np.bincount(setting.ends.ravel(), minlength=nodes) * GOODBYE_BYTES
        sent = asked * asks + answered * answers + word * words + sessions
        return sent.astype(np.int64).tolist(), (asks + answers + words).astype(np.int64).tolist()


def _known(values: Floats) -> list[float | None]:
    return [None if np.isnan(value) else value for value in values.tolist()]
