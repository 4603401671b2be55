"""`p2pfl privacy`: a person's word that budgets begin, and what is spent of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p2pfl.cli.main import Named
from p2pfl.cli.output import Form, format_option, write_rows

if TYPE_CHECKING:
    from p2pfl.config.model import FederationConfig
    from p2pfl.runtime.spending import Purse

NODE = click.option(
    "--node", "names", multiple=True, metavar="NAME", help="Only this one; by default all that are here."
)


class Commands(Named):
    """Both stand in this file."""

    def lines(self) -> Mapping[str, str]:
        return {
            "begin": "Say that the privacy budgets of nodes begin: without that they train nothing.",
            "show": "Show what nodes have spent of their privacy budgets.",
        }

    def find(self, name: str) -> Any:
        return {"begin": begin, "show": show}[name]


@click.group(cls=Commands)
def privacy() -> None:
    """Begin the privacy budgets of nodes, and show what is spent of them.

    With [privacy] in federation.toml each node writes down what a round will tell of its data before it trains it, and
    stops training when its budget is spent. A node whose records are lost counts as one that has spent all: only a
    person can say that its budget begins (anew).
    """


@click.command(epilog="\b\nExamples:\n  p2pfl privacy begin ward-7\n  p2pfl privacy begin ward-7 --node pi3 --again")
@click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
@NODE
@click.option("--again", is_flag=True, help="Also where a budget has begun: what was spent of it adds to the new one.")
def begin(*, federation: Path, names: tuple[str, ...], again: bool) -> None:
    """Say that the privacy budgets of nodes begin.

    A word is put beside each node's key, which the node takes away at its next start; only then does it train. Nothing
    that was told before is taken back: with --again the promise for these data is the sum of both budgets.
    """
    from p2pfl.errors import UserError  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.runtime.word import give_word  # noqa: PLC0415 - as above

    described = _private(federation)
    purses = _purses(described, names)
    begun = [] if again else [one.name for one in purses if one.has_begun or one.was_begun]
    if begun:
        text = f"has begun at {', '.join(begun)}: what is spent stays spent"
        allowed = "--node for those where none has; --again, which adds a second budget to the first"
        raise UserError(text, file=described.path, key="the privacy budget", allowed=allowed)
    for one in purses:
        give_word(one.node.key_file)
        click.echo(f"{one.name}: its budget begins when it is started{_before(one)}")
        if one.unpaid:
            text = f"warning: {one.name} has a state after {one.unpaid} rounds that no budget knows of"
            click.echo(f"{text}: what they told of its data, the new one does not cover", err=True)


def _before(purse: Purse) -> str:
    """What the promise for these data has to count beside a new budget."""
    if purse.told is None:
        return ""
    known = "of which nothing is known here" if purse.epsilon is None else f"epsilon {purse.epsilon:.3g}"
    return "" if purse.epsilon == 0 else f"; it adds to what was spent before, {known}"


@click.command(epilog="\b\nExample:\n  p2pfl privacy show ward-7 --format json")
@click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
@NODE
@format_option("table", "json", "csv")
def show(*, federation: Path, names: tuple[str, ...], form: Form) -> None:
    """Show what nodes have spent of their privacy budgets, as their folders here say; they may be running.

    epsilon is a bound on what was told of one row (or one member) so far. state: "open", "spent", or "missing" and
    "unsure", where it is not known what was spent, so that it counts as all. waiting: a person's word lies there, and
    the budget begins at the next start.
    """
    write_rows([one.row for one in _purses(_private(federation), names)], form)


def _private(path: Path) -> FederationConfig:
    from p2pfl.config.load import load_config  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.errors import UserError  # noqa: PLC0415 - as above

    described = load_config(path)
    if described.privacy is None:
        allowed = "[privacy] with epsilon and delta: docs/privacy.md"
        raise UserError(
            "nothing is promised here, so there is no budget", file=described.path, key="privacy", allowed=allowed
        )
    return described


def _purses(federation: FederationConfig, names: tuple[str, ...]) -> list[Purse]:
    from p2pfl.runtime.spending import purses  # noqa: PLC0415 - `--help` stays instant

    return purses(federation, names)
