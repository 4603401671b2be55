"""The time of day, for what people count in days: the expiry of invites, and the questions that a site has answered.
Nothing that a node does while it learns uses it.
"""

from __future__ import annotations

import time


def seconds_now() -> float:
    """Read this machine's clock, in seconds since 1970; on a board without a battery it may be wrong."""
    return time.time()
