"""`p2pfl privacy`: give permission to start privacy budgets, and show how much of them is spent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p2pfl.console.groups import Named
from p2pfl.console.output import Form, format_option, write_rows

if TYPE_CHECKING:
    from p2pfl.config.model import FederationConfig
    from p2pfl.config.sections import PrivacyConfig
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
    """Permit nodes to start their privacy budgets, and show how much of them is spent.

    With [privacy] in federation.toml, each node records what a round reveals about its data before it trains the round,
    and stops training when its budget is spent. If a node has lost its records, its budget counts as spent: only a
    person can permit a new one.
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

    The permission is a file next to each node's key, with epsilon, delta, unit and noise from the federation file. The
    node uses it at its next start, and trains only while the file promises as much. What was revealed before stays
    revealed: with --again, the promise for these data is the sum of both budgets. A model that was trained
    without [privacy] gets no budget: remove the node's state first.
    """
    from p2pfl.features.privacy.permission import give_permission  # noqa: PLC0415 - as above
    from p2pfl.learn.privacy.ledger import Promise  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.learn.privacy.plan import planned_in_words  # noqa: PLC0415 - as above

    if again and raises:
        raise click.UsageError("--again and --raise: one of the two")
    described, privacy = _private(federation)
    promise, purses = Promise.in_file(privacy), _purses(described, names)
    if mistakes := [one.mistake for one in purses if one.mistake is not None]:
        raise ExceptionGroup("models that no budget covers", mistakes)
    if raises:
        _refuse_raise(described, purses)
    elif not again:
        _refuse_second(described, purses)
    for one in purses:
        after = "" if one.ledger is None else one.ledger.latest_word
        give_permission(one.node.key_file, promise, raises=raises, after=after, planned=planned_in_words(described))
        if raises:
            click.echo(f"{one.name}: its budget continues with the file's figures from its next start")
            continue
        click.echo(f"{one.name}: its budget starts when the node starts{_before(one)}")


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
        text = f"there is none at {', '.join(without)} to continue"
        allowed = "--node for the others; begin, where none has begun; --again, where its records lack something"
        raise _wrong(federation, text, allowed)


def _wrong(federation: FederationConfig, text: str, allowed: str) -> Exception:
    from p2pfl.errors import UserError  # noqa: PLC0415 - `--help` stays instant

    return UserError(text, file=federation.path, key="the privacy budget", allowed=allowed)


def _before(purse: NodeBudget) -> str:
    """Return what must be counted in addition to a new budget: the earlier spending on these data."""
    if purse.samples is None and purse.ledger is None:
        return ""
    known = "an amount unknown here" if purse.epsilon is None else f"epsilon {purse.epsilon:.3g}"
    if purse.ledger is not None and not purse.ledger.is_whole:
        return f"; it adds to what was spent before, of which the records lack a part ({known})"
    return "" if purse.epsilon == 0 else f"; it adds to what was spent before, {known}"


@click.command(epilog="\b\nExample:\n  p2pfl privacy show ward-7 --format json")
@click.argument("federation", metavar="FEDERATION", type=click.Path(path_type=Path))
@NODE
@format_option("table", "json", "csv")
def show(*, federation: Path, names: tuple[str, ...], form: Form) -> None:
    """Show what nodes have spent of their privacy budgets, according to their folders here. They may be running.

    epsilon bounds what was revealed about one row (or one member) so far. state is "open" or "spent"; "missing" or
    "unsure" if the spending is unknown, so that the whole budget counts as spent; "unpermitted" if the file promises
    less privacy than a person has permitted; "unprotected" if the model was trained without a
    budget, so that the node does not start; "wiped" if the state is gone and the node will continue from the file next
    to its key. waiting: there is a permission, which takes effect at the next start.
    """
    write_rows([one.row for one in _purses(_private(federation)[0], names)], form)


def _private(path: Path) -> tuple[FederationConfig, PrivacyConfig]:
    from p2pfl.config.load import load_config  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.errors import UserError  # noqa: PLC0415 - as above

    described = load_config(path)
    if described.privacy is None:
        allowed = "[privacy] with epsilon and delta: docs/how-to/privacy.md"
        raise UserError(
            "no privacy is promised here, so there is no budget", file=described.path, key="privacy", allowed=allowed
        )
    return described, described.privacy


def _purses(federation: FederationConfig, names: tuple[str, ...]) -> list[NodeBudget]:
    from p2pfl.features.privacy.spending import purses  # noqa: PLC0415 - `--help` stays instant

    return purses(federation, names)
