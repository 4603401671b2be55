"""`p2pfl topology`: a few subcommands per module, imported when called. Data on stdout, notes on stderr."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module

import click

from topologies.errors import is_gone

COMMANDS: Mapping[str, tuple[str, str]] = {
    "list": ("info", "All families of graphs, with their parameters and sources."),
    "info": ("info", "What one graph is like: how connected, how fast it mixes, what it costs."),
    "compare": ("info", "Several graphs side by side, at several sizes."),
    "simulate": ("graphs", "Consensus on a graph, measured and predicted; no learning."),
    "attack": ("graphs", "What is left of a graph as nodes fail."),
    "design": ("graphs", "Find the best graph for so many nodes, or the best edges to add to one."),
    "convert": ("graphs", "A graph in another file format."),
    "plot": ("graphs", "A picture of one graph."),
}
"""For each command name: the module with its function, such as `list_command`, and its line of help."""

EXAMPLES = """\b
Examples:
  p2pfl topology list
  p2pfl topology info torus -n 36
  p2pfl topology info random-regular:degree=4 -n 100 --seed 7 --format json
"""


class TopologyCommands(click.Group):
    """The commands, which can be listed without importing any of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"topologies.cli.{COMMANDS[cmd_name][0]}"), f"{cmd_name}_command")
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if said := is_gone("command", args[0]):
            raise click.UsageError(said, ctx)
        command = self.get_command(ctx, args[0])
        options = [word.partition("=")[0] for word in args[1:]] if command else []
        for name in (name for word in options for name in (word, f"{args[0]} {word}")):
            if said := is_gone("option", name):
                raise click.UsageError(said, click.Context(command or self, ctx, args[0]))
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if close := difflib.get_close_matches(args[0], COMMANDS, n=1):
                raise click.UsageError(f"{error.message} Did you mean {close[0]!r}?", ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=TopologyCommands, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
def topology() -> None:
    """Graphs: which there are, how fast they mix, and which one to use."""
