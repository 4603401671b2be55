"""Refused connections and their reasons, and how much of the log they may fill.

A reason is logged once an hour and otherwise only counted; one line at the end of the hour gives the counts. All
strangers share one allowance and each member has its own, so that nobody can use up another's. Most of a member's
allowance is reserved for what it has sealed or signed, since somebody else at its address can fail in many ways too. A
reason is remembered by its wording, because the peer chooses the figures and keys in it. Lesser events, such as a
connection that left, are mentioned a few times an hour, at any log level.

A member whose federation file differs raises an alarm; without it, both ends would train alone unnoticed.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from logging import DEBUG, INFO, WARNING, Logger

from p2pfl.crypto import FederationMismatch, UnlistedKey
from p2pfl.errors import PeerFault
from p2pfl.foreign import printable
from p2pfl.net.line import Counters, OnAlarm
from p2pfl.net.notices import LeftBehindFault, SealedFault

DIFFERS = "federation-differs"
"""The kind of alarm about a federation file that differs."""

HOUR_S = 3600.0
REASON_BYTES = 200
LINE_BYTES = 512
"""The longest line; `STAMP_BYTES` of it are for the time, the level and the name before the text."""
STAMP_BYTES = 112
VARIANTS = 4
"""The number of reasons with the same wording that are logged."""
FIGURES = re.compile(r"[A-Za-z0-9_-]{43}|[0-9a-f]{16,}|\d+")
"""Matches public keys, hashes and numbers."""


@dataclass(frozen=True, slots=True)
class LinesAnHour:
    """The number of lines per hour. `unsealed` is for reasons that anybody at a member's address, or on the way, could
    cause.
    """

    reasons: int
    mentions: int
    unsealed: int

    @property
    def bytes(self) -> int:
        return (self.reasons + self.mentions) * LINE_BYTES


STRANGERS = LinesAnHour(reasons=48, mentions=32, unsealed=48)
MEMBER = LinesAnHour(reasons=12, mentions=20, unsealed=4)


def most_bytes_an_hour(members: int) -> int:
    """Return the most bytes that `Refusals` may write in an hour, including one line about the hour before."""
    return STRANGERS.bytes + members * MEMBER.bytes + LINE_BYTES


@dataclass(slots=True)
class HourOfRefusals:
    """The refusals of one member, or of all strangers, within this hour."""

    allowance: LinesAnHour
    said: set[str] = field(default_factory=set)
    wordings: Counter[str] = field(default_factory=Counter)
    counted: int = 0
    """Refusals counted but not logged."""
    mentions: int = 0
    unmentioned: int = 0
    unsealed: int = 0

    def note(self, reason: str, *, sealed: bool) -> bool:
        """Record a reason; return True if it should be logged.

        `sealed` says that the peer itself, and nobody else, is the cause.
        """
        wording = FIGURES.sub("#", reason)
        full = len(self.said) >= self.allowance.reasons or self.wordings[wording] >= VARIANTS
        full |= not sealed and self.unsealed >= self.allowance.unsealed
        if full or reason in self.said:
            return False
        self.said.add(reason)
        self.unsealed += not sealed
        self.wordings[wording] += 1
        return True

    def may_mention(self) -> bool:
        if self.mentions >= self.allowance.mentions:
            self.unmentioned += 1
            return False
        self.mentions += 1
        return True


@dataclass(slots=True, eq=False)
class Refusals:
    """The log of refusals. A peer is an index, or None for a stranger."""

    counters: Counters
    log: Logger
    on_alarm: OnAlarm
    name_of: Callable[[int], str] = "node {}".format
    name_of_key: Callable[[bytes], str | None] = lambda key: None  # noqa: ARG005 - whoever knows no former members
    """Returns the name of the member that has that public key, also of a former one."""
    _memories: dict[int | None, HourOfRefusals] = field(default_factory=dict)

    def note(self, peer: int | None, name_or_address: str, fault: PeerFault) -> None:
        """Log a refusal, or count it.

        `name_or_address` may be an address if the peer is not known; then only the reason distinguishes two refusals.
        """
        traffic = self.counters.unknown if peer is None else self.counters.peers[peer]
        traffic.refusals += 1
        reason, memory = clip(str(fault), REASON_BYTES), self._memory_of(peer)
        if isinstance(fault, LeftBehindFault):  # one alarm covers all peers that report this
            memory.counted += 1
            self.mention(peer, "refused %s: %s", name_or_address, reason)
            return
        differs = isinstance(fault, FederationMismatch)
        if not memory.note(reason, sealed=isinstance(fault, FederationMismatch | SealedFault)):
            memory.counted += 1
            self.mention(peer, "refused %s again: %s", name_or_address, reason)
            return
        if peer is not None and differs:
            self.on_alarm(DIFFERS, peer, reason)
        level = INFO if differs else WARNING  # the alarm is a warning already
        who = clip(name_or_address, REASON_BYTES // 2)
        if isinstance(fault, UnlistedKey) and (name := self.name_of_key(fault.public)):
            who += f" ({name}, no longer a member)"
        self._say(level, f"refused {who}: {reason}; logged once an hour, else only counted")

    def mention(self, peer: int | None, text: str, *values: object, level: int = DEBUG) -> None:
        """Log a lesser event caused by a stranger or a member, within the allowance."""
        if self.log.isEnabledFor(level) and self._memory_of(peer).may_mention():
            self._say(level, text % values)

    async def begin_hours(self) -> None:
        """Call `begin_hour` every hour until cancelled."""
        while True:
            await asyncio.sleep(HOUR_S)
            self.begin_hour()

    def begin_hour(self) -> None:
        """Begin a new hour: log the counts of the last one, and forget its reasons."""
        memories, self._memories = self._memories, {}
        left_out = [
            f"{'strangers' if peer is None else self.name_of(peer)} {memory.counted} times"
            + (f" ({memory.unmentioned} other lines)" if memory.unmentioned else "")
            for peer, memory in sorted(memories.items(), key=lambda item: -1 if item[0] is None else item[0])
            if memory.counted or memory.unmentioned
        ]
        if left_out:
            refused = any(memory.counted for memory in memories.values())
            self._say(WARNING if refused else DEBUG, f"in the last hour also refused: {', '.join(left_out)}")

    def _memory_of(self, peer: int | None) -> HourOfRefusals:
        if peer not in self._memories:
            self._memories[peer] = HourOfRefusals(STRANGERS if peer is None else MEMBER)
        return self._memories[peer]

    def _say(self, level: int, text: str) -> None:
        self.log.log(level, "%s", clip(text, LINE_BYTES - STAMP_BYTES))


def clip(text: str, most_bytes: int) -> str:
    """Return the text as one printable line of at most `most_bytes`."""
    line = printable(text[:most_bytes])
    return line.encode(errors="replace")[:most_bytes].decode(errors="ignore")
