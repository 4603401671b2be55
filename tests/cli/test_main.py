"""Subcommands are found without being imported, and every failure ends in one line and the right exit code."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from p2pfl.cli import cli, own_commands
from p2pfl.cli.main import __file__, main
from p2pfl.config import DisconnectedGraph
from p2pfl.console import Group
from p2pfl.errors import LearningError, StorageError, UserError
from topologies import TopologyError

ROOT = Path(__file__).parents[2]

ONE_BY_ONE = """
import json, os, sys
from pathlib import Path
from p2pfl.cli.main import main

streams = {name: getattr(sys, name) and os.dup(number) for number, name in enumerate(["stdin", "stdout", "stderr"])}
codes = []
for command in sys.argv[2:]:
    for (name, number), mode in zip(streams.items(), "rww"):
        setattr(sys, name, None if number is None else open(os.dup(number), mode))
    try:
        main(command.split())
    except SystemExit as end:
        codes.append(end.code)
Path(sys.argv[1]).write_text(json.dumps(codes))
"""
"""Commands of one process, each with streams of its own."""


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

        monkeypatch.setattr("p2pfl.cli.main._joined", lambda: {"fail": Entry()})

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
        main(["fail"])


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


def test_help_shows_every_command_under_its_group_on_one_screen(p2pfl):
    outcome = p2pfl("--help")
    lines = outcome.out.splitlines()
    assert (outcome.code, len(lines) <= 40, max(map(len, lines)) <= 80) == (0, True, True)
    assert [line for line in lines if line.endswith(":") and line[0] != " "] == [f"{group}:" for group in Group]
    for name, command in own_commands().items():
        place = lines.index(next(line for line in lines if line.startswith(f"  {name} ")))
        heading = next(line for line in reversed(lines[:place]) if line[0] != " ")
        assert (heading, lines[place].split(maxsplit=1)[1]) == (f"{command.group}:", command.line)


def test_a_command_of_another_package_is_listed_without_a_line_of_ours(p2pfl, failing):
    failing(lambda: None)
    assert "\n  fail\n" in p2pfl("--help").out


def every_command(command, ctx):
    yield ctx.command_path.partition(" ")[2], command.get_help(ctx)
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            yield from every_command(child, click.Context(child, info_name=name, parent=ctx))


def test_every_help_fits_a_screen_of_80_columns_and_ends_with_an_example_of_its_command():
    root = click.Context(cli, info_name="p2pfl", terminal_width=80)
    helps = dict(every_command(cli, root))
    assert len(helps) > 40
    assert [name for name, text in helps.items() if len(text.splitlines()) > 45] == []
    assert [line for text in helps.values() for line in text.splitlines() if len(line) > 80] == []
    examples = {name: text.partition("Example")[2] for name, text in helps.items() if name}
    assert [name for name, text in examples.items() if f"\n    p2pfl {name}" not in text] == []


def test_help_imports_nothing_that_is_slow():
    code = """
import sys
from p2pfl.cli.main import main
slowest = {"torch", "matplotlib", "networkx", "scipy", "sim"}
helps = ([name, "--help"] for name in ("new", "check", "status", "evaluate", "export", "list"))
for arguments in (["--help"], ["--version"], *helps):
    try:
        main(arguments)
    except SystemExit as end:
        assert end.code == 0
    slow = slowest | ({"aiohttp", "numpy", "nacl", "rich"} if arguments[0] in ("--help", "--version") else set())
    slow &= set(sys.modules)
    assert not slow, (arguments, slow)
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

    assert "Compare and design graphs" in p2pfl("--help").stdout
    assert p2pfl("--version").stdout.startswith("p2pfl 9.9")  # and of a checkout its commit
    mistake = p2pfl("topology", "info", "hypercube", "-n", "12")
    assert (mistake.returncode, mistake.stdout) == (2, "")
    assert mistake.stderr.startswith("error: nodes: no hypercube of this size (found 12); allowed: a power of two")


def codes_of(folder, *commands, closed="", **streams):
    """Exit codes of commands that a shell starts with streams closed; and what they said."""
    codes, environment = folder / "codes.json", {**os.environ, "PYTHONPATH": str(ROOT)}
    shell = f"{shlex.join([sys.executable, '-c', ONE_BY_ONE, str(codes), *commands])} {closed}"
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    done = subprocess.run(["/bin/sh", "-c", shell], timeout=60, cwd=folder, env=environment, check=True, **streams)
    return json.loads(codes.read_text(encoding="utf-8")), ((done.stdout or b"") + done.stderr).decode()


@pytest.mark.skipif(os.name != "posix", reason="a shell of Unix")
def test_a_reader_that_has_left_is_no_traceback(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    codes, said = codes_of(tmp_path, "--help", "key node.key", stdout=writing)
    os.close(writing)
    assert codes == [1, 1]
    assert "Traceback" not in said
    assert "Exception ignored" not in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_output_that_goes_to_a_full_disk_is_a_line_and_no_traceback(tmp_path):
    commands = ("topology list", "topology list --format csv", "topology info ring -n 5", "topology --help")
    with Path("/dev/full").open("w") as full:
        codes, said = codes_of(tmp_path, *commands, stdout=full)
    assert (codes, said) == ([1] * 4, "error: cannot write: No space left on device\n" * 4)


def test_too_little_memory_is_a_line_and_no_traceback(p2pfl, failing):
    failing(raising(MemoryError()))
    outcome = p2pfl("fail")
    assert (outcome.code, outcome.err) == (1, "error: not enough memory\n")


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="a shell of Unix")
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_no_traceback(tmp_path, closed):
    """Whatever would tell of it goes to a stream that is left, else the exit code tells."""
    right = ("--help", "topology info ring -n 5", "topology list --format csv", "topology compare ring star -n 5")
    codes, said = codes_of(
        tmp_path, *right, "topology convert ring -n 5 -", "topology info rng -n 5", "chek", closed=closed
    )
    assert (codes, "Traceback" in said) == ([0] * 5 + [2, 2], False)


@pytest.mark.skipif(os.name != "posix", reason="a shell of Unix")
def test_a_closed_input_is_an_empty_file(tmp_path):
    codes, said = codes_of(tmp_path, "topology info -", closed="<&-")
    assert codes == [2]
    assert "an empty file" in said
