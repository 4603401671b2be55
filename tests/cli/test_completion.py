"""The scripts of click complete commands, options and files, and load nothing slow for that."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from p2pfl.cli.main import __file__

ROOT = Path(__file__).parents[2]

IN_BASH = """
source "$1"
complete -p p2pfl
COMP_WORDS=("${@:2}") COMP_CWORD=$(($# - 2))
compopt() { echo "compopt for $2"; }
_p2pfl_completion p2pfl
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def in_bash(tmp_path):
    """Complete words in a real bash, in which `p2pfl` is this checkout's."""

    def in_bash(*words):
        if shutil.which("bash") is None:
            pytest.skip("no bash on this machine")
        completion = tmp_path / "p2pfl.bash"
        command = tmp_path / "bin/p2pfl"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m p2pfl "$@"\n')
        command.chmod(0o755)
        source = {**os.environ, "_P2PFL_COMPLETE": "bash_source", "PYTHONPATH": str(ROOT)}
        completion.write_bytes(subprocess.run([command], env=source, capture_output=True, check=True).stdout)
        path = os.pathsep.join([str(command.parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-c", IN_BASH, "bash", str(completion), *words],
            env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout.splitlines()

    return in_bash


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["p2pfl", "che"], ["check"]),
        (["p2pfl", "--ve"], ["--version"]),
        (["p2pfl", "member", "re"], ["remove", "replace"]),
        (["p2pfl", "topology", "co"], ["compare", "convert"]),
        (["p2pfl", "launch", "ward", "--ref"], ["--references"]),
        (["p2pfl", "check", "ward", "--format", ""], ["table", "json"]),
        (["p2pfl", "check", "fed"], ["compopt for default", ""]),
    ],
)
def test_bash_completes_commands_options_their_values_and_files(in_bash, words, completed):
    registered, *offered = in_bash(*words)
    assert registered.endswith("-F _p2pfl_completion p2pfl")
    assert offered == completed


def test_completing_a_command_imports_no_command():
    code = """
import atexit, sys
atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr))
from p2pfl.cli.main import cli
cli.main(["ignored"], prog_name="p2pfl", standalone_mode=False)
"""
    environment = {**os.environ, "_P2PFL_COMPLETE": "bash_complete", "COMP_WORDS": "p2pfl s", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "plain,status" in done.stdout.splitlines()
    loaded = set(done.stderr.split())
    assert "p2pfl.cli.main" in loaded
    assert not loaded & {"torch", "numpy", "rich", "sim", "p2pfl.features.status.commands"}
