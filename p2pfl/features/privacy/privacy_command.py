"""`p2pfl privacy`: give permission to start privacy budgets, and show what is spent of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p2pfl.console.groups import Named
from p2pfl.console.output import Form, format_option, write_rows

if TYPE_CHECKING:
    from p2pfl.config.model import FederationConfig
    from p2pfl.config.privacy import PrivacyConfig
    from p2pfl.features.privacy.spending import NodeBudget

NODE = click.option(
    "--node", "names", multiple=True, metavar="NAME", help="Only this node; by default all whose folders are here."
)


class Commands(Named):
    """The two subcommands, both in this file."""

    def lines(self) -> Mapping[str, str]:
        return {
            "begin": "Permit nodes to start their privacy budgets; without that they do not train.",
            "show": "Show what nodes have spent of their privacy budgets.",
        }

    def find(self, name: str) -> Any:
        return {"begin": begin, "show": show}[name]


@click.group(cls=Commands, epilog="\b\nExamples:\n  p2pfl privacy begin ward-7\n  p2pfl privacy show ward-7")
def privacy() -> None:
    """Permit nodes to start their privacy budgets, and show what is spent of them.

    With [privacy] in federation.toml, each node writes down what a round reveals of its data before it trains the
    round, and stops training when its budget is spent. A node that has lost its records counts as one that has spent
    everything: only a person can permit a new budget.
    """


@click.command(
    epilog="\b\nExamples:\n  p2pfl privacy begin ward-7\n  p2pfl privacy begin ward-7 --node pi3 --again\n"
    "  p2pfl privacy begin ward-7 --raise"
)
@click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
@NODE
@click.option("--again", is_flag=True, help="Start another budget where there is one: both add up.")
@click.option(
    "--raise",
    "raises",
    is_flag=True,
    help="Permit what the file promises now, such as a larger epsilon. What was spent stays counted.",
)
def begin(*, federation: Path, names: tuple[str, ...], again: bool, raises: bool) -> None:
    """Permit nodes to start their privacy budgets.

    The permission is a file beside each node's key, with epsilon, delta, unit and noise of the federation file. The
    node takes it at its next start, and trains only by a file that promises as much. What was revealed before stays
    revealed: with --again the promise for these data is the sum of both budgets.
    """
    from p2pfl.engine.ledger import Promise  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.features.privacy.permission import give_permission  # noqa: PLC0415 - as above
    from p2pfl.learn.privacy.plan import planned_in_words  # noqa: PLC0415 - as above

    if again and raises:
        raise click.UsageError("--again and --raise: one of the two")
    described, privacy = _private(federation)
    promise, purses = Promise.in_file(privacy), _purses(described, names)
    if raises:
        _refuse_raise(described, purses)
    elif not again:
        _refuse_second(described, purses)
    for one in purses:
        after = "" if one.ledger is None else one.ledger.latest_word
        give_permission(one.node.key_file, promise, raises=raises, after=after, planned=planned_in_words(described))
        if raises:
            click.echo(f"{one.name}: its budget goes on with the file's figures from its next start")
            continue
        click.echo(f"{one.name}: its budget starts when the node starts{_before(one)}")
        if one.unpaid:
            text = f"warning: {one.name} has a state after {one.unpaid} rounds that no budget knows of"
            click.echo(f"{text}: the new one does not cover what they revealed of its data", err=True)


def _refuse_second(federation: FederationConfig, purses: list[NodeBudget]) -> None:
    begun = [one.name for one in purses if one.ledger is not None]
    allowed = "--node for nodes without one; --raise, which continues it with the figures of the file; --again, "
    if begun:
        text = f"has begun at {', '.join(begun)}: what is spent stays spent"
        raise _wrong(federation, text, f"{allowed}which adds a second budget to the first")


def _refuse_raise(federation: FederationConfig, purses: list[NodeBudget]) -> None:
    unit = federation.privacy and federation.privacy.unit
    without = [one.name for one in purses if one.ledger is None or one.ledger.unit != unit or not one.ledger.is_whole]
    if without:
        text = f"there is none at {', '.join(without)} that could go on"
        allowed = "--node for the others; begin, where none has begun; --again, where its records lack something"
        raise _wrong(federation, text, allowed)


def _wrong(federation: FederationConfig, text: str, allowed: str) -> Exception:
    from p2pfl.errors import UserError  # noqa: PLC0415 - `--help` stays instant

    return UserError(text, file=federation.path, key="the privacy budget", allowed=allowed)


def _before(purse: NodeBudget) -> str:
    """Return the earlier spending that the promise for these data must count beside a new budget."""
    if purse.samples is None and purse.ledger is None:
        return ""
    known = "an amount unknown here" if purse.epsilon is None else f"epsilon {purse.epsilon:.3g}"
    return "" if purse.epsilon == 0 else f"; it adds to what was spent before, {known}"


@click.command(epilog="\b\nExample:\n  p2pfl privacy show ward-7 --format json")
@click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
@NODE
@format_option("table", "json", "csv")
def show(*, federation: Path, names: tuple[str, ...], form: Form) -> None:
    """Show what nodes have spent of their privacy budgets, as their folders here say; they may be running.

    epsilon is a bound on what was told of one row (or one member) so far. state: "open", "spent", or "missing" and
    "unsure", where it is not known what was spent, so that it counts as all; "unpermitted", where the file promises
    less than a person has permitted; "wiped", where the state is gone and the node will go on by what stands beside its
    key. waiting: a permission lies there, and counts at the next start.
    """
    write_rows([one.row for one in _purses(_private(federation)[0], names)], form)


def _private(path: Path) -> tuple[FederationConfig, PrivacyConfig]:
    from p2pfl.config.load import load_config  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.errors import UserError  # noqa: PLC0415 - as above

    described = load_config(path)
    if described.privacy is None:
        allowed = "[privacy] with epsilon and delta: docs/how-to/privacy.md"
        raise UserError(
            "nothing is promised here, so there is no budget", file=described.path, key="privacy", allowed=allowed
        )
    return described, described.privacy


def _purses(federation: FederationConfig, names: tuple[str, ...]) -> list[NodeBudget]:
    from p2pfl.features.privacy.spending import purses  # noqa: PLC0415 - `--help` stays instant

    return purses(federation, names)
