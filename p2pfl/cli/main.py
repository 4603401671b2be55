"""The command `p2pfl`: its subcommands by name, each imported only when it is called, and how a failure ends.

Subcommands of other packages join through the entry point group `p2pfl.commands`. Exit codes: 0 done, 1 failed,
2 the user's mistake, 3 disconnected graph, 4 not converged or not certified, 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any, NoReturn

import click

from p2pfl.console.groups import Command, Named
from p2pfl.console.output import show_mistakes
from p2pfl.errors import P2PFLError, UserError
from p2pfl.features import commands
from topologies.errors import TopologyError

DISTRIBUTION = "p2pfl-gossip"
ENTRY_POINTS = "p2pfl.commands"

COMMANDS: Mapping[str, Command] = {
    "demo": Command(
        "Several nodes on this machine learn handwritten digits; a report at the end.", "p2pfl.cli.demo:demo"
    ),
    "new": Command("Create an example federation to edit.", "p2pfl.cli.new:new"),
    "key": Command("Create a node's identity, or show it.", "p2pfl.cli.new:key"),
    "check": Command("Show what a federation would do, and every mistake in it.", "p2pfl.cli.check:check"),
    "compressors": Command("List compressors, and what they cost.", "p2pfl.cli.compressors:compressors"),
    "methods": Command("List learning methods.", "p2pfl.cli.methods:methods"),
    "rules": Command(
        "List the rules for mixing with neighbors, some of which may be malicious.", "p2pfl.cli.rules:rules"
    ),
    "staleness": Command("List how much an exchange counts by how late it is.", "p2pfl.cli.staleness:staleness"),
    "run": Command("Run one node until its rounds are done; a second start resumes.", "p2pfl.cli.run:run"),
    "launch": Command("Run all nodes of a federation on this machine.", "p2pfl.cli.launch:launch"),
    "evaluate": Command("Test the model that a node has learned.", "p2pfl.cli.learned:evaluate"),
    "export": Command("Write the model that a node has learned as a plain file.", "p2pfl.cli.learned:export"),
}
JOINED: Mapping[str, str] = {
    "audit": "Attack an own federation as its neighbors could, without and with privacy.",
    "sim": "Simulate a federation of up to thousands of nodes, with losses, crashes and attacks.",
    "topology": "List, compare and design graphs: how fast they mix, and which one to use.",
}
EXTRAS: Mapping[str, str] = {
    "torch": "torch",
    "matplotlib": "plot",
    "scipy": "topology",
    "pyamg": "topology",
    "dask": "dask",
    "distributed": "dask",
    "segno": "qr",
    "zeroconf": "lan",
    "onnx": "onnx",
    "tensorboardX": "tensorboard",
}
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Error numbers of a disk that accepts no more data, which is neither a mistake nor a bug."""

EXAMPLES = """\b
Examples:
  p2pfl demo                           watch it learn, on this machine
  p2pfl new ward-7                     create a federation to edit
  p2pfl check ward-7                   show what it would do, and what is wrong with it
  p2pfl run ward-7 --node node0        run one node, as each device does
"""


@cache
def own_commands() -> dict[str, Command]:
    """Of this package and of features, in the order of the listing."""
    found, waiting = list(COMMANDS.items()), commands()
    while waiting:
        names = [name for name, _ in found]
        name = next((name for name, one in waiting.items() if one.after in names), next(iter(waiting)))
        one = waiting.pop(name)
        found.insert(names.index(one.after) + 1 if one.after in names else len(names), (name, one))
    return dict(found)


class MainCommands(Named):
    """The subcommands of this package, of features and of other packages."""

    def lines(self) -> dict[str, str]:
        own = {name: command.line for name, command in own_commands().items()}
        return own | {name: JOINED.get(name, "") for name in sorted(_joined().keys() - own.keys())}

    def find(self, name: str) -> Any:
        return (own_commands().get(name) or _joined()[name]).load()


def software_version() -> str:
    try:
        return f"p2pfl {version(DISTRIBUTION)}"
    except PackageNotFoundError:
        return "p2pfl, not installed: running from its source"


@cache
def _joined() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


def _show_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - click's
    if wanted:
        click.echo(software_version())
        ctx.exit()


@click.group(cls=MainCommands, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
def cli() -> None:
    """Devices learn one model together, without a server and without sharing their data."""


def main(arguments: Sequence[str] | None = None, *, command: click.Command = cli, name: str = "p2pfl") -> NoReturn:
    """Run a command line and leave with its exit code; a mistake ends in a line on stderr, never a traceback."""
    _open_streams()
    try:
        sys.exit(_run(arguments, command, name))
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except BrokenPipeError:
        # the reader of our output has stopped reading
        _close_output()
        sys.exit(1)


def _run(arguments: Sequence[str] | None, command: click.Command, name: str) -> int:
    try:
        result = command.main(arguments, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name is None or error.name not in EXTRAS:
            raise
        return _fail(f"this needs {error.name}: pip install '.[{EXTRAS[error.name]}]' in a checkout", 1)
    except OSError as error:
        if error.errno not in FULL:
            raise
        _close_output()
        return _fail(f"cannot write: {error.strerror}", 1)
    except MemoryError:
        return _fail("not enough memory", 1)
    except Exception as error:
        failures = _leaves(error)
        if not all(isinstance(failure, P2PFLError | TopologyError) for failure in failures):
            raise
        show_mistakes(failures)
        return exit_code(failures[0])
    return result if isinstance(result, int) else 0


def _open_streams() -> None:
    """Replace standard streams that the parent process closed, for which Python has None."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - for as long as we run


def _close_output() -> None:
    """Keep the interpreter's own last flush from failing again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code(error: Exception) -> int:
    """The exit code of an error, which some carry as an attribute."""
    usual = 2 if isinstance(error, UserError | TopologyError) else 1
    return int(getattr(error, "exit_code", usual))


def _leaves(error: Exception) -> list[Exception]:
    if isinstance(error, ExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def _fail(text: str, code: int) -> int:
    click.echo(f"error: {text}", err=True)
    return code


if __name__ == "__main__":
    main()
