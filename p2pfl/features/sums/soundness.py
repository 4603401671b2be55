"""Statements that an honest member may make, by themselves: sizes and members are those that all have agreed on."""

from __future__ import annotations

from p2pfl.features.sums.sum_messages import (
    PAIR_BYTES,
    ROSTER,
    SEAL_BYTES,
    Ack,
    Keys,
    MemberList,
    Parcel,
    Reveal,
    SetupOpening,
    Statement,
)
from p2pfl.features.sums.sum_settings import SumSettings

TERMS_BYTES = 32


def is_sound(author: int, statement: Statement, settings: SumSettings) -> bool:
    """Return True if a member with these settings may have made a statement, whatever else was said."""
    if getattr(statement, "number", ROSTER) >= settings.sums:
        return False
    match statement:
        case Keys():
            return statement.fit(settings.sums)
        case SetupOpening():
            named = statement.named()
            few = max(settings.quorum, settings.least)
            return (
                named is not None and len(named) >= few and author in named and settings.are_members(statement.members)
            )
        case Parcel():
            size = settings.sums * PAIR_BYTES + SEAL_BYTES
            return statement.to < settings.count and statement.to != author and len(statement.sealed) == size
        case Ack():
            return settings.are_members(statement.holds)
        case MemberList():
            size = 0 if statement.number == ROSTER else TERMS_BYTES
            return len(statement.terms) == len(statement.total) == size and settings.are_members(statement.members)
        case Reveal():
            of = [member for member, _ in statement.shares]
            return len(statement.own) in {0, TERMS_BYTES} and of == sorted({*of}) and of[-1:] < [settings.count]
    return True
