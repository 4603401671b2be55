"""What a stranger or a neighbor may cost us, and how long anything may take. Seconds and bytes throughout.

`Limits` is what one node allows. Messages under way are bound twice: by the memory that they hold together, and by the
rate that each must keep.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2pfl.errors import PeerFault


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    connect_s: float = 10.0
    handshake_s: float = 10.0
    """Time from the accepted connection to the open session; a dialer has as long once it is connected."""
    contest_s: float = 3.0
    """How long a newcomer is held back in favor of a session that may be dead at the other end."""
    pending: int = 32
    """Connections that are not a session yet."""
    pending_per_address: int = 16
    min_rate: float = 1024.0
    """Bytes per second that a message under way must bring, averaged over `rate_window_s`."""
    rate_window_s: float = 30.0
    partial_bytes: int | None = None
    """Memory for partly received messages of all sessions; None allows one of the largest per neighbor."""
    queue_messages: int = 64
    drain_s: float = 30.0
    """How long one chunk may wait for the peer to read."""
    heartbeat_s: float = 30.0
    """The silence after which a ping is sent; half as long again without an answer ends the session. A chunk of 256 KiB
    must pass in that half, behind as much in the socket, so links below about 300 kbit/s are too slow."""
    close_s: float = 1.0
    """How long a goodbye may take."""
    retry_first_s: float = 0.2
    retry_ceiling_s: float = 15.0
    settled_s: float = 5.0
    """A session of this age proves that dialing works: the next dial is not delayed."""
    session_s: float | None = None
    """The age at which the dialer renews a session; None leaves it to the cipher."""


class ByteBudget:
    """Bytes of partly received messages, all sessions together."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self.used = 0

    def change(self, held: int, wanted: int) -> int:
        """Replace a session's `held` bytes by `wanted` and return these; PeerFault where there is no room."""
        if wanted > held and self.used - held + wanted > self._limit:
            raise PeerFault(f"{wanted} bytes under way are over what is left of {self._limit}")
        self.used += wanted - held
        return wanted


class MessagePace:
    """A message under way must bring `min_rate * window_s` bytes in every window."""

    def __init__(self, min_rate: float, window_s: float) -> None:
        self._least = min_rate * window_s
        self._window_s = window_s
        self._brought = 0
        self.deadline: float | None = None
        """When the window ends; None while no message is under way."""

    def note(self, now: float, size: int, *, under_way: bool) -> None:
        if not under_way:
            self.deadline = None
        elif self.deadline is None:
            self._open(now)
        else:
            self._brought += size
            if self._brought >= self._least:
                self._open(now)

    def _open(self, now: float) -> None:
        self.deadline = now + self._window_s
        self._brought = 0
