"""The code of earlier commits, taken out of git's history, to be run beside today's."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIRST_OF_9 = "532ee2b0ab82a1d684689c096e1933211839dddd"
BEFORE_RELAYS = "795d3d39949f7be1bb66f8fd23f16f33a6cf7d79"
FIRST_RELAYS = "bacbae72613826084422d9226346ae09f3c8cce9"
TRAINS_ON = "3a6e472e286d97066c1a6b01ef06a488cf921e76"
ONLY_MIXES = "d845db7a9274f8e41da6d629a749815780731063"
NEVER_CALM = "8002433a8787fd8d7a6dd554fae7287349f871f9"


def why_not(commit: str) -> str | None:
    """What is missing to run that commit; None if nothing."""
    try:
        found = subprocess.run(
            ["git", "-C", ROOT, "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True, check=False
        )
    except FileNotFoundError:
        return "git is not installed"
    return (
        None if found.returncode == 0 else f"commit {commit[:8]} is not in the history here: a clone, and not shallow"
    )


def take_out(commit: str, folder: Path) -> Path:
    """Write the packages of that commit into a folder, for PYTHONPATH."""
    tar = subprocess.run(
        ["git", "-C", ROOT, "archive", commit, "p2pfl", "sim", "topologies", ":(glob)tests/*.py"],
        capture_output=True,
        check=True,
    ).stdout
    with tarfile.open(fileobj=BytesIO(tar)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "p2pfl.cli.main", *map(str, words)]
