"""Virtual time, and the trace of what happens in it. Nothing here, or above, reads a clock.

Actions run in the order of (nanoseconds, sequence). Future actions lie unsorted in slots of equal length; a slot is
sorted when its turn comes. A single heap would miss the cache at every step once a run has thousands of nodes. Time is
whole nanoseconds, so sums of times are exact and the same everywhere; seconds are for the core, which knows no other
unit. Code that can compute in nanoseconds does.

Two runs whose trace has the same digest had the same events at the same nanoseconds. An entry is 25 bytes, little-
endian: time_ns 8 | kind 1 | a 4 | b 4 | n 8. The number of a kind is never reused for another one, so digests of
different versions may differ but never agree by mistake. No floats enter, so the digest is the same on any machine.
"""

from __future__ import annotations

import hashlib
import heapq
import struct
from bisect import insort
from collections.abc import Callable
from enum import IntEnum, unique
from operator import attrgetter
from typing import Any

from p2pfl.core import messages

NS = 1_000_000_000

SLOT_BITS = 17
"""2^17 ns: shorter than most delays, so that few entries go into the current slot."""

Action = Callable[[], object]
Entry = tuple[int, int, Action]


class Kernel:
    """Runs actions in the order of their virtual times; ties in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._due: list[Entry] = []
        """Sorted actions of the current slot, both done and pending; `_place` is the next."""
        self._place = 0
        self._slot = -1
        self._later: dict[int, list[Entry]] = {}
        self._slots: list[int] = []
        """A heap of the keys of `_later`."""
        self._sequence = 0
        self._halted = False

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.now_ns / NS

    @property
    def events(self) -> int:
        """The number of actions run so far, including the current one."""
        return self._sequence - self.pending

    @property
    def pending(self) -> int:
        """The number of pending actions."""
        return len(self._due) - self._place + sum(map(len, self._later.values()))

    @property
    def next_ns(self) -> int:
        """The time of the next action; now, if there is none."""
        if self._place < len(self._due):
            return self._due[self._place][0]
        return min(self._later[self._slots[0]])[0] if self._slots else self.now_ns

    def at_ns(self, time_ns: int, action: Action) -> None:
        """Run `action` at `time_ns`, or now if that time has passed."""
        self._sequence += 1
        if time_ns < self.now_ns:  # noqa: PLR1730 - max() is a call, and this is the hottest path
            time_ns = self.now_ns
        slot = time_ns >> SLOT_BITS
        if slot <= self._slot:
            insort(self._due, (time_ns, self._sequence, action))
        elif slot in self._later:
            self._later[slot].append((time_ns, self._sequence, action))
        else:
            self._later[slot] = [(time_ns, self._sequence, action)]
            heapq.heappush(self._slots, slot)

    def at(self, time_s: float, action: Action) -> None:
        """Run `action` at virtual time `time_s`, or now if that time has passed.

        When the action runs, the deadline has passed by the core's comparison: `now >= time_s` holds.
        """
        time_ns = int(time_s * NS)
        while time_ns / NS < time_s:
            time_ns += 1
        self.at_ns(time_ns, action)

    def after(self, delay_s: float, action: Action) -> None:
        self.at(self.now_ns / NS + delay_s, action)

    def step(self) -> bool:
        """Run the next action; return False if there is none."""
        if self._place == len(self._due) and not self._turn():
            return False
        self.now_ns, _, action = self._due[self._place]
        self._place += 1
        action()
        return True

    def _turn(self, until_ns: float = float("inf")) -> bool:
        """Advance to the next slot, if one begins by then."""
        if not self._slots or self._slots[0] << SLOT_BITS > until_ns:
            return False
        self._slot = heapq.heappop(self._slots)
        self._due, self._place = self._later.pop(self._slot), 0
        self._due.sort()
        return True

    def run(self, until_ns: int, stop: Callable[[], bool] | None = None) -> bool:
        """Run all actions up to and including `until_ns`; return True if `stop`, called after every action, or `halt`
        ended the run early.

        Afterwards the time is `until_ns`, unless the run was ended early or nothing more will ever happen; in that case
        it is the time of the last action.
        """
        self._halted = False
        while self._place < len(self._due) or self._turn(until_ns):
            time_ns, _, action = self._due[self._place]
            if time_ns > until_ns:
                break
            self._place += 1
            self.now_ns = time_ns
            action()
            if self._halted or (stop is not None and stop()):
                return True
        if self.pending:
            self.now_ns = max(self.now_ns, until_ns)
        return False

    def halt(self) -> None:
        """End `run` after the current action."""
        self._halted = True


LAYOUT = struct.Struct("<qBiiq")
BLOCK_ENTRIES = 4096


@unique
class TraceKind(IntEnum):
    """The kind of an entry. `a` is the node, or the sender of a message; unused fields are 0.

    The code of the message is added to the last four.
    """

    SESSION_OPENED = 1
    """A session opens. `a`, `b`: its ends, lower first; `n`: its number."""
    SESSION_CUT = 2
    """A session ends. `a`, `b`: its ends, lower first; `n`: its number."""
    SEPARATED = 3
    """A partition begins. `n`: the number of partitions that exist now."""
    REJOINED = 4
    """A partition ends. `n`: the number of partitions that exist now."""
    STARTED = 8
    """The node starts. `n`: the number of the lifetime that begins."""
    CRASHED = 9
    FORGOT = 10
    """The node's disk is lost."""
    ROUND_BEGUN = 11
    """A local round begins. `n`: the round."""
    ROUND_TRAINED = 12
    """A local round has trained. `n`: its steps."""
    ROUND_COMMITTED = 13
    """A local round is committed. `n`: the node's version."""
    FROZEN = 14
    """An exchange is frozen. `b`: the neighbor; `n`: the sequence number; the next three have the same fields."""
    REQUEST_APPLIED = 15
    REPLY_APPLIED = 16
    REFUSED = 17
    EDGE_RESET = 18
    """The node resets an edge. `b`: the neighbor; `n`: the incarnation."""
    BOOTSTRAPPED = 19
    """The node starts from the median of its neighbors. `n`: the number of these neighbors."""
    ALARM = 20
    """The node raises an alarm. `b`: the neighbor it is about, or -1."""
    FINISHED = 21
    """The node has finished. `n`: its rounds."""
    # 22 stays unused: an observer is not an event.
    MIXED = 23
    """The robust rule mixes. `n`: the number of neighbors."""
    LIFE_NOTED = 24
    """The node learns of a neighbor's new lifetime. `n`: its generation."""
    EDGES_CHANGED = 25
    """A change of the graph takes effect; `n`: how many edges the node has now."""
    SENT = 32
    """A message is sent. `b`: the receiver; `n`: the bytes counted."""
    LOST = 64
    """A message is lost. `b`: the receiver; `n`: the message's own number; the next two have the same fields."""
    DUPLICATED = 96
    DELIVERED = 128


