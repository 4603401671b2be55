"""Code shared by all commands, including those of features: here groups of subcommands, each imported only when it is
called, and the options that features add to `p2pfl new`; in `output` and `overview` how results are printed.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

GONE: Mapping[str, str] = {
    **{name: f"use p2pfl list {name}" for name in ("rules", "methods", "compressors", "staleness")},
    "completion": "_P2PFL_COMPLETE=bash_source p2pfl prints the script (or zsh_source, fish_source)",
    **dict.fromkeys(
        ("demo --spawn", "launch --spawn"), "each node is a process of its own in any case, and shares at most imports"
    ),
    **dict.fromkeys(
        ("demo --log", "launch --log", "run --log"),
        "the report has the history; p2pfl run --format json prints a line, and /metrics has the figures, as they come",
    ),
    **dict.fromkeys(("demo --quiet", "launch --quiet"), "2>/dev/null hides the live view"),
    "launch --plot": "use p2pfl sim plot with the report",
    "demo --references": "use p2pfl launch DIR --references",
    "launch --restart": "systemd starts a node again, as deploy/p2pfl@.service does",
    **dict.fromkeys(("launch -v", "launch --verbose"), "use p2pfl run -v for one node"),
    "schema": '[task] schema = "agreed", and p2pfl check shows what a node would give; or write schema.toml by hand',
    "new --round": "without it: rounding guarantees no privacy; write figures of your own into schema.toml",
    "new --on-bad-row": 'p2pfl check lists rows that cannot be read; on_bad_row = "drop" in [data] leaves them out',
    "watch --every": "it looks once a second",
    "relay --mbit": "the system bounds its traffic (tc); federations get equal shares",
    "relay --name": "write one URL of the relay in all files: members that dial different names do not meet",
    "relay --members": "a relay serves up to 2,000 members",
    "relay --metrics": "the relay's log says who is refused and why",
    **dict.fromkeys(("relay --month-gb", "relay --state"), "the machine counts its traffic (vnstat)"),
    "doctor --seconds": "run it again",
    "member ticket": "p2pfl member hand writes and sends new tickets, too",
    "member hand --days": "tickets hold for a year",
    "invite --days": "an invite is valid for three days; invite again",
    "invite --no-qr": "the QR code is drawn on a terminal alone",
    "predict --keep": "rows are in the order of TABLE: put its columns beside them",
    **{
        f"{name} --{option}": "name the node's folder"
        for name in ("predict", "score")
        for option in ("node", "federation")
    },
    "privacy begin --raise": "use --again with an epsilon for what is to come: it adds to what was spent",
    "sim attacks": "use p2pfl list attacks",
    **dict.fromkeys(("score --plot", "stats --plot"), "draw a picture from what --format json prints"),
    "check --byzantine": "write the rule with that b into [gossip]: check warns of what does not tolerate it",
    "new --name": "the federation has the name of its folder; write another into federation.toml",
    "list --parameters": "p2pfl check has the bytes of your own model",
    "evaluate --federation": "Without a FILE it is gone: p2pfl score on a table that no node has",
    "evaluate --finetune": "p2pfl export --finetune, and evaluate that file",
    "stats --questions": "end --answer with Ctrl-C",
    "audit --budget-s": "use --quick, or --attacks with fewer",
    **dict.fromkeys(("audit --picture", "audit --report"), "--format json prints all figures"),
    "audit --seed": "write another seed into a copy of the federation file",
    "audit --simulated": "real nodes, in this process, are attacked in any case",
    "plan --jobs": "there is one run for each core",
    **dict.fromkeys(("plan --loss", "plan --slow", "plan --far"), "write a world file, and use --world"),
    "plan --seed": "the first seed is 0, or the federation's",
    "sim run --evaluate-every-s": "write evaluate_every_s under [run] in a world file",
    "sim run --limit-s": "write limit_s under [run] in a world file",
    "sim run --log": "use --report, and p2pfl sim plot",
    "sim run --no-batching": "there is one way to compute a run",
    "sim run --plot": "use --report, and p2pfl sim plot",
    "sim run --replay": "a seed repeats a run; `make faults` of a checkout checks every invariant after every event",
    "sim run --workers": "use p2pfl sim sweep --jobs",
    "sim plot --mean": "a sweep is drawn by its worst node; results.json has the means, too",
    "sim sweep --engine": "--scheduler HOST:PORT names a Dask scheduler",
    "sim sweep --plot": "use p2pfl sim plot",
    "sim sweep --retry": "a sweep that is started again runs again what failed",
}
"""The advice for each command and option that is gone since the version before."""


class Group(StrEnum):
    """The headings in `p2pfl --help`, in order."""

    START = "Start here"
    RUN = "Run"
    MEMBERS = "Members"
    LOOK = "Look"
    USE = "Use what was learned"
    STUDY = "Study"


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand of `p2pfl`: its line in `--help`, and its `module:function`."""

    line: str
    place: str
    group: Group
    of_nodes: bool = False
    """True if it runs, reaches or sets up nodes, of which Windows has none."""

    def load(self) -> Any:
        module, _, function = self.place.partition(":")
        return getattr(import_module(module), function)


