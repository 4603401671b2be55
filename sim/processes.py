"""How a process of ours ended, in words."""

from __future__ import annotations

import signal


def how_it_died(code: int | None) -> str:
    """Say how a process died that should have lived on; `code` is its exit code, negative for a signal."""
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
        out_of_memory = ": out of memory, or by hand" if -code == signal.SIGKILL else ""
        return f"its process was killed ({name}{out_of_memory})"
    return f"its process ended by itself (exit code {code})"
