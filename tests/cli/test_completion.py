"""The scripts of click complete commands, options and files, and load nothing slow for that."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from p2pfl.cli import main as command_line

ROOT = Path(command_line.__file__).parents[2]

IN_BASH = """
source "$1"
complete -p p2pfl
COMP_WORDS=("${@:2}") COMP_CWORD=$(($# - 2))
compopt() { echo "compopt for $2"; }
_p2pfl_completion p2pfl
printf '%s\\n' "${COMPREPLY[@]}"
"""
IN_ZSH = """
autoload -Uz compinit && compinit -D -u
source "$1"
print -r -- ${_comps[p2pfl]}
"""
IN_FISH = 'source $argv[1]; complete --do-complete "p2pfl che"'


@pytest.fixture
def in_shell(tmp_path):
    """Run a script of a real shell, in which `p2pfl` is this checkout's, with the path of its completion as $1."""

    def in_shell(shell, script, *words):
        if shutil.which(shell) is None:
            pytest.skip(f"no {shell} on this machine")
        completion = tmp_path / f"p2pfl.{shell}"
        command = tmp_path / "bin/p2pfl"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m p2pfl "$@"\n')
        command.chmod(0o755)
        source = {**os.environ, "_P2PFL_COMPLETE": f"{shell}_source", "PYTHONPATH": str(ROOT)}
        completion.write_bytes(subprocess.run([command], env=source, capture_output=True, check=True).stdout)
        path = os.pathsep.join([str(command.parent), os.environ["PATH"]])
        zeroth = [] if shell == "fish" else [shell]
        done = subprocess.run(
            [shell, "-c", script, *zeroth, str(completion), *words],
            env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout.splitlines()

    return in_shell


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
def test_bash_completes_commands_options_their_values_and_files(in_shell, words, completed):
    registered, *offered = in_shell("bash", IN_BASH, *words)
    assert registered.endswith("-F _p2pfl_completion p2pfl")
    assert offered == completed


def test_zsh_knows_the_function_that_completes(in_shell):
    assert in_shell("zsh", IN_ZSH) == ["_p2pfl_completion"]


def test_fish_completes_a_command(in_shell):
    assert [line.split("\t")[0] for line in in_shell("fish", IN_FISH)] == ["check"]


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
