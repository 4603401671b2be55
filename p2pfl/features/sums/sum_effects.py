"""What the sums ask of whoever drives them, in the order in which it is to be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from p2pfl.features.sums.masks import Words
from p2pfl.features.sums.sum_messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToNeighbor:
    """Send a message to a neighbor. It may be lost, if the session ends; it may come late."""

    peer: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Write down durably, before the effects after it: data with this digest are in a sum of these members."""

    data: bytes
    members: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SumDone:
    """The sum of these members' vectors, modulo 2^64. All who get the sum of this set-up and number get this one."""

    label: str
    setup: bytes
    number: int
    members: tuple[int, ...]
    total: Words


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """There is no sum at this node. Others may have one; it is then that of the members who are named there."""

    label: str
    reason: str
    differ: tuple[int, ...] = ()
    """The members who sum other things than this one."""
    is_out: bool = False
    """This member's masked vector has left it, and others may still get a sum with it."""
    missing: tuple[int, ...] = ()
    """The members that have not said that they have a vector, or have no keys for a set-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldUp:
    """This member holds sums up."""

    member: int
    why: str


Effect: TypeAlias = SendToNeighbor | Keep | SumDone | Refused | HeldUp


class Effects:
    """Collects the effects of one event."""

    def __init__(self) -> None:
        self.found: list[Effect] = []

    def say(self, peer: int, message: Message) -> None:
        self.found.append(SendToNeighbor(peer=peer, message=message))

    def add(self, effect: Effect) -> None:
        self.found.append(effect)
