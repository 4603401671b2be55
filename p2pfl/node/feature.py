"""The seam between a node and its features: what a feature provides, and all that it is given; their calls, in order.

A feature is a room under `p2pfl/features`; `p2pfl.features.FEATURES` lists them, and the node calls them in that order.
The node names none of them, and learns without any. A hook that a feature leaves out does nothing.

A feature that fails during startup stops the node with one clear error, because a person is there to correct it. A
feature that fails later is turned off with an alarm, and the node goes on; but if a guard fails, the node ends.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from p2pfl.config.model import FederationConfig, NodeConfig, needed_features
from p2pfl.core.core import Algorithm
from p2pfl.core.events import Effect, RoundRefused
from p2pfl.engine.state import NodeState
from p2pfl.errors import P2PFLError, UserError
from p2pfl.learn.interface import Learner
from p2pfl.net.extensions import FAILED, ExtensionChannel, HandledChannel
from p2pfl.net.greeting import Charters
from p2pfl.net.links import Links
from p2pfl.net.transport import MakeTransport
from p2pfl.node.assembly import Setup
from p2pfl.node.engine_thread import EngineThread
from p2pfl.node.learner_runner import Answer, LearnerRunner, RoundPlan, Wait
from p2pfl.node.status import Feed, Presence, Status
from p2pfl.plugins import FAILURES, describe_failure
from p2pfl.reporting.alarms import ALARMS, AlarmText
from p2pfl.reporting.status import NodeLine, NodeResult, NodeStatus
from p2pfl.storage import Store


@dataclass(slots=True)
class Inspected:
    """The inspected files.

    `learners` and `here` are by member index, for members whose folder is on this machine; `unusable` ones get no
    learner.
    """

    federation: FederationConfig
    mistakes: list[UserError]
    warnings: list[str] = field(default_factory=list)
    learners: dict[int, Learner] = field(default_factory=dict)
    here: dict[int, NodeConfig] = field(default_factory=dict)
    unusable: set[int] = field(default_factory=set)
    memory: dict[int, dict[str, int]] = field(default_factory=dict)
    """How many bytes each node will take whose folder is on this machine, by what they are for."""
    brief: dict[str, str] = field(default_factory=dict)
    """Lines for the short report, by name; they replace those of the same name about gossip."""


class Check:
    """One feature's findings, which add mistakes and warnings to the inspected files.

    `part` is the key of its part of the report.
    """

    part = ""

    def of_files(self, inspected: Inspected) -> None:
        """Inspect the files of the nodes whose folders are on this machine; their learners are loaded next."""

    def before_launch(self, inspected: Inspected) -> None:
        """Inspect what each node would find, or wait for in vain: all are on this machine and start next. Imports no
        torch.
        """

    def of_learners(self, inspected: Inspected) -> None:
        """Inspect the learners that could be loaded."""

    def told(self) -> Any:
        """Return its part of the report as JSON values; None if there is nothing to report."""
        return None

    def show(self, facts: Any) -> None:
        """Print that part for people to read."""


class Say(Protocol):
    """Sends a extension message to a neighbor; returns False if it is not sent. `if_free`: only on an idle line."""

    def __call__(self, peer: int, channel: ExtensionChannel, message: Struct, *, if_free: bool = False) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAtStart:
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
    core: Algorithm
    status: Status
    presence: Presence
    """Absences of neighbors. A feature may set its `silent_s`, which says how long a neighbor has been silent, and its
    `is_excused`.
    """
    runner: LearnerRunner
    thread: EngineThread
    line: Callable[[], NodeLine]
    feed: Feed
    network: Links
    say: Say
    clock: Callable[[], float]
    """Monotonic time in seconds, from the event loop's clock."""
    alarm: Callable[[str, int | None, str], None]
    carry_out: Callable[[Iterable[Effect]], None]
    """Carries out effects that this feature's algorithm has decided apart from its answers to events."""
    amend: Callable[[FederationConfig], None]
    """Adopts a changed federation from the end of the round. Raises UserError if this is not possible while the node
    runs.
    """
    trust_anew: Callable[[], None]
    """Tells the node that `Attached.trusts` may now let in other members."""
    recovered: Any = None
    """The result of this feature's `recover`."""
    other: Callable[[str], Attached | None] = lambda _: None
    """Returns what another feature, called earlier, has attached."""
    draw: Callable[[int], bytes] = os.urandom
    """Returns so many random bytes."""
    meter: Callable[[], float] = time.thread_time
    """The CPU time of this thread in seconds."""


