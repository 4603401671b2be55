"""`tools/size.py`: the bounds of size.toml hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BOUNDS = """[parts]
core = { lines = 2, files = 1, folders = ["p2pfl/core"] }
rest = { lines = 0, files = 0, folders = ["p2pfl"] }
"""


@pytest.mark.parametrize(("lines", "verdict"), [(2, 0), (3, 1)])
def test_a_part_above_its_bound_fails_and_is_named(tmp_path, lines, verdict):
    for path, text in {"p2pfl/core/a.py": "x = 1\n" * lines, "ARCHITECTURE.md": "One.\n"}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    whole = (ROOT / "size.toml").read_text("utf-8").partition("[whole]")[2]
    (tmp_path / "size.toml").write_text(f"{BOUNDS}\n[whole]{whole}")
    for words in ("init", "-q"), ("add", "."):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    run = subprocess.run(
        [sys.executable, ROOT / "tools/size.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == verdict, run.stderr
    assert ("core: lines" in run.stdout, "TOO LARGE" in run.stdout) == (True, bool(verdict))
