"""The features of one node, called in their order. One that fails goes off with an alarm; a guard ends the node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeVar

from p2pfl.errors import StorageError, UserError
from p2pfl.net.links import Links
from p2pfl.net.side import FAILED, Feeding
from p2pfl.node.feature import Attached, Feature, NodeView
from p2pfl.reporting.status import NodeResult, NodeStatus

T = TypeVar("T", bound=Attached)

FIELDS = frozenset(NodeStatus.__struct_fields__)
Errors = tuple[type[Exception], ...]
MISTAKES: Errors = (UserError, StorageError)
"""While the node starts the user has to do something: an address is taken, a disk is full."""


class Attachments:
    """`links` are not open yet. Raises ValueError: two features have a side channel of one name."""

    def __init__(self, features: Iterable[Feature], view: NodeView, links: Links) -> None:
        self._alarm, self._setup, self._sides = view.alarm, view.setup, links.sides
        self._feedings: dict[Feature, tuple[Feeding, ...]] = {}
        self._attached: dict[Feature, Attached] = {}
        for feature in features:
            try:
                found = feature.attach(view)
                feedings = () if found is None else found.feedings()
            except Exception as error:  # noqa: BLE001 - whatever it is
                self._give_up(feature, error)
                continue
            self._feedings[feature] = feedings
            for feeding in feedings:
                links.sides.add(feeding)
            if found is not None:
                self._attached[feature] = found
            if found is not None and found.door is not None:
                links.receive(found.door)

    def of(self, kind: type[T]) -> T:
        """The one of that class. Raises LookupError: there is none."""
        for one in self._attached.values():
            if isinstance(one, kind):
                return one
        raise LookupError(f"no {kind.__name__} is attached")

    def trusted(self, members: Mapping[bytes, int]) -> Mapping[bytes, int]:
        """One that fails here might let in whom it should not: its error is the node's."""
        for one in self._attached.values():
            members = one.trusts(members)
        return members

    def status(self) -> dict[str, Any]:
        """Fields of `NodeStatus`, and under `features` what else each says."""
        found: dict[str, Any] = {"features": {}}

        def ask(feature: Feature, one: Attached) -> None:
            for name, value in one.status().items():
                place = found if name in FIELDS else found["features"].setdefault(feature.name, {})
                place[name] = value

        self._each(ask)
        return found

    async def opening(self, until_over: AsyncExitStack) -> None:
        await self._in_turn(lambda one: one.opening(until_over), MISTAKES)

    async def opened(self, until_closed: AsyncExitStack) -> None:
        await self._in_turn(lambda one: one.opened(until_closed), MISTAKES)

    def begin(self) -> None:
        self._each(lambda _, one: one.begin())

    def look(self) -> None:
        self._each(lambda _, one: one.look())

    def works(self) -> list[asyncio.Task[None]]:
        """What they do in the background, begun."""
        return [asyncio.create_task(self._carry(feature, one.run)) for feature, one in self._attached.items()]

    async def farewell(self, *, hasty: bool) -> None:
        await self._in_turn(lambda one: one.farewell(hasty=hasty))

    async def over(self, result: NodeResult) -> None:
        await self._in_turn(lambda one: one.over(result))

    def _each(self, act: Callable[[Feature, Attached], object]) -> None:
        for feature, one in list(self._attached.items()):
            try:
                act(feature, one)
            except Exception as error:  # noqa: BLE001 - whatever it is
                self._give_up(feature, error)

    async def _in_turn(self, work: Callable[[Attached], Awaitable[None]], passing: Errors = ()) -> None:
        for feature, one in list(self._attached.items()):
            await self._carry(feature, partial(work, one), passing)

    async def _carry(self, feature: Feature, work: Callable[[], Awaitable[None]], passing: Errors = ()) -> None:
        """Errors of the kinds `passing` are the node's."""
        try:
            await work()
        except passing:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is
            self._give_up(feature, error)

    def _give_up(self, feature: Feature, error: Exception) -> None:
        """Raises the error where the feature guards something."""
        if feature.guards(self._setup()):
            raise error
        self._attached.pop(feature, None)
        for feeding in self._feedings.pop(feature, ()):
            self._sides.drop(feeding)
        what = f"{type(error).__name__}: {error}"
        self._alarm(FAILED, None, f"{feature.name} is off, and the node goes on: it failed ({what})")
