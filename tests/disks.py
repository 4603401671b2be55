"""A disk of a few kilobytes or megabytes, where this user may mount one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def tiny_disk(folder: Path, size: str) -> Iterator[Path]:
    """`size` as mount takes it, say 3m; skips the test where nothing may be mounted."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, *, leave_bytes: int = 0) -> Path:
    """A file that takes the room there is but for `leave_bytes`."""
    ballast = folder / "ballast"
    ballast.touch()
    there = os.statvfs(folder)
    with ballast.open("wb") as file:
        file.write(bytes(max(0, there.f_bavail * there.f_frsize - leave_bytes)))
    return ballast
