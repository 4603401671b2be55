"""The seam between a node and its features: what a feature provides, and all that it is given.

A feature is a room under `p2pfl/features`; `p2pfl.features.FEATURES` lists them, and the node calls them in that order.
The node names none of them, and learns without any. A hook that a feature leaves out does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from msgspec import Struct

from p2pfl.config.model import FederationConfig
from p2pfl.core.course import Course
from p2pfl.core.effects import Effect
from p2pfl.engine.state import NodeState
from p2pfl.net.greeting import Charters
from p2pfl.net.side import Feeding, SideChannel
from p2pfl.net.transport import Line, MakeTransport, Transport
from p2pfl.node.assembly import Setup
from p2pfl.node.engine_thread import EngineThread
from p2pfl.node.feed import Feed
from p2pfl.node.findings import Findings
from p2pfl.node.gate import Answer, RoundPlan
from p2pfl.node.status import Presence, Status
from p2pfl.node.workshop import Workshop
from p2pfl.reporting.alarms import AlarmText
from p2pfl.reporting.status import NodeLine, NodeResult
from p2pfl.storage import Store


class Say(Protocol):
    """Sends a side-channel message to a neighbor; returns False if it is not sent. `if_free`: only on an idle line."""

    def __call__(self, peer: int, channel: SideChannel, message: Struct, *, if_free: bool = False) -> bool: ...


class NetworkView(Protocol):
    """A feature's view of the network layer."""

    @property
    def port(self) -> int: ...
    @property
    def transport(self) -> Transport: ...
    @property
    def is_complete(self) -> bool: ...
    def session(self, peer: int) -> tuple[int, Line] | None: ...
    def hint(self, index: int, addresses: Sequence[str], instead_of: Sequence[str] = ()) -> None: ...
    def end_stale(self, is_own: Callable[[str], bool]) -> None: ...
    def pause(self, pause_s: float, reason: str) -> None: ...
    def spare(self, peer: int, rest_s: float) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAtStart:
    """The state read from disk at startup, before there is a core.

    `until_over` is closed together with the node's folder.
    """

    setup: Setup
    state: NodeState
    store: Store
    until_over: ExitStack


class Recovered(Protocol):
    def keep(self, state: NodeState, store: Store) -> None:
        """Make the recovered state durable; called again while the disk refuses. Raises StorageError, UserError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """Everything that a feature gets from its node. `core`, `status`, `thread` and `workshop` may only be read."""

    setup: Callable[[], Setup]
    """The contents of the files, with the current federation."""
    core: Course
    status: Status
    presence: Presence
    """Absences of neighbors. A feature may set its `silent_s`, which says how long a neighbor has been silent, and its
    `is_excused`.
    """
    workshop: Workshop
    thread: EngineThread
    line: Callable[[], NodeLine]
    feed: Feed
    network: NetworkView
    say: Say
    clock: Callable[[], float]
    """Monotonic time in seconds, from the event loop's clock."""
    alarm: Callable[[str, int | None, str], None]
    carry_out: Callable[[Iterable[Effect]], None]
    """Carries out effects that this feature's course has decided apart from its answers to events."""
    amend: Callable[[FederationConfig], None]
    """Adopts a changed federation from the end of the round. Raises UserError if this is not possible while the node
    runs.
    """
    trust_anew: Callable[[], None]
    """Tells the node that `Attached.trusts` may now let in other members."""
    options: Any = None
    """This feature's table in the file, as an instance of its `section`."""
    recovered: Any = None
    """What this feature's `recover` returned."""
    other: Callable[[str], Attached | None] = lambda _: None
    """Returns what another feature, called earlier, has attached."""


class Attached:
    """One node's part of a feature, from before its sockets open until the node is over.

    Hooks are listed in the order they are called.
    """

    door: Charters | None = None
    """Charters that visitors may hand over or ask for."""

    def feedings(self) -> tuple[Feeding, ...]:
        """Return its side channels."""
        return ()

    def trusts(self, members: Mapping[bytes, int]) -> Mapping[bytes, int]:
        """Return those of the listed members, by key, that may have sessions."""
        return members

    def status(self) -> Mapping[str, Any]:
        """Return its part of `GET /status`: fields of `NodeStatus`, and its own rows (`features`)."""
        return {}

    async def opening(self, until_over: AsyncExitStack) -> None:
        """Run before the sockets open; this run has no snapshot yet.

        A UserError stops the start, here and in `opened`.
        """

    async def opened(self, until_closed: AsyncExitStack) -> None:
        """Run once the sockets are open."""

    def begin(self) -> None:
        """Run when the core starts."""

    def before_round(self, plan: RoundPlan) -> Answer:  # noqa: ARG002 - most do not care
        """Return objections to a local round, or its cost, in the thread that trains.

        Only one feature may ask for payment.
        """
        return None

    def look(self) -> None:
        """Run about once a second."""

    async def run(self) -> None:
        """Work in the background; cancelled when the core finishes."""

    async def farewell(self, *, hasty: bool) -> None:
        """Run when the core has finished, before the sockets close. `hasty` says that the node was asked to stop."""

    async def over(self, result: NodeResult) -> None:
        """Run when the sockets are closed and the result is written."""


class Feature:
    """One room. `name` names both the room and its table in the federation file."""

    name = ""
    needs: tuple[str, ...] = ()
    """Names of the features that this one cannot work without. Those that come earlier are attached already."""
    section: type[Struct] | None = None
    """The type of its table: keys, limits, defaults. None if it has no table."""
    alarms: Mapping[str, AlarmText] = MappingProxyType({})
    """The kinds of alarms that it raises."""

    def guards(self, setup: Setup) -> bool:  # noqa: ARG002 - some guard whatever the files say
        """Return True if a failure of the feature stops the node; otherwise the feature alone ends, with an alarm."""
        return False

    def check(self, setup: Setup) -> None:
        """Check the files before anything is written. Raises UserError if the files ask for the impossible."""

    def findings(self) -> Findings | None:
        """Return its findings before there are nodes; for a plug-in named in the file, since rooms declare theirs."""
        return None

    def withheld(self, setup: Setup) -> frozenset[str]:  # noqa: ARG002 - most withhold nothing
        """Return the parts of the data ("local", "test") about which no figure may be shown, not even to features."""
        return frozenset()

    def transport(self, setup: Setup, usual: MakeTransport) -> MakeTransport:  # noqa: ARG002 - most leave it as it is
        """Return what carries the node's sessions, in place of `usual` or around it."""
        return usual

    def recover(self, at_start: FoundAtStart) -> Recovered | None:  # noqa: ARG002 - most keep nothing in the state
        """Check the state that was read from disk, and correct it. Raises UserError if it cannot be used."""
        return None

    def course(self, setup: Setup, state: NodeState) -> Course | None:  # noqa: ARG002 - most leave gossip as it is
        """Return the course by which this node learns, from its state; None for gossip. At most one feature has one."""
        return None

    def attach(self, node: NodeView) -> Attached | None:
        """Attach to a node that is starting, without global state. None if this node has no use for the feature."""
        raise NotImplementedError
