"""deploy/Containerfile: its steps run as a script below an empty folder, where no engine builds images."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def steps(deploy):
    """Each instruction as (name, rest)."""
    text = (deploy / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return [tuple(line.split(" ", 1)) for line in text.splitlines() if line and not line.startswith("#")]


def test_it_copies_what_a_wheel_needs_and_no_more(steps):
    copied = {name for step, rest in steps if step == "COPY" for name in shlex.split(rest)[:-1]}
    assert copied == {"pyproject.toml", "README.md", "LICENSE", "NOTICE", "p2pfl", "topologies", "sim"}
    assert all((ROOT / name).exists() for name in copied)


def test_it_starts_a_node_of_the_mounted_federation_and_stops_it_by_ctrl_c(steps):
    (entry,) = [rest for step, rest in steps if step == "ENTRYPOINT"]
    assert entry == '["/opt/p2pfl/bin/p2pfl", "run", "/federation"]'
    assert ("STOPSIGNAL", "SIGINT") in steps
    assert ("VOLUME", "/federation") in steps


@pytest.mark.long
@pytest.mark.timeout(600)
def test_its_steps_give_a_node_that_knows_its_federation(steps, run, tmp_path, make_five_boards):
    """Without torch; `python` is the one that runs the tests, and the image's root is a folder."""
    root = tmp_path / "root"
    script = ["set -eu", "TORCH=", "TORCH_INDEX=", f'python() {{ "{sys.executable}" "$@"; }}']
    for step, rest in steps:
        if step == "COPY":
            *sources, target = shlex.split(rest)
            for source in sources:
                where = root / target.strip("/") / (source if target.endswith("/") else "")
                where.parent.mkdir(parents=True, exist_ok=True)
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                copy(ROOT / source, where)
        elif step == "RUN":
            script.append(re.sub(r"(?<![\w.])(/opt|/src)\b", rf"{root}\1", rest))
    (root / "opt").mkdir()
    done = subprocess.run(
        ["sh", "-c", "\n".join(script)], cwd="/", capture_output=True, text=True, timeout=500, check=False
    )
    no_index = [sys.executable, "-m", "pip", "download", "-d", tmp_path, "--no-deps", "hatchling"]
    if done.returncode != 0 and run(*no_index).code:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    command = root / "opt/p2pfl/bin/p2pfl"
    five = make_five_boards(root / "federation")
    assert "Run one node of a federation" in run(command, "run", "--help").out
    assert "no mistakes" in run(command, "check", five, env={"PYTHONPATH": ""}).out
