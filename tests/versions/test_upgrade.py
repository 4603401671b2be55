"""A federation that the version before began goes on: its settings, keys, states and report (`make_golden.py`)."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from ports import free_ports

from p2pfl import Report

GOLDEN = sorted(Path(__file__).parent.glob("*.tar.gz"))


@pytest.fixture(params=GOLDEN, ids=lambda path: path.name)
def begun(request, tmp_path):
    """The folder where it was put: what stood at absolute places is elsewhere, and its ports may be taken."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    ports = dict(zip(("8470", "8471", "8472"), map(str, free_ports(3)), strict=True))
    for file in (tmp_path / "ward").rglob("*.toml"):
        text = re.sub(r"\b847[0-2]\b", lambda port: ports[port[0]], file.read_text("utf-8"))
        text = re.sub(r'path = "[^"]*/(\w+\.csv)"', rf'path = "{tmp_path}/\1"', text)
        file.write_text(re.sub(r"(?m)^rounds = 400 ", "rounds = 30 ", text), encoding="utf-8")
    return tmp_path / "ward"


def p2pfl(*words):
    return subprocess.run(
        [sys.executable, "-m", "p2pfl", *map(str, words)], capture_output=True, text=True, timeout=110, check=False
    )


def test_it_goes_on_where_the_version_before_stopped(begun):
    before = Report.from_json((begun / "report.json").read_bytes())
    rounds = {node.name: node.rounds for node in before.nodes}
    assert all(0 < each < 30 for each in rounds.values())
    checked = p2pfl("check", begun)
    assert "no mistakes" in checked.stdout, checked.stdout + checked.stderr
    launched = p2pfl("launch", begun)
    assert launched.returncode == 0, launched.stdout + launched.stderr
    after = Report.from_json((begun / "report.json").read_bytes())
    assert all(node.finished and node.rounds >= 30 for node in after.nodes)
    for name, count in rounds.items():
        assert f"resuming after round {count}\n" in (begun / name / "node.log").read_text("utf-8")