class Attached:
    """One node's part of a feature, from before its sockets open until the node is over.

    Hooks are listed in the order they are called.
    """

    door: Charters | None = None
    """Charters that control connections may hand over or ask for."""

    def channels(self) -> tuple[HandledChannel, ...]:
        """Return its extension channels."""
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
    """One room, by its `name`."""

    name = ""
    needs: tuple[str, ...] = ()
    """Names of the features that this one cannot work without. Those that come earlier are attached already."""
    alarms: Mapping[str, AlarmText] = MappingProxyType({})
    """The kinds of alarms that it raises."""

    def guards(self, setup: Setup) -> bool:  # noqa: ARG002 - some guard whatever the files say
        """Return True if a failure of the feature stops the node; otherwise the feature alone ends, with an alarm."""
        return False

    def check(self, setup: Setup) -> None:
        """Check the files before anything is written. Raises UserError if the files ask for the impossible."""

    def withheld(self, setup: Setup) -> frozenset[str]:  # noqa: ARG002 - most withhold nothing
        """Return the parts of the data ("local", "test") about which no figure may be shown, not even to features."""
        return frozenset()

    def transport(self, setup: Setup, usual: MakeTransport) -> MakeTransport:  # noqa: ARG002 - most leave it as it is
        """Return what carries the node's sessions, in place of `usual` or around it."""
        return usual

    def recover(self, at_start: StateAtStart) -> Recovered | None:  # noqa: ARG002 - most keep nothing in the state
        """Check the state that was read from disk, and correct it. Raises UserError if it cannot be used."""
        return None

    def algorithm(self, setup: Setup, state: NodeState) -> Algorithm | None:  # noqa: ARG002 - most leave gossip as it is
        """Return the algorithm by which this node learns, from its state; None for gossip. One feature may have one."""
        return None

    def attach(self, node: NodeView) -> Attached | None:  # noqa: ARG002 - most have no part in a running node
        """Attach to a node that is starting, without global state. None if this node has no use for the feature."""
        return None


def all_features(federation: FederationConfig, known: Iterable[Feature]) -> tuple[Feature, ...]:
    """Return the `known` features. Raises UserError if the federation or a feature needs another that is missing."""
    features = tuple(known)
    names = {feature.name for feature in features}
    for name, key in needed_features(federation).items():
        if name not in names:
            text = f"needs the feature {name}, which this node does not have"
            raise UserError(text, file=federation.path, key=key, allowed="a node with it, or no such key")
    for feature in features:
        for name in feature.needs:
            if name not in names:
                text, key = f"the feature {feature.name} needs {name}, which is not there", f"features.{feature.name}"
                raise UserError(text, file=federation.path, key=key, allowed=", ".join(sorted(names)))
    return features


def alarm_texts(features: Iterable[Feature]) -> dict[str, AlarmText]:
    """Return the texts of each kind of alarm. Raises UserError if two features declare the same kind."""
    texts = dict(ALARMS)
    for feature in features:
        for kind, words in feature.alarms.items():
            if kind in texts:
                text = f"the feature {feature.name} declares an alarm that already exists"
                raise UserError(text, key=f"features.{feature.name}", value=kind, allowed="another kind")
            texts[kind] = words
    return texts


T = TypeVar("T", bound=Attached)

FIELDS = frozenset(NodeStatus.__struct_fields__)


@contextmanager
def failure_named(feature: Feature, hook: str) -> Iterator[None]:
    """Turn a failure of the feature in `hook` into a UserError that names both."""
    try:
        yield
    except P2PFLError:
        raise
    except FAILURES as error:
        text = f"the feature {feature.name} failed at its start, in {hook}: {describe_failure(error)}"
        raise UserError(text, allowed="a node without it, or with its mistake corrected") from error


def recover_each(features: Iterable[Feature], at_start: StateAtStart) -> dict[Feature, Recovered]:
    """Let each feature recover its own state.

    Raises UserError if a feature's `recover` does, or if it fails.
    """
    kept = {}
    for feature in features:
        with failure_named(feature, "recover"):
            recovered = feature.recover(at_start)
        if recovered is not None:
            kept[feature] = recovered
    return kept


def withheld_by(features: Iterable[Feature], setup: Setup) -> frozenset[str]:
    """Return the parts of the data about which no figure may be shown."""
    parts: frozenset[str] = frozenset()
    for feature in features:
        with failure_named(feature, "withheld"):
            parts |= feature.withheld(setup)
    return parts


def transport_by(features: Iterable[Feature], setup: Setup, usual: MakeTransport) -> MakeTransport:
    """Return what carries the node's sessions, as features have changed it."""
    for feature in features:
        with failure_named(feature, "transport"):
            usual = feature.transport(setup, usual)
    return usual


def algorithm_of(features: Iterable[Feature], setup: Setup, state: NodeState) -> Algorithm | None:
    """Return the algorithm that replaces gossip, if a feature provides one. Raises UserError if two features do, or if
    none hides the models that a neighbor must not see.
    """
    algorithms = {}
    for feature in features:
        with failure_named(feature, "algorithm"):
            brought = feature.algorithm(setup, state)
        if brought is not None:
            algorithms[feature.name] = brought
    if len(algorithms) > 1:
        raise UserError(f"{' and '.join(algorithms)} each provide a course", allowed="one of them")
    if setup.federation.hides is not None and not algorithms:
        text, allowed = "the learner of this task has no part in sums", "a torch task, or no privacy.hide"
        raise UserError(text, file=setup.federation.path, key="privacy.hide", value="models", allowed=allowed)
    return next(iter(algorithms.values()), None)


