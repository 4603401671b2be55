"""What a stranger or a neighbor may cost us, and how long anything may take. Seconds and bytes throughout."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    connect_s: float = 10.0
    handshake_s: float = 10.0
    """from the accepted connection to the open session; a dialer has as long after it is connected."""
    contest_s: float = 3.0
    """how long a newcomer is held back in favor of a session that may be dead at the other end."""
    pending: int = 32
    """connections that have not become a session yet."""
    pending_per_address: int = 16
    min_rate: float = 1024.0
    """bytes per second that a message under way must bring, averaged over `rate_window_s`."""
    rate_window_s: float = 30.0
    partial_bytes: int | None = None
    """partly received messages of all sessions together; None allows one of the largest for each neighbor."""
    queue_messages: int = 64
    drain_s: float = 30.0
    """how long one chunk may wait for the peer to read."""
    heartbeat_s: float = 30.0
    """silence after which a ping is sent; half as long again without an answer and the session is dead. A chunk of
    256 KiB must pass in that half, behind as much in the socket, so links below about 300 kbit/s are too slow."""
    close_s: float = 1.0
    """how long a goodbye may take."""
    retry_first_s: float = 0.2
    retry_ceiling_s: float = 15.0
    settled_s: float = 5.0
    """a session that lived this long proves that dialing works: the next dial is not delayed."""
    session_s: float | None = None
    """age at which the dialer renews a session; None leaves it to the cipher."""
