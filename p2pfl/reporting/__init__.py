"""Figures that the reports of real and of simulated runs share, so that the two can be held side by side.

Here is only how any value becomes one that JSON can hold: commands import this package before anything heavy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def finite(value: Any) -> Any:
    """JSON knows neither infinity nor NaN: both become null."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case Mapping():
            return {str(key): finite(item) for key, item in value.items()}
        case list() | tuple():
            return [finite(item) for item in value]
    return value
