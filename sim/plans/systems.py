"""Wishes for a federation and its network, which of them contradict each other, and the systems that may fulfil them.

The systems to try are graphs of several degrees, and for each the rules, compressors and methods that may fit.

A graph is searched for each degree by `topologies.design`; above `DESIGNED` nodes it is a random regular one, which is
close to the best there and costs nothing to find.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path

from p2pfl.aggregate import Advice, advice, liars_of
from p2pfl.config.load import load_config
from p2pfl.config.model import FederationConfig, TrainingConfig, usual_method
from p2pfl.config.sections import ADAM, MOMENTUM, HideConfig
from p2pfl.engine.rounds import FRAGMENTS, suits_fragments
from p2pfl.errors import UserError
from p2pfl.learn.task import Task, leaves_few_classes
from sim.federations import MANY_NODES, PARTITION
from topologies.design import design
from topologies.design.candidates import Goal
from topologies.errors import TopologyError
from topologies.families import build
from topologies.files import write_topology
from topologies.graph import Topology
from topologies.metrics.byzantine import tolerance

DIGITS = "digits"
LEAST_NODES = 2
DAY_S = 86_400.0
DEGREE_LIMIT = 12
"""The highest degree that is looked at if no limit is given: a node has so many neighbors at most."""


@dataclass(frozen=True, kw_only=True)
class PlanWishes:
    """The wishes. `task` is `digits`, or the path of a federation whose task, data and training are taken.

    `liars`: nodes that may lie, wherever they are. `world`: the file of the machines and the network that it will meet.
    `bytes_per_day`: the most that any node may send in a day; training that takes less than a day counts as one day.
    """

    task: str = DIGITS
    nodes: int | None = None
    max_degree: int | None = None
    liars: int = 0
    world: Path | None = None
    bytes_per_day: int | None = None
    rounds: int | None = None
    partition: str | None = None

    @cached_property
    def base(self) -> FederationConfig | None:
        """The federation that `task` names; None for the built-in digits."""
        return None if self.task == DIGITS else load_config(Path(self.task).absolute())

    @cached_property
    def count(self) -> int:
        """The number of nodes."""
        return len(self.base.present) if self.base is not None else self.nodes or 0

    @property
    def full(self) -> int | None:
        """The number of rounds to learn for; None if the federation ends by something else."""
        return self.rounds or (TrainingConfig() if self.base is None else self.base.training).rounds

    @cached_property
    def size(self) -> int:
        """The number of values that nodes exchange of a torch model; 0 of others, and of the digits: they are small."""
        from p2pfl.learn.load import load_task  # noqa: PLC0415 - imports torch
        from p2pfl.learn.tensors import FlatModule  # noqa: PLC0415 - as above

        base = self.base
        task = None if base is None else load_task(base.task, base.path.parent, file=base.path)
        return FlatModule(task.model(), task.name, base.gossip.patterns).size if base and isinstance(task, Task) else 0

    @property
    def seed(self) -> int:
        """The first seed."""
        return 0 if self.base is None else self.base.seed

    @property
    def highest(self) -> int:
        """The most neighbors that a node may have."""
        return min(self.count - 1, self.max_degree or DEGREE_LIMIT)


def check_wishes(wishes: PlanWishes) -> None:
    """Raise ExceptionGroup with a UserError for each wish that makes no sense, alone or with others."""
    mistakes = list(_mistakes(wishes))
    if mistakes:
        raise ExceptionGroup("mistakes in the wishes", mistakes)


def _mistakes(wishes: PlanWishes) -> Iterator[UserError]:
    count, liars, most = wishes.count, wishes.liars, wishes.max_degree
    least, base = 2 * liars + 1, wishes.base
    if base is not None and base.hides is not None and liars:
        text = "who lies spoils sums unnoticed, and models are hidden: no rule sees a node's part alone"
        yield UserError(text, key="--liars", value=liars, allowed="0, or a federation whose nodes gossip")
    elif base is not None and base.in_step_by and base.hides is None:
        text = f"its rounds are secure sums ({base.in_step_by}): no rule, compressor or method is left to choose"
        yield UserError(text, key="--task", value=wishes.task, allowed="one of nodes that gossip, or hide models")
    if wishes.base is not None and wishes.nodes not in (None, count):
        text = f"the federation of --task has {count} nodes"
        yield UserError(text, key="--nodes", value=wishes.nodes, allowed="without --nodes")
    if wishes.base is None and wishes.nodes is None:
        yield UserError("is missing", key="--nodes", allowed="how many nodes, or --task FOLDER with a federation")
    elif count < LEAST_NODES:
        yield UserError("too few nodes to learn together", key="--nodes", value=count, allowed=f"from {LEAST_NODES}")
    elif most == 1 and count > LEAST_NODES:
        text = f"{count} nodes with one neighbor each are not connected"
        yield UserError(text, key="--max-degree", value=1, allowed="from 2")
    elif liars and least > count - 1:
        text = f"half of {count - 1} possible neighbors or more would lie, and no rule holds against that"
        yield UserError(text, key="--liars", value=liars, allowed=f"up to {(count - 2) // 2} of {count} nodes")
    elif liars and most is not None and least > most:
        text = f"half of a node's {most} neighbors or more could lie, and no rule holds against that"
        fewer = f"up to {(most - 1) // 2}" if most > 2 else "none"
        allowed = f"{fewer} with --max-degree {most}, or --max-degree from {least}"
        yield UserError(text, key="--liars", value=liars, allowed=allowed)


DESIGNED = 500
EVALUATIONS = 2_000
SEARCHED = 100
"""A search tries `EVALUATIONS` graphs of a degree for so many nodes, else as many fewer: eigenvalues cost the cube."""
DEGREES = (3, 4, 6, 8, 12)
"""Degrees that are looked at, besides the least and the most that the wishes allow."""
MOST_GRAPHS = 4
USUAL_DEGREE = 4
DRAWS = 30
MEAN = "mean"
ROBUST_RULES = ("hampel", "nnm+trimmed-mean", "cs+", "geometric-median", "trimmed-mean")
COMPRESSORS = ("q4", "rotate+q2", "q8")
FRUGAL = ("rotate+q2", "rotate+sign")
"""Compressors that are looked at first if bytes are limited."""
TRACKING = "tracking"
"""A method beside the usual one and momentum, which is the first where nodes may lie. It sends twice as much."""
STEPS, BITS = ((ADAM, 0.05), (ADAM, 0.1), (ADAM, 0.03), (MOMENTUM, 0.3)), (8, 4)
"""Common steps, with their rates, and bits that are looked at where models are hidden, beside the federation's own."""

