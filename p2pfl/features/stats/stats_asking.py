"""What the command does: ask all sites, or answer at one, with what is on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from p2pfl.config.charter import compacted
from p2pfl.config.load import load_config, load_node, node_file
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.errors import UserError
from p2pfl.features import import_declared
from p2pfl.features.stats.answered_bounds import keep_bound
from p2pfl.features.stats.desk import PROGRAM, WITHHELD, Desk
from p2pfl.features.stats.site_table import SiteTable, check_question, schema_at
from p2pfl.features.stats.stats_node import Ended, open_stats
from p2pfl.features.stats.surveying import settings_for, survey_together
from p2pfl.features.sums.asking import alone
from p2pfl.learn.statistics.survey_figures import Statistics, SurveyAsked
from p2pfl.node.assembly import load_identity
from p2pfl.node.kept_charter import newest_here
from p2pfl.node.leash import on_a_leash

ELSEWHERE = (
    "the folders of all nodes, or --node NAME, while each other site runs `p2pfl stats FOLDER --node ITS --answer`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationStatistics:
    federation: str
    nodes: tuple[str, ...]
    statistics: Statistics


def ask_here(folder: Path, columns: tuple[str, ...], by: str | None) -> FederationStatistics:
    """Ask all sites, whose folders are on this machine; the `[stats]` of each decides.

    Raises UserError: some are not here or refuse, or the question or a file is wrong; StorageError.
    """
    federation = newest_here(load_config(folder))
    _refuse_private(federation)
    names = [member.name for member in federation.present]
    if lacking := [name for name in names if not node_file(federation, name).is_file()]:
        text = f"not on this machine: {', '.join(lacking)}"
        raise UserError(text, file=federation.path, key="--node", allowed=ELSEWHERE)
    settings_for(federation, federation.present[0].index)
    nodes = [load_node(node_file(federation, name), federation, name) for name in names]
    check_question(schema_at(federation, nodes[0]), columns, by, federation.path)
    least_rows, sites = _answers(federation, nodes, columns, by)
    among = replace(compacted(federation), admin=(), signed=None)  # the keys of these sums are made for them
    asked = SurveyAsked(columns=columns, by=by, least_rows=least_rows)
    try:
        found = asyncio.run(survey_together(among, sites, asked))
    except UserError as error:
        raise _placed(error, federation) from error
    return FederationStatistics(federation=federation.name, nodes=tuple(names), statistics=found)


def _answers(
    federation: FederationConfig, nodes: Sequence[NodeConfig], columns: tuple[str, ...], by: str | None
) -> tuple[int, list[SiteTable]]:
    """Return the most of `least_rows` of all nodes, and their tables. Raises UserError: one refuses, or runs."""
    least_rows, sites, refusals, digests = 0, list[SiteTable](), list[str](), list[bytes]()
    with ExitStack() as held:
        for node in nodes:
            held.enter_context(alone(node))
        for node in nodes:
            desk = Desk(federation, node, load_identity(federation, node))
            answer = desk.answer(PROGRAM, desk.next_serial(), columns, by)
            least_rows = max(least_rows, answer.least_rows)
            if answer.table is None:
                refusals.append(f"{node.name} refuses: {answer.refusal}")
            else:
                sites.append(answer.table)
                digests.append(answer.data)
        if refusals:
            raise UserError("; ".join(refusals), file=federation.path, key="--columns")
        for node, data in zip(nodes, digests, strict=True):
            keep_bound(node.state_dir, data, least_rows)
    return least_rows, sites


def ask_others(folder: Path, name: str, columns: tuple[str, ...], by: str | None) -> FederationStatistics:
    """Ask all sites as one of them. Raises UserError: as above, or the node runs; StorageError."""
    federation, node = _node(folder, name)
    _refuse_private(federation)
    check_question(schema_at(federation, node), columns, by, federation.path)
    identity = load_identity(federation, node)

    async def ask() -> Statistics:
        async with open_stats(federation, node, identity) as stats:
            return await stats.ask(columns, by)

    try:
        found = asyncio.run(ask())
    except UserError as error:
        raise _placed(error, federation) from error
    names = tuple(member.name for member in federation.present)
    return FederationStatistics(federation=federation.name, nodes=names, statistics=found)


def answer_others(
    folder: Path,
    name: str,
    *,
    on_start: Callable[[], object],
    on_end: Callable[[Ended], object],
    questions: int | None = None,
) -> None:
    """Answer questions until a signal comes, or so many have ended. Raises UserError, StorageError."""
    federation, node = _node(folder, name)
    schema_at(federation, node)
    asyncio.run(_answer(federation, node, on_start, on_end, questions))


async def _answer(
    federation: FederationConfig,
    node: NodeConfig,
    on_start: Callable[[], object],
    on_end: Callable[[Ended], object],
    questions: int | None,
) -> None:
    stop, left = asyncio.Event(), questions

    def ended(end: Ended) -> None:
        nonlocal left
        on_end(end)
        left = None if left is None else left - 1
        if left == 0:
            stop.set()

    async with open_stats(federation, node, load_identity(federation, node), on_end=ended) as stats:
        running = asyncio.create_task(stats.run())
        async with on_a_leash(stop.set, launched=False):
            on_start()
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if running.done():
            await running
        running.cancel()


def _node(folder: Path, name: str) -> tuple[FederationConfig, NodeConfig]:
    """Raises UserError: a file is wrong, or there is no such node."""
    federation = load_config(folder)
    for arrive in import_declared("ARRIVE"):
        federation = arrive(federation, name, None)
    return federation, load_node(node_file(federation, name), federation, name)


def _refuse_private(federation: FederationConfig) -> None:
    if federation.privacy is not None:
        raise UserError(WITHHELD, file=federation.path, key="privacy")


def _placed(error: UserError, federation: FederationConfig) -> UserError:
    if error.file is None:
        error.file, error.key = str(federation.path), "--columns"
    return error
