"""Subcommands are found without being imported, and every failure ends in one line and the right exit code."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from p2pfl.cli import main as command_line
from p2pfl.config.graph import DisconnectedGraph
from p2pfl.errors import LearningError, StorageError, UserError
from topologies import TopologyError

ROOT = Path(command_line.__file__).parents[2]
CLOSED = (">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-")


@pytest.fixture
def failing(monkeypatch):
    """A subcommand `fail` that raises, returns or does what it is told."""

    def failing(action):
        @click.command()
        def fail():
            return action()

        class Entry:
            def load(self):
                return fail

        monkeypatch.setattr(command_line, "_joined", lambda: {"fail": Entry()})

    return failing


def raising(error):
    def action():
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (UserError("no", file="f.toml", key="a.b", value=1, allowed="2"), 2, "f.toml: a.b: no (found 1); allowed: 2"),
        (DisconnectedGraph("two parts"), 3, "two parts"),
        (TopologyError("no such graph", key="nodes"), 2, "nodes: no such graph"),
        (StorageError("disk full"), 1, "disk full"),
        (LearningError("task failed"), 1, "task failed"),
        (ExceptionGroup("several", [UserError("one"), ExceptionGroup("", [UserError("two")])]), 2, "one\nerror: two"),
        (ModuleNotFoundError("No module", name="torch"), 1, "this needs torch: pip install '.[torch]' in a checkout"),
    ],
)
def test_a_failure_is_a_line_on_stderr_and_an_exit_code(p2pfl, failing, error, code, text):
    failing(raising(error))
    outcome = p2pfl("fail")
    assert (outcome.code, outcome.out, outcome.err) == (code, "", f"error: {text}\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interruption_is_130(p2pfl, failing, error):
    failing(raising(error))
    assert p2pfl("fail").code == 130


@pytest.mark.parametrize("error", [RuntimeError("bug"), ExceptionGroup("", [UserError("one"), RuntimeError("bug")])])
def test_our_own_bug_keeps_its_traceback(failing, error):
    failing(raising(error))
    with pytest.raises(type(error)):
        command_line.main(["fail"])


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (4, 4)])
def test_what_a_command_returns_is_its_exit_code(p2pfl, failing, returned, code):
    failing(lambda: returned)
    assert p2pfl("fail").code == code


def test_an_unknown_command_suggests_the_nearest(p2pfl):
    outcome = p2pfl("chek")
    assert outcome.code == 2
    assert "Did you mean 'check'?" in outcome.err


def test_an_unknown_option_is_the_users_mistake(p2pfl):
    outcome = p2pfl("new", "--topologie", "ring", "x")
    assert outcome.code == 2
    assert "--topology" in outcome.err


def test_help_shows_every_command_with_a_line_and_an_example(p2pfl):
    outcome = p2pfl("--help")
    assert outcome.code == 0
    assert all(f"  {name} " in outcome.out for name in command_line.COMMANDS)
    assert "p2pfl new ward-7" in outcome.out


@pytest.mark.parametrize("name", ["new", "key", "check", "evaluate", "export"])
def test_every_help_has_an_example(p2pfl, name):
    outcome = p2pfl(name, "--help")
    assert outcome.code == 0
    assert f"  p2pfl {name} ward-7" in outcome.out


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], *([name, "--help"] for name in ("new", "check", "status", "evaluate", "export"))],
)
def test_help_imports_nothing_that_is_slow(arguments):
    code = f"""
import sys
from p2pfl.cli.main import main
try:
    main({arguments!r})
except SystemExit as end:
    assert end.code == 0
slow = {{"torch", "aiohttp", "numpy", "networkx", "nacl", "rich", "sim"}} & set(sys.modules)
assert not slow, slow
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60, cwd=ROOT)


def test_commands_of_other_packages_join_by_their_entry_points(tmp_path):
    """In a process of its own: what is installed is looked up once."""
    info = tmp_path / "p2pfl_gossip-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: p2pfl-gossip\nVersion: 9.9\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[p2pfl.commands]\ntopology = topologies.cli:topology\n", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])

    def p2pfl(*arguments):
        command = [sys.executable, "-m", "p2pfl.cli.main", *arguments]
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)

    assert "List, compare and design graphs" in p2pfl("--help").stdout
    assert p2pfl("--version").stdout == "p2pfl 9.9\n"
    mistake = p2pfl("topology", "info", "hypercube", "-n", "12")
    assert (mistake.returncode, mistake.stdout) == (2, "")
    assert mistake.stderr.startswith("error: nodes: no hypercube of this size (found 12); allowed: a power of two")


@pytest.mark.parametrize("arguments", [["--help"], ["key", "node.key"]])
def test_a_reader_that_has_left_is_no_traceback(tmp_path, arguments):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "p2pfl.cli.main", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    outcome = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, timeout=60, cwd=tmp_path, env=environment, check=False
    )
    os.close(writing)
    assert outcome.returncode == 1
    assert b"Traceback" not in outcome.stderr
    assert b"Exception ignored" not in outcome.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("arguments", [["list"], ["list", "--format", "csv"], ["info", "ring", "-n", "5"], ["--help"]])
def test_output_that_goes_to_a_full_disk_is_a_line_and_no_traceback(arguments):
    command = [sys.executable, "-m", "p2pfl.cli.main", "topology", *arguments]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (1, "error: cannot write: No space left on device\n")


def test_too_little_memory_is_a_line_and_no_traceback(p2pfl, failing):
    failing(raising(MemoryError()))
    outcome = p2pfl("fail")
    assert (outcome.code, outcome.err) == (1, "error: not enough memory\n")


@pytest.mark.skipif(os.name != "posix", reason="a shell of Unix")
@pytest.mark.parametrize(
    ("arguments", "code", "closed"),
    [
        ("--help", 0, CLOSED[-1]),
        *(("topology info ring -n 5", 0, closed) for closed in CLOSED),
        *(("topology info rng -n 5", 2, closed) for closed in CLOSED),
        ("topology list --format csv", 0, ">&-"),
        ("topology compare ring star -n 5", 0, ">&- 2>&-"),
        ("topology convert ring -n 5 -", 0, ">&-"),
        ("chek", 2, "2>&-"),
    ],
)
def test_streams_that_are_closed_are_no_traceback(arguments, code, closed):
    """Whatever would tell of it goes to a stream that is left, else the exit code tells."""
    command = f"{shlex.quote(sys.executable)} -m p2pfl.cli.main {arguments} {closed}"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert (done.returncode, "Traceback" in done.stdout + done.stderr) == (code, False)


@pytest.mark.skipif(os.name != "posix", reason="a shell of Unix")
def test_a_closed_input_is_an_empty_file():
    command = f"{shlex.quote(sys.executable)} -m p2pfl.cli.main topology info - <&-"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "an empty file" in done.stderr
