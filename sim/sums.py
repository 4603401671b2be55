"""Hidden models in virtual time: the rounds and sums of real nodes, with their cryptography, on one event loop.

Keys and chance come from the run's seed. What a node has on its disk beside its state lies in a folder of its own. Work
on a sum takes no time, so that no neighbor uses up its share of it; and as all nodes are honest, none forgets a set-up.
"""

from __future__ import annotations

import asyncio
import copy
import shutil
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, TypeVarTuple, cast

import msgspec

from p2pfl.chance import stream
from p2pfl.config.model import FederationConfig
from p2pfl.config.sections import HideConfig
from p2pfl.core.events import Alarm, Event, SessionClosed, SessionOpened, Started
from p2pfl.core.settings import Facts
from p2pfl.crypto.identity import Identity
from p2pfl.features.shared_noise.rounds import SumRounds
from p2pfl.features.sums.rounds import SummedRounds
from p2pfl.features.sums.sessions import groups_of, settings_of
from p2pfl.learn.averaging import AveragedLearner
from p2pfl.learn.interface import Learner
from p2pfl.methods import Method
from p2pfl.node.feature import NodeView
from p2pfl.wire import Side
from sim.exact import Boot, ExactEngine
from sim.host import Host, HostPlan, HostProcess
from sim.kernel import Kernel
from sim.network import Network

Ts = TypeVarTuple("Ts")


