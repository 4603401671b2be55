"""`simulate`: a federation in a world, from the first start to the report."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from statistics import fmean
from typing import Any, Protocol

import torch
from numpy.typing import NDArray

from p2pfl.compress import make_compressor
from p2pfl.config.model import FederationConfig
from p2pfl.config.sections import parse_stop
from p2pfl.console.output import watched
from p2pfl.errors import UserError
from p2pfl.reporting.figures import compressor_mistakes
from p2pfl.reporting.report import Report
from p2pfl.system import return_free_memory
from sim.attacks import parse_attack
from sim.cluster import PreparedRun, Script, script
from sim.federations import OBJECT_BYTES_PER_NODE, check_count, check_memory, refuse_beside_sums
from sim.host import Watch
from sim.kernel import NS
from sim.learning.batching import make_learners
from sim.progress import RunProgress, RunView, silent
from sim.report import Figures, cost_of, final_report
from sim.worlds.model import WorldSpec
from sim.worlds.settling import settle
from sim.worlds.timeline import steps_of
from sim.worlds.world import World
from topologies.families import FAMILIES
from topologies.family import GraphKind

POINTS = 40
"""The approximate number of evaluations in a run."""
SLICES = 4
"""The number of progress reports between two evaluations."""


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread: more split the sums in a product, so round otherwise, and slow down small ones."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Described(Protocol):
    """A `p2pfl.Federation`, as this module uses it."""

    @property
    def config(self) -> FederationConfig: ...
    def in_keywords(self, mistake: UserError, /) -> UserError: ...


def _refusal(key: str, value: object, allowed: str) -> UserError:
    return UserError(f"this is no {key}", file="simulate", key=key, value=value, allowed=allowed)


@_one_thread()
def simulate(
    federation: FederationConfig | Described,
    *,
    world: World | WorldSpec | None = None,
    data: Mapping[str, Mapping[str, Any]] | None = None,
    watch: Callable[[PreparedRun], Watch] | None = None,
    references: bool = True,
    alone: bool = False,
    arrays: bool = False,
    clock: str | None = None,
    device: str | None = None,
    on_progress: Callable[[RunProgress], None] | None = None,
    on_models: Callable[[NDArray[Any]], object] | None = None,
) -> Report:
    """Run the shipped core and engine of every node under virtual time, and return the report.

    `federation` is a `p2pfl.Federation`, or the contents of a federation file. The default `world` is that of
    `World()`. `data` has the `[data]` tables of nodes by name, with absolute paths. All randomness comes from
    `federation.seed`. `watch` makes an observer of the run, whose vectors are then in float64. `references` adds what a
    central server and pooled data would have achieved, `alone` also what each node would have learned without
    neighbors. With `arrays` the algorithm alone runs, for very many nodes at once:
    `clock` is "apart", the default, or "in-step", `device` a torch device. Without `on_progress`, a terminal shows a
    line on stderr, and a notebook a bar. `on_models` is called at the end with the models (nodes, d) of all nodes.
    Raises UserError if the world contradicts itself, if the task is wrong, or if the run would not fit into memory.
    """
    began = time.process_time()
    if not isinstance(federation, FederationConfig):
        how: dict[str, Any] = {
            "world": world,
            "data": data,
            "watch": watch,
            "references": references,
            "alone": alone,
            "arrays": arrays,
            "clock": clock,
            "device": device,
        }
        try:
            return simulate(federation.config, **how, on_progress=on_progress, on_models=on_models)
        except UserError as error:
            raise federation.in_keywords(error) from error.__cause__
        except AttributeError:
            if hasattr(federation, "config"):
                raise
            raise _refusal("federation", federation, "a p2pfl.Federation") from None
    if not isinstance(world, World | WorldSpec | None):
        raise _refusal("world", world, "a sim.World")
    if isinstance(world, World):
        world = world.spec([member.name for member in federation.members])
    spec = settle(world or WorldSpec(), len(federation.members), federation.seed)
    federation = steps_of(federation, spec)[0].federation
    _check_arrays(federation, arrays=arrays, clock=clock, device=device)
    attack = None if spec.liars is None else parse_attack(spec.liars.attack)
    liars = frozenset(spec.liars.nodes if spec.liars else ())
    compared: dict[str, Any] = {"references": references, "alone": alone, "watch": watch}
    poison = None if attack is None else attack.poison
    with RunView(quiet=on_progress is not None or not watched()) as view:
        tell = on_progress or (None if view.quiet else view.update)
        tell = None if tell is silent else tell
        if arrays:
            from sim.arrays.run import simulate_arrays  # noqa: PLC0415 - for these runs alone

            how = {"data": data, "clock": clock or "apart", "device": device}
            return simulate_arrays(federation, spec, **how, on_progress=tell, on_models=on_models)
        refuse_beside_sums(federation, spec)
        check_count(len(federation.members), each=OBJECT_BYTES_PER_NODE)
        compared |= {"on_progress": tell, "on_models": on_models, "began": began}
        learners = make_learners(federation, local=data, poison=poison, liars=liars)
        return _simulate(script(federation, spec, learners, is_watched=watch is not None), **compared)


def _check_arrays(federation: FederationConfig, *, arrays: bool, clock: str | None, device: str | None) -> None:
    family = FAMILIES.get(federation.topology.partition(":")[0].strip())  # a graph may have any other name
    if not arrays and family is not None and family.kind is GraphKind.DIRECTED:
        text, allowed = "is directed: both ends of an edge learn", "with arrays in step, or an undirected graph"
        raise UserError(text, file="simulate", key="topology", value=federation.topology, allowed=allowed)
    for key, value in (("clock", clock), ("device", device)):
        if value is not None and not arrays:
            raise UserError("is for arrays alone", file="simulate", key=key, value=value, allowed="with arrays")
    if clock not in (None, "apart", "in-step"):
        raise _refusal("clock", clock, "apart or in-step")


def _check_size(script: Script) -> None:
    """Refuse compressors that do not fit the model, and a run that does not fit into memory."""
    federation, size = script.federation, script.learners.exchanged_size
    if mistakes := compressor_mistakes(federation, size):
        raise mistakes[0]
    uses = Counter(federation.compressor_of(*edge) for edge in federation.edges)
    check_memory(
        nodes=len(federation.members),
        edges=len(federation.edges),
        size=size,
        payload_bytes=sum(count * make_compressor(spec).size_bytes(size) for spec, count in uses.items()),
        personal=script.learners.personal,
    )


def _patience(federation: FederationConfig) -> int | None:
    """Return the number of rounds for which nodes keep training without an improvement; None without early stopping."""
    stop = federation.training.stop
    return None if stop is None else parse_stop(stop).patience


def _simulate(
    script: Script,
    *,
    watch: Callable[[PreparedRun], Watch] | None,
    references: bool,
    alone: bool,
    on_progress: Callable[[RunProgress], None] | None,
    on_models: Callable[[NDArray[Any]], object] | None,
    began: float,
) -> Report:
    wall = time.monotonic()
    return_free_memory()
    _check_size(script)
    figures = Figures(script)
    with _no_collections(), closing(PreparedRun(script, figures.committed)) as stage:
        figures.stage = stage
        if watch is not None:
            stage.watch_by(watch(stage))
        set_up = time.process_time()
        _run(script, stage, figures, on_progress)
        models = stage.models()
        stage.world.network.count_goodbyes()
    if on_models is not None:
        on_models(models)
    ran = time.process_time()
    with _without_collecting_the_run():
        report = final_report(stage, figures, references=references, alone=alone)
    report.cost = cost_of(
        began=began,
        set_up=set_up,
        ran=ran,
        evaluation_s=figures.evaluation_cpu_s,
        rounds=sum(host.core.facts.rounds for host in stage.world.hosts if host.starts),
        references_cpu_s=figures.references_cpu_s,
        events=stage.world.kernel.events,
    )
    report.computed = f"operations one at a time; training {script.learners.how}"
    report.wall_time_s = round(time.monotonic() - wall, 3)
    return report


def _run(
    script: Script, stage: PreparedRun, figures: Figures, on_progress: Callable[[RunProgress], None] | None
) -> None:
    """Run until all nodes have finished, or the time limit of the world."""
    world, limit_ns = stage.world, round(script.spec.limit_s * NS)
    every_ns = evaluation_interval_ns(script, stage)
    rounds = script.federation.training.trained_rounds
    to_do = None if rounds is None else rounds * stage.nodes
    stop = stage.watch.look if script.is_watched else None
    next_ns, most_points = 0, 2 * POINTS
    figures.evaluate()
    while not world.over and world.kernel.pending and world.kernel.now_ns < limit_ns:
        next_ns += max(0, world.kernel.next_ns - 1 - next_ns) // every_ns * every_ns  # nothing happens before then
        for part in range(1, SLICES + 1):
            world.run(until_ns=min(limit_ns, next_ns + every_ns * part // SLICES), stop=stop)
            if on_progress is not None:
                done = sum(host.core.facts.rounds for host in world.hosts if host.starts)
                point = figures.history[-1] if figures.history else None
                on_progress(
                    RunProgress(
                        time_s=world.kernel.now,
                        rounds=done,
                        rounds_to_do=to_do,
                        point=point,
                        measures=tuple(figures.measures),
                    )
                )
        next_ns += every_ns
        figures.evaluate()
        if len(figures.history) >= most_points and script.spec.evaluate_every_s is None:
            # Longer than expected: a node is waiting or lingering.
            every_ns, most_points = 2 * every_ns, most_points + POINTS


def evaluation_interval_ns(script: Script, stage: PreparedRun) -> int:
    """Return the time between evaluations: as set in the world, or else chosen for about POINTS of them per run."""
    if script.spec.evaluate_every_s is not None:
        return max(1, round(script.spec.evaluate_every_s * NS))
    training = script.federation.training
    if training.rounds is None:
        return max(1, round((training.time_s or 1.0) * NS) // POINTS)
    lasts = fmean(host.plan.pace.estimate_ns(host.plan.steps) for host in stage.world.hosts)
    patience = _patience(script.federation)
    rounds = training.rounds if patience is None else min(training.rounds, 2 * patience)
    return max(1, int(lasts * rounds) // POINTS)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Pause garbage collection: cores and engines live as long as the run; a search for cycles costs a tenth of it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _without_collecting_the_run() -> Iterator[None]:
    """Leave what exists now out of garbage collections: each would look at all cores and engines."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
