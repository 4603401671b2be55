"""One site's decision on a question: what its `[stats]` allows, and what earlier answers still allow.

Each question is in the log before its answer leaves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.config.stats import EVERYBODY
from p2pfl.console.wall_clock import seconds_now
from p2pfl.crypto.identity import Identity
from p2pfl.errors import UserError
from p2pfl.features.stats.answered_rows import AnsweredRows, HashedTable, hashed
from p2pfl.features.stats.question_log import ANSWERED, REFUSED, LogLine, QuestionLog
from p2pfl.features.stats.site_table import SiteTable, check_question, read_site
from p2pfl.learn.statistics.survey import MOST_CELLS, MOST_SPREADS
from p2pfl.learn.statistics.survey_figures import cells_asked, group_names

log = logging.getLogger("p2pfl")

PROGRAM = ""
"""Asks in the log for a program that has the folders of all sites."""
MOST_REFUSALS = 50
"""Questions of one member that are refused within 24 hours; any more are neither answered nor logged."""
WITHHELD = "under [privacy] nothing is answered from rows without noise: ask for a model with a budget instead"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskAnswer:
    """The site's answer. With a `refusal` there is no table."""

    least_rows: int
    refusal: str = ""
    table: SiteTable | None = None
    data: bytes = b""
    """32 bytes that name the rows of the table."""


class Desk:
    """Raises StorageError: what was kept there is damaged, or the disk refuses."""

    def __init__(
        self,
        federation: FederationConfig,
        node: NodeConfig,
        identity: Identity,
        *,
        now: Callable[[], datetime] = lambda: datetime.fromtimestamp(seconds_now(), UTC),
    ) -> None:
        self._federation, self._node, self._now = federation, node, now
        self._key = identity.secret_for(f"rows of statistics of {federation.name}")
        self._log, self._rows = QuestionLog(node.state_dir), AnsweredRows(node.state_dir)

    def next_serial(self) -> int:
        """Return a serial that this member has not used; if its log was lost, the time is later than any."""
        return max(self._log.serial(self._node.name) + 1, int(self._now().timestamp()))

    def is_new(self, asker: str, serial: int, waiting: int = 0) -> bool:
        """Return True if a question is to be answered: it is later than those before, and not one of too many, of
        which so many of this member still wait for an answer.
        """
        is_flood = self._log.today(asker, self._now(), REFUSED) + waiting >= MOST_REFUSALS
        return serial > self._log.serial(asker) and not is_flood

    def answer(
        self, asker: str, serial: int, columns: tuple[str, ...], by: str | None, *, busy: str = ""
    ) -> DeskAnswer:
        """Decide on a question, and log it. `busy` says why none is answered just now.

        Raises StorageError: the log cannot be written, so there is no answer.
        """
        found = self._decide(asker, columns, by, busy)
        line = LogLine(
            time=self._now(),
            asker=asker,
            serial=serial,
            columns=columns,
            by=by,
            answer=REFUSED if found.refusal else ANSWERED,
            reason=found.refusal,
        )
        self._log.add(line)
        return found

    def _decide(self, asker: str, columns: tuple[str, ...], by: str | None, busy: str) -> DeskAnswer:
        policy = self._node.stats
        refusal = self._refusal(asker, columns, by) or busy
        if refusal:
            return DeskAnswer(least_rows=policy.least_rows, refusal=refusal)
        try:
            table = read_site(self._federation, self._node)
            check_question(table.schema, columns, by, self._node.path)
        except UserError as error:
            log.error("%s", error)  # noqa: TRY400 - the command shows errors only, and one line says all
            return DeskAnswer(least_rows=policy.least_rows, refusal="its table cannot be read: its log says why")
        rows = hashed(table.columns, by, self._key)
        refusal = self._refusal_of(table, rows, columns, by)
        if refusal:
            return DeskAnswer(least_rows=policy.least_rows, refusal=refusal)
        self._rows.keep(rows)
        return DeskAnswer(least_rows=policy.least_rows, table=table, data=rows.digest)

    def _refusal(self, asker: str, columns: tuple[str, ...], by: str | None) -> str:
        """Return what speaks against a question before the table is read; empty if nothing does."""
        policy = self._node.stats
        if self._federation.privacy is not None:
            return WITHHELD
        if not policy.columns:
            return "it offers no columns"
        if asker != self._node.name and not policy.admits(asker or EVERYBODY):
            if asker:
                return f"{asker} may not ask it"
            return 'it answers only members that it names: ask as one of them, with --node, or set to = "*"'
        if lacking := [name for name in columns if name not in policy.columns]:
            return f"it does not offer {', '.join(lacking)}"
        if by is not None and by != policy.by:
            return f"it does not let groups be formed by {by}" + (f", only by {policy.by}" if policy.by else "")
        if self._log.today(asker, self._now(), ANSWERED) >= policy.a_day:
            return f"it has answered {policy.a_day} questions within a day, its limit for each asker"
        return ""

    def _refusal_of(self, table: SiteTable, rows: HashedTable, columns: tuple[str, ...], by: str | None) -> str:
        """Return what speaks against answering about this table."""
        if len(columns) * len(group_names(table.schema, by)) > MOST_SPREADS:
            return f"columns times groups are more than {MOST_SPREADS}"
        if cells_asked(table.schema, columns, by) > MOST_CELLS:
            return f"categories times groups are more than {MOST_CELLS}"
        large = table.too_large(columns)
        if large is not None:
            return f"a number in {large} is too large to be summed"
        if self._rows.is_too_near(rows, self._node.stats.least_rows):
            return f"its table has changed since an earlier question by fewer than {self._node.stats.least_rows} rows"
        return ""