class _Later(asyncio.TimerHandle):
    def run(self) -> None:
        if not self.cancelled():
            self._run()


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs what tasks and timers ask for as actions of the kernel. A failure of theirs is raised there."""

    kernel: Kernel

    def time(self) -> float:
        return self.kernel.now

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> _Later:
        handle = _Later(when, callback, args, self, context)
        self.kernel.at(when, handle.run)
        return handle

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> _Later:
        return self.call_at(self.time(), callback, *args, context=context)

    call_soon_threadsafe = call_soon

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if "handle" in context:
            raise context["exception"]


class SumProcess(HostProcess):
    """A node with its rounds from a start to a crash."""

    def __init__(self, core: SummedRounds, host: SumHost) -> None:
        super().__init__(core, host.machine, host.network, host.alarms, **host.hooks)
        self.host, self.loop = host, host.sums.loop
        self.sessions: dict[int, int] = {}
        look = SimpleNamespace(put=lambda job: host.engine.look(job.use))
        node = SimpleNamespace(
            setup=lambda: host.setup,
            say=self._say,
            alarm=lambda kind, peer, text: self.raise_alarm(Alarm(kind=kind, peer=peer, text=text)),
            carry_out=self.act,
            thread=SimpleNamespace(jobs=look),
            feed=SimpleNamespace(settle=lambda *_: None, tell=lambda *_: None),
            clock=self.loop.time,
            draw=stream(host.sums.federation.seed, "sums", host.index, host.starts).randbytes,
            meter=lambda: 0.0,
        )
        self.rounds = SumRounds(cast("NodeView", node), core, host.learner.averaged)
        self.channels = {each.channel.name: each for each in self.rounds.channels()}

    def take(self, event: Event) -> None:
        super().take(event)
        match event if self.alive else None:
            case Started():
                self.task = self.loop.create_task(self.rounds.run())
                self.task.add_done_callback(lambda task: None if task.cancelled() else task.result())
            case SessionOpened(peer=peer, session=session):
                self.sessions[peer] = session
                for each in self.channels.values():
                    each.handler.opened(peer)
            case SessionClosed(peer=peer, session=session) if self.sessions.get(peer) == session:
                del self.sessions[peer]
                for each in self.channels.values():
                    each.handler.closed(peer)

    def hear(self, peer: int, message: Side) -> None:
        if self.alive:
            each = self.channels[message.channel]
            each.handler.hear(peer, each.channel.unpack(message.body))

    def _say(self, peer: int, channel: Any, message: msgspec.Struct) -> bool:
        session = self.sessions.get(peer) if self.alive else None
        return session is not None and self.network.say(self.host.index, peer, session, channel.pack(message))

    def end(self) -> None:
        self.rounds.talk.close()
        self.task.cancel()


class SumHost(Host):
    """A node whose rounds are sums."""

    process: SumProcess | None

    def __init__(self, sums: SimulatedSums, plan: HostPlan, engine: ExactEngine, **around: Any) -> None:
        super().__init__(plan, engine, **around)
        self.sums, self.learner = sums, cast("AveragedLearner", engine.plan.learner)
        self.folder, self._averaged = sums.folder / str(self.index), copy.deepcopy(self.learner.averaged)
        self.setup = SimpleNamespace(
            federation=sums.federation,
            node=SimpleNamespace(state_dir=self.folder),
            learner=self.learner,
            identity=sums.identities[self.index],
            member=sums.federation.members[self.index],
        )

    def _process(self, boot: Boot) -> SumProcess:
        self.learner.averaged = copy.deepcopy(self._averaged)
        self.learner.load_local_state(self.engine.state.local)
        facts = Facts(degree=len(self.plan.neighbors), samples=boot.samples, version=boot.version)
        facts.rounds = facts.trained = boot.rounds
        return SumProcess(SummedRounds(self.plan.settings, facts, self.plan.neighbors), self)

    def crash(self, kept: int = 0) -> None:
        super().crash(kept)
        if self.process is not None:
            self.process.end()

    def forget(self) -> None:
        super().forget()
        shutil.rmtree(self.folder, ignore_errors=True)

    def is_stranded(self, unfinished: Collection[int], liars: Collection[int]) -> bool:  # noqa: ARG002 - there are none
        """Return True if the node has rounds to do, and too few of these can meet for a sum."""
        return self.alive and not self.core.facts.done and not self.sums.can_meet(self.index, unfinished)


class SimulatedSums:
    """What the nodes of a run share."""

    def __init__(self, federation: FederationConfig, hides: HideConfig) -> None:
        self.loop, self._place = VirtualLoop(), TemporaryDirectory(prefix="p2pfl-sums-")
        self.folder = Path(self._place.name)
        self.hosts: dict[int, SumHost] = {}
        draws = (stream(federation.seed, "identity", member.index) for member in federation.members)
        self.identities = [Identity(draw.randbytes(32)) for draw in draws]
        keyed = zip(federation.members, self.identities, strict=True)
        members = tuple(replace(member, key=identity.public) for member, identity in keyed)
        self.federation, self._hides = replace(federation, members=members), hides
        least, groups = hides.least_of(len(members)), groups_of(federation)
        self._settings = settings_of(self.federation, 0, colluders=hides.colluders, least=least, groups=groups)

    def learners(self, learners: Sequence[Learner], method: Method) -> list[AveragedLearner]:
        how = {"members": len(learners), "seed": self.federation.seed, "method": method}
        return [AveragedLearner(one, self._hides, **how, node=node) for node, one in enumerate(learners)]

    def host(self, plan: HostPlan, engine: ExactEngine, *, kernel: Kernel, network: Network, **around: Any) -> SumHost:
        self.loop.kernel, network.hear = kernel, self.hear
        host = self.hosts[plan.index] = SumHost(self, plan, engine, kernel=kernel, network=network, **around)
        return host

    def hear(self, node: int, peer: int, message: Side) -> None:
        """Hand a message to its receiver."""
        process = self.hosts[node].process
        if process is not None:
            process.hear(peer, message)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let tasks run on the loop."""
        before = _get_running_loop()
        _set_running_loop(self.loop)
        try:
            yield
        finally:
            _set_running_loop(before)

    def can_meet(self, node: int, there: Collection[int]) -> bool:
        """Return True if this node can reach enough of those for a sum."""
        edges = [edge for low, high in self.federation.edges for edge in ((low, high), (high, low))]
        before, reached = 0, {node}
        while before < len(reached):
            before = len(reached)
            reached |= {end for begin, end in edges if begin in reached and end in there}
        return self._settings.are_enough(reached)

    def close(self) -> None:
        """End what goes on, on a time line of its own."""
        self.loop.kernel = Kernel()
        with self.running():
            for host in self.hosts.values():
                if host.process is not None:
                    host.process.end()
            self.loop.kernel.run(0)
        self.loop.close()
        self._place.cleanup()
