"""The command `p2pfl`: its subcommands by name, each imported only when it is called, and the handling of failures.

Subcommands of other packages join through the entry point group `p2pfl.commands`. Exit codes: 0 done, 1 failed, 2 the
user's mistake, 3 disconnected graph, 4 not converged or not certified, 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NoReturn

import click

from p2pfl.console import GONE, Command, Group, Named
from p2pfl.console.output import show_mistakes
from p2pfl.errors import EXTRAS, P2PFLError, UserError, needs
from p2pfl.features import commands
from p2pfl.plugins import commit, software
from p2pfl.system import require_nodes
from topologies.errors import TopologyError

ENTRY_POINTS = "p2pfl.commands"

COMMANDS: Mapping[str, Command] = {
    "demo": Command(
        "Watch several nodes on this machine learn handwritten digits.",
        "p2pfl.cli.launch:demo",
        Group.START,
        of_nodes=True,
    ),
    "new": Command("Create an example federation to edit.", "p2pfl.cli.new:new", Group.START),
    "check": Command("Find the mistakes in a federation, and what it costs.", "p2pfl.cli.check:check", Group.START),
    "launch": Command(
        "Run all nodes of a federation on this machine.", "p2pfl.cli.launch:launch", Group.START, of_nodes=True
    ),
    "run": Command("Run one node; a second start resumes.", "p2pfl.cli.run:run", Group.RUN, of_nodes=True),
    "deploy": Command("Install and update boards over ssh: deploy push.", "p2pfl.cli.deploy:deploy", Group.RUN),
    "key": Command("Create a node's key, or show its public half.", "p2pfl.cli.new:key", Group.RUN),
    "evaluate": Command("Test the model that a node has learned.", "p2pfl.cli.learned:evaluate", Group.USE),
    "export": Command("Write that model to a plain file.", "p2pfl.cli.learned:export", Group.USE),
    "list": Command("List rules, methods, compressors, staleness, attacks.", "p2pfl.cli.lists:list_kind", Group.STUDY),
}
JOINED: Mapping[str, str] = {
    "plan": "Find the graph, rule and compressor that fit your machines.",
    "sim": "Simulate thousands of nodes, with losses, crashes and attacks.",
    "topology": "Compare and design graphs: which one to use.",
    "audit": "Attack your federation as its neighbors could.",
}
"""Commands in packages that this one does not import; they are all listed first under `Group.STUDY`."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""The error numbers of a disk that accepts no more data, which is neither the user's mistake nor a bug."""

SETTINGS = {"help_option_names": ["-h", "--help"]}
EPILOG = "`p2pfl COMMAND --help` has options and examples. Also: `p2pfl --version`."


@cache
def own_commands() -> dict[str, Command]:
    """Return the commands of this package and its features, in the order in which they are listed in their groups."""
    return {**COMMANDS, **commands()}


class MainCommands(Named):
    """The subcommands of this package, its features and other packages."""

    def lines(self) -> dict[str, str]:
        return {name: line for listed in self.groups().values() for name, line in listed.items()}

    def groups(self) -> dict[Group, dict[str, str]]:
        """Return each group with its commands and their one-line descriptions."""
        groups: dict[Group, dict[str, str]] = {group: {} for group in Group}
        joined = [name for name in (*JOINED, *sorted(_joined().keys() - JOINED.keys())) if name in _joined()]
        groups[Group.STUDY] |= {name: JOINED.get(name, "") for name in joined}
        for name, command in own_commands().items():
            groups[command.group][name] = command.line
        return groups

    def find(self, name: str) -> Any:
        if (command := own_commands().get(name)) is None:
            return _joined()[name].load()
        if command.of_nodes:
            require_nodes(f"p2pfl {name}")
        return command.load()

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """Write it without a blank line above, so that all fits on a screen of forty lines."""
        formatter.write(f"  {EPILOG}\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """List the commands by group, without blank lines, so that all fit on a screen. `EPILOG` names the options."""
        width = max(map(len, self.lines())) + 2
        formatter.write_paragraph()
        for group, listed in self.groups().items():
            formatter.write(f"{group}:\n" if listed else "")
            for name, line in listed.items():
                formatter.write(f"  {name:{width}}{line}".rstrip() + "\n")


@cache
def _joined() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


def _show_version(ctx: click.Context, _parameter: click.Parameter, is_given: bool) -> None:  # noqa: FBT001 - click's
    if is_given:
        click.echo(f"p2pfl {software()}{commit()}")
        ctx.exit()


@click.group(cls=MainCommands, epilog=EPILOG, options_metavar="", context_settings=SETTINGS)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
def cli() -> None:
    """Devices learn one model together, without a server, and keep their raw data."""


def main(arguments: Sequence[str] | None = None, *, command: click.Command = cli, name: str = "p2pfl") -> NoReturn:
    """Run a command line and exit with its code. A mistake results in one line on stderr, never in a traceback."""
    for stream, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, stream) is None:  # the parent process closed it
            setattr(sys, stream, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - for as long as we run
    words = sys.argv[1:] if arguments is None else arguments
    try:
        with ExitStack() as server:
            if words and words[0] in ("demo", "launch") and not {"-h", "--help"}.intersection(words):
                from p2pfl.fleet import early_server  # noqa: PLC0415 - of use to these commands alone

                server.enter_context(early_server(words))
            sys.exit(_run(words, command, name))
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except BrokenPipeError:
        # the reader of our output is gone
        _close_output()
        sys.exit(1)


def _run(arguments: Sequence[str], command: click.Command, name: str) -> int:
    try:
        result = command.main(arguments, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption | click.BadOptionUsage):
            error = _with_hint(error, arguments)
        error.show()
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name is None or error.name not in EXTRAS:
            raise
        return _fail(needs(error.name), 1)
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


def _with_hint(error: click.NoSuchOption | click.BadOptionUsage, arguments: Sequence[str]) -> click.ClickException:
    """Say what to use in place of an option that is gone; suggest `--format json` for `--json` where there is that."""
    name = " ".join([*(error.ctx.command_path.split()[1:] if error.ctx else arguments[:1]), error.option_name])
    if isinstance(error, click.BadOptionUsage):
        return click.UsageError(f"{error.message} {GONE[name]}", error.ctx) if name in GONE else error
    if name in GONE:
        return click.UsageError(f"{error.option_name} is gone: {GONE[name]}", error.ctx)
    form = error.option_name.lstrip("-")
    for option in error.ctx.command.params if error.ctx else ():
        if "--format" in option.opts and isinstance(option.type, click.Choice) and form in option.type.choices:
            return click.NoSuchOption(error.option_name, possibilities=[f"--format {form}"], ctx=error.ctx)
    return error


def _close_output() -> None:
    """Keep the interpreter's final flush from failing again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code(error: Exception) -> int:
    """Return the exit code for an error; some errors carry it as an attribute."""
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
