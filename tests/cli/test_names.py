"""Packages of the same names from other projects: a start says so in one sentence, before it imports them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
THEIRS = 'raise RuntimeError("theirs was run")\n'


def start(*words, beside):
    path = f"{beside}:{ROOT}"
    command, env = [sys.executable, *words], {"PYTHONPATH": path}
    return subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, check=False)


@pytest.fixture(params=["topologies", "sim"])
def foreign(request, tmp_path):
    package = tmp_path / request.param
    package.mkdir()
    (package / "__init__.py").write_text(THEIRS, encoding="utf-8")
    return package


def test_a_command_names_the_foreign_package_and_what_to_do(foreign):
    done = start("-m", "p2pfl", "list", "rules", beside=foreign.parent)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: the package {foreign.name!r} in {foreign} is not p2pfl-gossip's; rename it, or start from another "
        "folder\n"
    )


def test_a_program_gets_the_same_sentence_as_an_import_error(foreign):
    done = start("-c", "from p2pfl import Federation", beside=foreign.parent)
    assert f"ImportError: the package {foreign.name!r} in {foreign} is not p2pfl-gossip's" in done.stderr
    assert "theirs was run" not in done.stderr


def test_an_installed_project_is_named_with_how_to_remove_it(foreign):
    info = foreign.parent / "their_graphs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-graphs\nVersion: 1.0\n", encoding="utf-8")
    (info / "top_level.txt").write_text(f"{foreign.name}\n", encoding="utf-8")
    done = start("-m", "p2pfl", "--version", beside=foreign.parent)
    assert "is another project's (their-graphs); pip uninstall their-graphs, then pip install --force" in done.stderr


def test_ours_are_ours():
    done = start("-m", "p2pfl", "--version", beside="")
    assert done.returncode == 0
    assert done.stdout.startswith("p2pfl ")
    assert ", commit " in done.stdout or not (ROOT / ".git").exists()
