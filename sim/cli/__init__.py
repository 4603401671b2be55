"""`p2pfl sim`: its subcommands, imported when they are called. Data on stdout, notes on stderr."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import click

from p2pfl.console.groups import Named

COMMANDS: Mapping[str, str] = {
    "run": "One federation in one world: what it learns, what it costs.",
    "sweep": "Many runs from one file, in parallel: means and confidence intervals.",
    "compare": "Several graphs with very many nodes: one table, one picture.",
    "plot": "A picture of reports, side by side, or of a sweep.",
}
"""One line of help per command name, which is also the module with its `command`."""

EXAMPLES = """\b
Examples:
  p2pfl sim run
  p2pfl sim run --nodes 1000 --topology random-regular:degree=4 --rounds 20
  p2pfl sim run ward-7 --world bad.toml --report bad.json
  p2pfl sim plot good.json bad.json --output both.png
  p2pfl sim sweep sweep.toml
"""


def gone(option: str, instead: str) -> Callable[[Any], Any]:
    """Declare an option that was there in the version before: whoever gives it hears what to use `instead`."""

    def refuse(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(f"{option} is gone: {instead}", ctx)

    return click.option(option, hidden=True, expose_value=False, is_flag=False, flag_value="", callback=refuse)


class SimCommands(Named):
    def lines(self) -> Mapping[str, str]:
        return COMMANDS

    def find(self, name: str) -> Any:
        return import_module(f"sim.cli.{name}").command


@click.group(cls=SimCommands, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
def sim() -> None:
    """Simulate a federation in one process, under virtual time. Every node runs its own code; a seed repeats a run."""
