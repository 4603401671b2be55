"""A federation under virtual time: hosts, links, faults. Nothing here decides about learning.

A crash cuts a node's sessions and loses what its engine had not flushed; the same node starts again from its disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from p2pfl.config.model import Edges
from p2pfl.core.events import Event
from p2pfl.core.facts import Phase
from p2pfl.core.settings import Settings
from p2pfl.core.staleness import Turns
from sim.exact import ExactEngine
from sim.host import Host
from sim.kernel import Kernel
from sim.links import lay
from sim.machine import HostPace, HostPlan, Watch
from sim.network import Network
from sim.privacy_budget import Purse
from sim.trace import Trace, TraceKind
from sim.worlds.model import LinkSpec, SlowNodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The nodes' surroundings. `start_ns` maps a node to its first start, by default 0.

    `schedule` has the edges of each round if the graph changes; `body_bytes` then covers their union. `body_bytes` is
    the largest body sent over each edge.
    """

    body_bytes: Mapping[tuple[int, int], int]
    edges: Edges | None = None
    """The initial edges, if the graph changes; None means all edges that have bodies."""
    schedule: tuple[Edges, ...] = ()
    links: LinkSpec = field(default_factory=LinkSpec)
    slow: tuple[SlowNodes, ...] = ()
    seed: int = 0
    start_ns: Mapping[int, int] = field(default_factory=dict)
    engine_ns: int = 500_000
    liars: frozenset[int] = frozenset()
    faults_end_ns: int = 0
    """When the last planned fault happens."""


class Cluster:
    """The hosts and the network of a federation. `settings`, `paces`, `steps` and `purses` are per node.

    Without purses no round is paid for.
    """

    def __init__(
        self,
        around: Surroundings,
        engines: Sequence[ExactEngine],
        *,
        settings: Sequence[Settings],
        paces: Sequence[HostPace],
        steps: Sequence[int],
        purses: Sequence[Purse] | None = None,
        on_commit: Callable[[int], None] | None = None,
    ) -> None:
        self.around = around
        self._unfinished = dict.fromkeys(range(len(engines)))
        """Nodes that have neither finished nor gone; a dict, so that the first is found immediately."""
        self._halts = True
        self.gone: set[int] = set()
        """Nodes that crashed for good."""
        self.kernel = Kernel()
        self.trace = Trace()
        self.network = Network(
            kernel=self.kernel,
            spec=around.links,
            links=lay(around.body_bytes, around.links, around.slow, around.seed),
            deliver=self.deliver,
            alive=lambda index: self.hosts[index].alive,
            accepts=lambda index, peer: self.hosts[index].accepts(peer),
            trace=self.trace,
        )
        turns = all_turns(len(engines), around.schedule)
        neighbors = all_neighbors(len(engines), tuple(around.body_bytes) if around.edges is None else around.edges)
        self.hosts: list[Host] = []
        for index, engine in enumerate(engines):
            plan = HostPlan(
                index=index,
                neighbors=neighbors[index],
                turns=turns[index],
                settings=settings[index],
                pace=paces[index],
                steps=steps[index],
                engine_ns=around.engine_ns,
                purse=purses[index] if purses else None,
            )
            host = Host(
                plan,
                engine,
                kernel=self.kernel,
                network=self.network,
                trace=self.trace,
                on_commit=on_commit,
                on_finish=self._one_has_finished,
            )
            self.hosts.append(host)
            self.kernel.at_ns(around.start_ns.get(index, 0), partial(self.start, index))
        if around.faults_end_ns:
            self.kernel.at_ns(around.faults_end_ns + 1, self._halt_if_over)

    # -- what happens -----------------------------------------------------------------------------------------------

    def start(self, index: int) -> None:
        self.hosts[index].start()
        for edge in self.network.links_of(index):
            self.network.open(edge)
        self._halt_if_over()

    def crash(self, index: int, *, kept: int = 0) -> None:
        """Crash as `kill -9` does."""
        host = self.hosts[index]
        if not host.alive:
            return
        self._unfinished[index] = None
        host.crash(kept)
        for edge in self.network.links_of(index):
            self.network.cut(edge, redial=False)

    def forget(self, index: int) -> None:
        """Wipe the disk of a node that is down."""
        self.trace.add(self.kernel.now_ns, TraceKind.FORGOT, index, 0, 0)
        host = self.hosts[index]
        host.engine.forget()
        if host.plan.purse is not None:
            host.plan.purse.is_lost = True

    def restart(self, index: int) -> None:
        """Restart the node, unless it has been removed from the federation."""
        host = self.hosts[index]
        if not host.alive and index not in host.plan.settings.retired:
            self.start(index)

    def amend(self, index: int, plan: HostPlan) -> None:
        """Tell the node that the federation has changed."""
        self.hosts[index].amend(plan)
        for edge in self.network.links_of(index):
            self.network.open(edge)

    def lose(self, index: int) -> None:
        """Record that this node, which is down, will never come back."""
        self.gone.add(index)
        self._unfinished.pop(index, None)
        self._halt_if_over()

    def deliver(self, index: int, event: Event) -> None:
        self.hosts[index].take(event)

    def watch_by(self, watch: Watch) -> None:
        """Let an observer see all operations of all nodes, from now on."""
        for host in self.hosts:
            host.machine.watch = watch

    def run(self, *, until_ns: int, finish: bool = True, stop: Callable[[], bool] | None = None) -> None:
        """Run to virtual time `until_ns`, or until every node has finished, or until `stop` returns true."""
        self._halts = finish
        if not (finish and self.over):
            self.kernel.run(until_ns, stop)

    @property
    def over(self) -> bool:
        """True if every node has finished, is gone, or waits for neighbors none of which can come or be believed."""
        return all(self._is_stranded(index) for index in self._unfinished)

    def _is_stranded(self, index: int) -> bool:
        """Return True if `p2pfl launch` would end the node because it would wait alone forever.

        A fault may bring a neighbor back.
        """
        host = self.hosts[index]
        if self.kernel.now_ns < self.around.faults_end_ns:
            return False
        if not (host.alive and host.core.rounds.phase is Phase.WAITING):
            return False
        liars = self.around.liars
        return all(index in liars or peer in liars for peer in host.plan.neighbors if peer in self._unfinished)

    def _one_has_finished(self, index: int) -> None:
        self._unfinished.pop(index, None)
        self._halt_if_over()

    def _halt_if_over(self) -> None:
        if self._halts and self.over:
            self.kernel.halt()


def all_neighbors(nodes: int, edges: Edges) -> list[tuple[int, ...]]:
    found: list[list[int]] = [[] for _ in range(nodes)]
    for a, b in edges:
        found[a].append(b)
        found[b].append(a)
    return [tuple(sorted(peers)) for peers in found]


def all_turns(nodes: int, schedule: Sequence[Edges]) -> list[dict[int, Turns]]:
    """Compute `turns_of` for every node, in one pass over the schedule."""
    phases: list[dict[int, list[int]]] = [{} for _ in range(nodes)]
    for phase, edges in enumerate(schedule):
        for a, b in edges:
            phases[a].setdefault(b, []).append(phase)
            phases[b].setdefault(a, []).append(phase)
    shared: dict[tuple[int, ...], Turns] = {}
    return [
        {peer: shared.setdefault(tuple(own[peer]), Turns(len(schedule), tuple(own[peer]))) for peer in sorted(own)}
        for own in phases
    ]
