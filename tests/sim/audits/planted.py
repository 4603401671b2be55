"""Copies of the program with a mistake in them: a line of its source is another one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import p2pfl

ROOT = Path(p2pfl.__file__).parents[1]
PACKAGES = ("p2pfl", "sim", "topologies")


def plant(folder: Path, file: str, right: str, wrong: str) -> Path:
    """A copy in `folder` in which `file` has `wrong` in place of `right`. All else are links."""
    for package in PACKAGES:
        for place, folders, files in os.walk(ROOT / package):
            folders[:] = [one for one in folders if one != "__pycache__"]
            target = folder / Path(place).relative_to(ROOT)
            target.mkdir(parents=True)
            for name in files:
                (target / name).symlink_to(Path(place) / name)
    text = (ROOT / file).read_text(encoding="utf-8")
    if text.count(right) != 1:
        raise AssertionError(f"{file} has {text.count(right)} times {right!r}")
    (folder / file).unlink()
    (folder / file).write_text(text.replace(right, wrong), encoding="utf-8")
    return folder


def said_by(code: Path, kit: str, *arguments: object, timeout_s: float = 240.0) -> subprocess.CompletedProcess[str]:
    """What a kit beside this file says of that code."""
    command = [sys.executable, str(Path(__file__).with_name(kit)), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(code), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, env=environment, cwd=code, capture_output=True, text=True, timeout=timeout_s, check=False
    )