MESSAGE_CODES: dict[type[messages.Message], int] = {
    messages.Hello: 1,
    messages.Request: 2,
    messages.Reply: 3,
    messages.Ready: 4,
    messages.Resync: 5,
    messages.Ask: 6,
    messages.Busy: 7,
    messages.Done: 8,
    messages.LivesTold: 9,
    messages.Resign: 10,
}
_NUMBERS: dict[type[messages.Message], Callable[[Any], int]] = dict.fromkeys(MESSAGE_CODES, attrgetter("seq")) | {
    messages.Resync: attrgetter("incarnation"),
    messages.Ready: attrgetter("version"),
    messages.Done: attrgetter("version"),
    messages.LivesTold: lambda message: len(message.lives),
    messages.Resign: attrgetter("process"),
}


def message_number(message: messages.Message) -> int:
    """Return the sequence number, or if there is none the incarnation, the version or a count."""
    return _NUMBERS[type(message)](message)


class Trace:
    """Hashes entries in blocks."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=32, person=b"p2pfl-trace")
        self._pack = LAYOUT.pack
        self._block: list[bytes] = []
        self._hashed = 0

    @property
    def entries(self) -> int:
        return self._hashed + len(self._block)

    def add(self, time_ns: int, kind: int, a: int, b: int, n: int) -> None:
        block = self._block
        block.append(self._pack(time_ns, kind, a, b, n))
        if len(block) >= BLOCK_ENTRIES:
            self._turn()

    def _turn(self) -> None:
        self._hash.update(b"".join(self._block))
        self._hashed += len(self._block)
        self._block = []

    @property
    def digest(self) -> str:
        """Return the digest of everything added so far, in hexadecimal; more may be added afterwards."""
        state = self._hash.copy()
        state.update(b"".join(self._block))
        return state.hexdigest()
