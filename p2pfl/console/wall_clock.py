"""The time of day: for the end of an invite, which people count in days, and for nothing that a node does."""

from __future__ import annotations

import time


def seconds_now() -> float:
    """Read this machine's clock, in seconds since 1970; on a board without a battery it may be anything."""
    return time.time()
