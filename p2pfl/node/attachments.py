"""The features of one node, called in order.

A feature that fails during startup stops the node with one clear error, because a person is there to correct it. A
feature that fails later is turned off with an alarm, and the node goes on; but if a guard fails, the node ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from p2pfl.core.course import Course
from p2pfl.core.events import RoundRefused
from p2pfl.engine.state import NodeState
from p2pfl.errors import P2PFLError, UserError
from p2pfl.net.links import Links
from p2pfl.net.side import FAILED, Feeding
from p2pfl.net.transport import MakeTransport
from p2pfl.node.assembly import Setup
from p2pfl.node.feature import Attached, Feature, FoundAtStart, NodeView, Recovered
from p2pfl.node.gate import Answer, RoundPlan, Wait
from p2pfl.node.plug_ins import options_of
from p2pfl.plugins import FAILURES, describe_failure
from p2pfl.reporting.status import NodeResult, NodeStatus

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


def recover(features: Iterable[Feature], at_start: FoundAtStart) -> dict[Feature, Recovered]:
    """Let each feature recover its own state.

    Raises UserError if a feature's `recover` does, or if it fails.
    """
    kept = {}
    for feature in features:
        with failure_named(feature, "recover"):
            one = feature.recover(at_start)
        if one is not None:
            kept[feature] = one
    return kept


def withheld(features: Iterable[Feature], setup: Setup) -> frozenset[str]:
    """Return the parts of the data about which no figure may be shown."""
    found: frozenset[str] = frozenset()
    for feature in features:
        with failure_named(feature, "withheld"):
            found |= feature.withheld(setup)
    return found


def transport(features: Iterable[Feature], setup: Setup, usual: MakeTransport) -> MakeTransport:
    """Return what carries the node's sessions, as features have changed it."""
    for feature in features:
        with failure_named(feature, "transport"):
            usual = feature.transport(setup, usual)
    return usual


def course(features: Iterable[Feature], setup: Setup, state: NodeState) -> Course | None:
    """Return the course that replaces gossip, if a feature provides one. Raises UserError if two features do."""
    found = {}
    for feature in features:
        with failure_named(feature, "course"):
            brought = feature.course(setup, state)
        if brought is not None:
            found[feature.name] = brought
    if len(found) > 1:
        raise UserError(f"{' and '.join(found)} each provide a course", allowed="one of them")
    return next(iter(found.values()), None)


class Attachments:
    """The attached features. `links` are not open yet; `recovered` holds the recovered state of each feature.

    Raises UserError if a feature fails, if two have a side channel with the same name, or if more than one asks for
    payment.
    """

    def __init__(
        self, features: Iterable[Feature], view: NodeView, links: Links, recovered: Mapping[Feature, Recovered]
    ) -> None:
        self._alarm, self._setup, self._sides = view.alarm, view.setup, links.sides
        self._loop = asyncio.get_running_loop()
        self._feedings: dict[Feature, tuple[Feeding, ...]] = {}
        self._attached: dict[Feature, Attached] = {}
        for feature in features:
            options = options_of(feature, self._setup().federation)
            own = replace(view, options=options, recovered=recovered.get(feature), other=self.find_attached)
            with failure_named(feature, "attach"):
                found = feature.attach(own)
            if found is None:
                continue
            with failure_named(feature, "feedings"):
                self._feedings[feature] = feedings = found.feedings()
            for feeding in feedings:
                with failure_named(feature, "feedings"):
                    links.sides.add(feeding)
            self._attached[feature] = found
            if found.door is not None:
                links.receive(found.door)

    def find_attached(self, name: str) -> Attached | None:
        """Return what the feature of that name has attached."""
        return next((one for feature, one in self._attached.items() if feature.name == name), None)

    @property
    def is_kept(self) -> bool:
        """True if a feature must be asked before each round."""
        return any(type(one).before_round is not Attached.before_round for one in list(self._attached.values()))

    def before_round(self, plan: RoundPlan) -> Answer:
        """Ask for objections to a round, or for its cost, in the thread that trains.

        Raises the error of a guard, or ValueError if two features ask for payment.
        """
        payment = None
        for feature, one in list(self._attached.items()):
            try:
                answer = one.before_round(plan)
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
        for one in self._attached.values():
            if isinstance(one, kind):
                return one
        raise LookupError(f"no {kind.__name__} is attached")

    def trusted_members(self, members: Mapping[bytes, int]) -> Mapping[bytes, int]:
        """Return the members that may have sessions.

        If a feature fails here, the node fails: it might otherwise let in the wrong members.
        """
        for one in self._attached.values():
            members = one.trusts(members)
        return members

    def status(self) -> dict[str, Any]:
        """Return the fields of `NodeStatus` that features set, and their other fields under `features`."""
        found: dict[str, Any] = {"features": {}}

        def ask(feature: Feature, attached: Attached) -> None:
            for name, value in attached.status().items():
                place = found if name in FIELDS else found["features"].setdefault(feature.name, {})
                place[name] = value

        self._each(ask)
        return found

    async def opening(self, until_over: AsyncExitStack) -> None:
        for feature, one in self._attached.items():
            with failure_named(feature, "opening"):
                await one.opening(until_over)

    async def opened(self, until_closed: AsyncExitStack) -> None:
        for feature, one in self._attached.items():
            with failure_named(feature, "opened"):
                await one.opened(until_closed)

    def begin(self) -> None:
        self._each(lambda _, one: one.begin())

    def look(self) -> None:
        self._each(lambda _, one: one.look())

    def works(self) -> list[asyncio.Task[None]]:
        """Start the features' background work."""
        return [asyncio.create_task(self._carry(feature, one.run)) for feature, one in self._attached.items()]

    async def farewell(self, *, hasty: bool) -> None:
        await self._in_turn(lambda one: one.farewell(hasty=hasty))

    async def over(self, result: NodeResult) -> None:
        await self._in_turn(lambda one: one.over(result))

    def _each(self, act: Callable[[Feature, Attached], object]) -> None:
        for feature, one in list(self._attached.items()):
            try:
                act(feature, one)
            except Exception as error:  # noqa: BLE001 - any failure of a feature
                self._give_up(feature, error)

    async def _in_turn(self, work: Callable[[Attached], Awaitable[None]]) -> None:
        for feature, one in list(self._attached.items()):
            await self._carry(feature, partial(work, one))

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
        for feeding in self._feedings.pop(feature, ()):
            self._sides.drop(feeding)
        what = f"{type(error).__name__}: {error}"
        self._alarm(FAILED, None, f"{feature.name} is off, and the node goes on: it failed ({what})")