class Named(click.Group):
    """Imports subcommands on demand: subclasses list them in `lines` and import one in `find`."""

    def lines(self) -> Mapping[str, str]:
        """Return each name with its line in `--help`, in the order of the list."""
        raise NotImplementedError

    def find(self, name: str) -> Any:
        """Import one of the commands in `lines`."""
        raise NotImplementedError

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.lines())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        command = self.find(cmd_name) if cmd_name in self.lines() else None
        return command if isinstance(command, click.Command) else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names from `lines`; click would import every command for its help text."""
        names = [CompletionItem(name, help=line) for name, line in self.lines().items() if name.startswith(incomplete)]
        return [*names, *super(click.Group, self).shell_complete(ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            name = " ".join([*ctx.command_path.split()[1:], args[0]])
            if name in GONE:
                raise click.UsageError(f"{args[0]} is gone: {GONE[name]}", ctx) from None
            if close := difflib.get_close_matches(args[0], self.lines(), n=1):
                raise click.UsageError(f"{error.message} Did you mean {close[0]!r}?", ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        with formatter.section("Commands"):
            formatter.write_dl(list(self.lines().items()))


@dataclass(slots=True, kw_only=True)
class NewPlan:
    """A federation that is about to be written, as far as options define it. `nodes` and `topology` may still be
    undecided.
    """

    task: str
    nodes: tuple[str, ...] | None
    topology: str | None
    admin: str | None = None
    """The admin's public key."""
    discovery: bool = False
    """True if the nodes have no addresses and find each other on the LAN."""
    relays: tuple[str, ...] = ()
    """The URLs of relays, where nodes without addresses meet."""
    task_keys: str = ""
    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The `[data]` table of each node."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Keys of `[training]` whose usual values suit the task better than the defaults."""
    size: int = 0
    """About how many values nodes will exchange, where that is known."""
    files: dict[str, str] = field(default_factory=dict)
    """Other files to write next to the federation file, by name."""


class NewOptions:
    """A feature's part in a call of `p2pfl new`."""

    parameters: Sequence[click.Parameter] = ()
    after = ""
    """The option after which its options are listed."""

    def plan(self, plan: NewPlan, said: Mapping[str, Any]) -> None:
        """Change the plan according to the options `said`. Raises UserError, or an ExceptionGroup of them: the options
        are wrong.
        """

    def write(self, folder: Path) -> None:
        """Write more files after all others. The folder appears only if everything succeeds."""

    def tell(self, directory: Path) -> None:
        """Print more information, once the folder has appeared as `directory`."""


def seconds_now() -> float:
    """Read this machine's clock, in seconds since 1970; on a board without a battery it may be wrong.

    It is for what people count in days: the expiry of invites, and the questions that a site has answered. Nothing that
    a node does while it learns uses it.
    """
    return time.time()
