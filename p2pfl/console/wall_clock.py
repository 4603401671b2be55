"""The time of day. It is used only for the expiry of invites, which people count in days; nothing that a node does uses
it.
"""

from __future__ import annotations

import time


def seconds_now() -> float:
    """Read this machine's clock, in seconds since 1970; on a board without a battery it may be wrong."""
    return time.time()