Tell = Callable[[str], None]


@dataclass(frozen=True, eq=False, kw_only=True)
class PlannedGraph:
    """A graph and its `file`. `guaranteed`: the liars beside each node that a rule surely bears, as a range."""

    topology: Topology
    file: Path
    guaranteed: tuple[int, int]

    @property
    def degree(self) -> int:
        return int(self.topology.degrees.max())


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSystem:
    """One system: everything that a plan decides. `changes` counts the choices that differ from the first ones."""

    graph: PlannedGraph
    rule: str
    compressor: str
    method: str
    changes: int
    hides: HideConfig | None = None
    """Set where models are hidden: then it is decided in place of rule, compressor and method."""

    @property
    def privacy(self) -> str | None:
        """As `--privacy` has it."""
        keys = {} if self.hides is None else asdict(self.hides)
        return ",".join(f"{key}={value}" for key, value in keys.items() if value is not None) or None

    @property
    def guaranteed(self) -> tuple[int, int]:
        """How many liars beside a node cannot keep the honest from agreeing, as a range."""
        borne = liars_of(self.rule)
        low, high = self.graph.guaranteed
        return (min(borne, low), min(borne, high))


def find_graphs(
    wishes: PlanWishes, folder: Path, tell: Tell, until: float = math.inf
) -> tuple[list[PlannedGraph], str | None]:
    """Write a graph for each degree into `folder`; the first is the one to begin with. Also returns the reason why none
    of them guarantees what was wished, if so. After `until` on the monotonic clock no further search begins.

    Raises TopologyError if no connected graph has so few neighbors.
    """
    refusal: str | None = None
    topologies: dict[int, Topology] = {}
    graphs: list[PlannedGraph] = []
    # first what must not be missing if time is up: with liars the highest degree, which bears most of them
    for degree in sorted(_degrees(wishes), key=lambda most: -most if wishes.liars else abs(most - USUAL_DEGREE)):
        if topologies and time.monotonic() >= until:
            break
        tell(f"searches a graph with {degree} neighbors")
        topology, reason = _best(wishes, degree)
        refusal = reason or refusal
        topologies.setdefault(topology.edge_count, topology)
    for edges, topology in topologies.items():
        file, known = folder / f"{edges}-edges.json", tolerance(topology).guaranteed
        write_topology(topology, file)
        graphs.append(PlannedGraph(topology=topology, file=file, guaranteed=(known.lower, known.upper)))
    if wishes.liars and any(graph.guaranteed[1] >= wishes.liars for graph in graphs):
        refusal = None
    graphs.sort(key=lambda graph: (graph.guaranteed[0] < wishes.liars, abs(graph.degree - USUAL_DEGREE)))
    return graphs, refusal


