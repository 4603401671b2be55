"""The scripts of `p2pfl completion` complete commands, options and files, and load nothing slow for that."""

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
def in_shell(p2pfl, tmp_path):
    """Run a script of a real shell, in which `p2pfl` is this checkout's, with the path of its completion as $1."""

    def in_shell(shell, script, *words):
        if shutil.which(shell) is None:
            pytest.skip(f"no {shell} on this machine")
        completion = tmp_path / f"p2pfl.{shell}"
        completion.write_text(p2pfl("completion", shell).out)
        command = tmp_path / "bin/p2pfl"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m p2pfl "$@"\n')
        command.chmod(0o755)
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
        (["p2pfl", "launch", "ward", "--sp"], ["--spawn"]),
        (["p2pfl", "check", "ward", "--format", ""], ["table", "json"]),
        (["p2pfl", "completion", "f"], ["fish"]),
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


def test_fish_shows_a_description_to_its_end_though_it_has_a_comma(in_shell):
    lines = in_shell("fish", IN_FISH.replace("che", "topology l"))
    assert [line.partition("\t")[2] for line in lines] == ["All families of graphs, or the one called..."]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script_and_the_help_says_where_it_goes(p2pfl, shell):
    assert "_P2PFL_COMPLETE" in p2pfl("completion", shell).out
    assert f"  p2pfl completion {shell} >" in p2pfl("completion", "--help").out


def test_another_shell_is_the_users_mistake(p2pfl):
    outcome = p2pfl("completion", "tcsh")
    assert outcome.code == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in outcome.err


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