class FeatureHost:
    """The attached features. `links` are not open yet; `recovered` holds the recovered state of each feature.

    Raises UserError if a feature fails, if two have an extension channel with the same name, or if more than one asks
    for payment.
    """

    def __init__(
        self, features: Iterable[Feature], view: NodeView, links: Links, recovered: Mapping[Feature, Recovered]
    ) -> None:
        self._alarm, self._setup, self._extensions = view.alarm, view.setup, links.extensions
        self._loop = asyncio.get_running_loop()
        self._handled: dict[Feature, tuple[HandledChannel, ...]] = {}
        self._attached: dict[Feature, Attached] = {}
        for feature in features:
            own = replace(view, recovered=recovered.get(feature), other=self.find_attached)
            with failure_named(feature, "attach"):
                attached = feature.attach(own)
            if attached is None:
                continue
            with failure_named(feature, "channels"):
                self._handled[feature] = channels = attached.channels()
                for handled in channels:
                    links.extensions.add(handled)
            self._attached[feature] = attached
            if attached.door is not None:
                links.receive(attached.door)

    def find_attached(self, name: str) -> Attached | None:
        """Return what the feature of that name has attached."""
        return next((attached for feature, attached in self._attached.items() if feature.name == name), None)

    @property
    def gate(self) -> Callable[[RoundPlan], Answer] | None:
        """The function to ask before each round; None if no feature wants to be."""
        asked = any(type(attached).before_round is not Attached.before_round for attached in self._attached.values())
        return self.before_round if asked else None

    def before_round(self, plan: RoundPlan) -> Answer:
        """Ask for objections to a round, or for its cost, in the thread that trains.

        Raises the error of a guard, or ValueError if two features ask for payment.
        """
        payment = None
        for feature, attached in list(self._attached.items()):
            try:
                answer = attached.before_round(plan)
            except Exception as error:
                if feature.guards(self._setup()):
                    raise
                self._loop.call_soon_threadsafe(self._give_up, feature, error)
                continue
            if isinstance(answer, RoundRefused | Wait):
                return answer
            if answer is not None and payment is not None:
                raise ValueError(f"{feature.name} wants to be paid for a round, and another feature too")
            payment = answer or payment
        return payment

    def of(self, kind: type[T]) -> T:
        """Return the attached object of that class. Raises LookupError if there is none."""
        for attached in self._attached.values():
            if isinstance(attached, kind):
                return attached
        raise LookupError(f"no {kind.__name__} is attached")

    def trusted_members(self, members: Mapping[bytes, int]) -> Mapping[bytes, int]:
        """Return the members that may have sessions.

        If a feature fails here, the node fails: it might otherwise let in the wrong members.
        """
        for attached in self._attached.values():
            members = attached.trusts(members)
        return members

    def status(self) -> dict[str, Any]:
        """Return the fields of `NodeStatus` that features set, and their other fields under `features`."""
        figures: dict[str, Any] = {"features": {}}

        def ask(feature: Feature, attached: Attached) -> None:
            for name, value in attached.status().items():
                place = figures if name in FIELDS else figures["features"].setdefault(feature.name, {})
                place[name] = value

        self._each(ask)
        return figures

    async def opening(self, until_over: AsyncExitStack) -> None:
        for feature, attached in self._attached.items():
            with failure_named(feature, "opening"):
                await attached.opening(until_over)

    async def opened(self, until_closed: AsyncExitStack) -> None:
        for feature, attached in self._attached.items():
            with failure_named(feature, "opened"):
                await attached.opened(until_closed)

    def begin(self) -> None:
        self._each(lambda _, attached: attached.begin())

    def look(self) -> None:
        self._each(lambda _, attached: attached.look())

    def works(self) -> list[asyncio.Task[None]]:
        """Start the features' background work."""
        return [asyncio.create_task(self._carry(feature, attached.run)) for feature, attached in self._attached.items()]

    async def farewell(self, *, hasty: bool) -> None:
        await self._in_turn(lambda attached: attached.farewell(hasty=hasty))

    async def over(self, result: NodeResult) -> None:
        await self._in_turn(lambda attached: attached.over(result))

    def _each(self, act: Callable[[Feature, Attached], object]) -> None:
        for feature, attached in list(self._attached.items()):
            try:
                act(feature, attached)
            except Exception as error:  # noqa: BLE001 - any failure of a feature
                self._give_up(feature, error)

    async def _in_turn(self, work: Callable[[Attached], Awaitable[None]]) -> None:
        for feature, attached in list(self._attached.items()):
            await self._carry(feature, partial(work, attached))

    async def _carry(self, feature: Feature, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - any failure of a feature
            self._give_up(feature, error)

    def _give_up(self, feature: Feature, error: Exception) -> None:
        """Turn off a failed feature. Raises the error if the feature is a guard."""
        if feature.guards(self._setup()):
            raise error
        self._attached.pop(feature, None)
        for handled in self._handled.pop(feature, ()):
            self._extensions.drop(handled)
        what = f"{type(error).__name__}: {error}"
        self._alarm(FAILED, None, f"{feature.name} is off, and the node goes on: it failed ({what})")
