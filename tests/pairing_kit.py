"""People at two terminals: `p2pfl invite` and `p2pfl join` as real processes, each at a pseudo-terminal of its own."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Self

P2PFL = (sys.executable, "-m", "p2pfl.cli.main")
LINE = re.compile(r"p2pfl:[A-Za-z0-9_-]{100,}")
KEY = re.compile(r"key (?:is )?([a-z0-9]{4}(?:-[a-z0-9]{4}){4})")
DEADLINE_S = 60.0


class Person:
    """A command at a terminal. `start` is `Popen`, or what starts a process elsewhere."""

    def __init__(self, *arguments: object, start: Callable[..., Any] = subprocess.Popen, **options: Any) -> None:
        self._own, theirs = os.openpty()
        words = [*P2PFL, *map(str, arguments)]
        command = (words,) if start is subprocess.Popen else words
        self.process = start(*command, stdin=theirs, stdout=theirs, stderr=theirs, **options)
        os.close(theirs)
        self.seen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._own)

    def until(self, text: str | re.Pattern[str]) -> str:
        """Read until the text, or one like it, has come; return it."""
        pattern = re.compile(re.escape(text)) if isinstance(text, str) else text
        end = time.monotonic() + DEADLINE_S
        while (found := pattern.search(self.seen)) is None:
            assert time.monotonic() < end, f"{pattern.pattern!r} has not come: {self.seen}"
            if not self._read(0.5):
                assert pattern.search(self.seen), f"it ended without {pattern.pattern!r}: {self.seen}"
        return found[found.lastindex or 0]

    def type(self, text: str) -> None:
        os.write(self._own, text.encode())

    def ends(self) -> int:
        """Read to the end, and return the exit code."""
        end = time.monotonic() + DEADLINE_S
        while self._read(0.5):
            assert time.monotonic() < end, f"it has not ended: {self.seen}"
        return int(self.process.wait(DEADLINE_S))

    def _read(self, within_s: float) -> bool:
        if not select.select([self._own], [], [], within_s)[0]:
            return self.process.poll() is None
        try:
            came = os.read(self._own, 65536)
        except OSError:  # the other end is closed
            return False
        self.seen += came.decode(errors="replace").replace("\r\n", "\n")
        return bool(came)