def systems(wishes: PlanWishes, graphs: Sequence[PlannedGraph]) -> list[PlannedSystem]:
    """Return all combinations, those with the fewest changes first."""
    base = wishes.base
    if base is not None and base.hides is not None:
        return _hidden_systems(base, base.hides, graphs)
    first = advised(wishes, graphs[0]).rules if wishes.liars else ()
    robust = sorted(ROBUST_RULES, key=lambda name: name not in first) if wishes.liars else []
    rules = [*(f"{name}:b={wishes.liars}" for name in robust), MEAN]
    compressors = list(dict.fromkeys([*(FRUGAL if wishes.bytes_per_day else ()), *COMPRESSORS]))
    made = []
    for (i, graph), (j, rule) in product(enumerate(graphs), enumerate(rules)):
        usual, lean = usual_method(rule), not wishes.bytes_per_day and suits_fragments(rule, graph.degree, wishes.size)
        methods = [MOMENTUM, usual] if wishes.liars else [usual, MOMENTUM]
        methods = list(dict.fromkeys([*methods, *([TRACKING] if rule == MEAN else [])]))
        for (k, compressor), (m, method) in product(enumerate([FRAGMENTS] * lean + compressors), enumerate(methods)):
            changes = sum(index > 0 for index in (i, j, k, m))
            made.append(PlannedSystem(graph=graph, rule=rule, compressor=compressor, method=method, changes=changes))
    return sorted(made, key=lambda system: -system.changes)[::-1]


def _hidden_systems(base: FederationConfig, own: HideConfig, graphs: Sequence[PlannedGraph]) -> list[PlannedSystem]:
    usual = {"rule": base.gossip.rule, "compressor": base.gossip.compressor, "method": base.method}
    steps, bits = dict.fromkeys([(own.outer, own.outer_rate), *STEPS]), dict.fromkeys([own.bits, *BITS])
    made = []
    for (i, graph), (j, (outer, rate)), (k, each) in product(enumerate(graphs), enumerate(steps), enumerate(bits)):
        hides, changes = replace(own, bits=each, outer=outer, outer_rate=rate), sum(index > 0 for index in (i, j, k))
        made.append(PlannedSystem(graph=graph, **usual, changes=changes, hides=hides))
    return sorted(made, key=lambda system: system.changes)


def advised(wishes: PlanWishes, graph: PlannedGraph) -> Advice:
    """Return the advice on rules for the wished liars and data on this graph."""
    usual = PARTITION if wishes.base is None and wishes.count <= MANY_NODES else ""
    own = usual if wishes.base is None else wishes.base.task.options.get("partition", "")
    few = leaves_few_classes(str(wishes.partition or own))
    return advice(few_classes=few, honest_each=max(0, graph.degree - wishes.liars) / wishes.liars)


def _degrees(wishes: PlanWishes) -> list[int]:
    """Return at most `MOST_GRAPHS` degrees, between what the liars need and what is allowed."""
    most = wishes.highest
    least = min(most, 2 * wishes.liars + 1 if wishes.liars else 2)
    chosen = sorted({least, *(degree for degree in DEGREES if least < degree < most), most})
    while len(chosen) > MOST_GRAPHS:
        free = [at for at in range(1, len(chosen) - 1) if chosen[at] != USUAL_DEGREE]
        del chosen[min(free, key=lambda at: chosen[at] / chosen[at - 1])]
    return chosen


def _best(wishes: PlanWishes, degree: int) -> tuple[Topology, str | None]:
    """Find the graph; where none guarantees the wished liars, find one without, and say why."""
    if wishes.count > DESIGNED:
        even = degree - degree * wishes.count % 2
        return build(f"random-regular:degree={even}" if even > 1 else "ring", wishes.count, wishes.seed), None
    if not wishes.liars:
        return _designed(wishes, degree, 0), None
    if degree < wishes.highest:
        return _drawn(wishes, degree) or _designed(wishes, degree, 0), None
    try:
        return _designed(wishes, degree, wishes.liars), None
    except TopologyError as error:
        reason = f"{_as_options(error.message)}; the nearest that can be had: {_as_options(error.allowed)}"
        return _designed(wishes, degree, 0), reason


def _drawn(wishes: PlanWishes, degree: int) -> Topology | None:
    """Draw regular graphs until one is known to bear the liars: much faster than to prove that none does."""
    seeds = range(wishes.seed, wishes.seed + (0 if degree * wishes.count % 2 else DRAWS))
    drawn = (build(f"random-regular:degree={degree}", wishes.count, seed) for seed in seeds)
    return next((graph for graph in drawn if tolerance(graph).guaranteed.lower >= wishes.liars), None)


def _as_options(text: str | None) -> str:
    """Say the words of a design in those of the plan's options."""
    words = re.sub(r", as byzantine = \d+ asks for", "", text or "nothing")
    words = re.sub(r"up to (\d+) on (\d+) nodes", r"up to \1 liars on \2 nodes", words)
    return words.replace("max-degree = ", "--max-degree ").replace("byzantine = ", "--liars ")


def _designed(wishes: PlanWishes, degree: int, byzantine: int) -> Topology:
    tries = int(EVALUATIONS / max(1.0, wishes.count / SEARCHED) ** 3)
    goal = Goal(nodes=wishes.count, max_degree=degree, byzantine=byzantine, seed=wishes.seed)
    best = design(goal, evaluations=tries, top=1).winner.topology
    return build(best.spec, best.nodes, best.seed) if best.implicit else best
