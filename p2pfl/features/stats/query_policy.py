"""One site's decision on a question: what its `[stats]` allows, and what earlier answers still allow.

Each question is in the log before its answer leaves. How often a member may ask is counted from that file, and so are
the serials of its questions. Whoever gets the same figures before and after one row was added learns that row. So a
table that differs from one about which the site has answered by too few rows is not answered about, in all its rows or
in a group; nor if these are more or fewer by too few, or what is known of a column asked about is another by too few,
however much else has changed. And no table is, with another bound than before: two answers with different bounds have
different bins, whose difference could tell of fewer rows than either shows.
"""

from __future__ import annotations

import hashlib
import json
import logging
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.config.sections import EVERYBODY
from p2pfl.console import seconds_now
from p2pfl.crypto.identity import Identity
from p2pfl.errors import StorageError, UserError
from p2pfl.features.stats.survey import MOST_CELLS, MOST_SIZE, MOST_SPREADS, categories_of, cells_asked, group_names
from p2pfl.features.sums.sessions import append_record
from p2pfl.foreign import UNREADABLE
from p2pfl.learn.table.reading import read_table
from p2pfl.learn.table.rows import make_layout
from p2pfl.learn.table.schema import Schema, schema_of, with_agreed
from p2pfl.limits import MOST_BOUNDS, MOST_REASON, MOST_REFUSALS, MOST_TABLES_KEPT
from p2pfl.node.feature import Check, Inspected
from p2pfl.storage.disk import create_file, replace_file, storage_errors, truncate_file
from p2pfl.system import make_folder

log = logging.getLogger("p2pfl")


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteTable:
    """The columns (n,) of one site, NaN where missing; categories are indices of the schema's values."""

    schema: Schema
    columns: Mapping[str, NDArray[np.float64]]


def schema_at(federation: FederationConfig, node: NodeConfig | None = None) -> Schema:
    """Return the schema of all tables. Raises UserError: there is none, or the task has no tables of its sites."""
    task = federation.task
    if task.name != "csv" or task.given is not None:
        raise UserError("only for the task csv", file=federation.path, key="task.name", value=task.name, allowed="csv")
    if task.options.get("partition") is not None:
        text = "the sites divide one table among them, for a demo: there is nothing that one would not know of another"
        raise UserError(text, file=federation.path, key="task.partition", allowed="a table of each site")
    known = task if node is None else with_agreed(task, node.state_dir)
    return schema_of(known.options, federation.path.parent)[0]


def read_site(federation: FederationConfig, node: NodeConfig) -> SiteTable:
    """Read a node's table. Raises UserError: there is a mistake in it, or it has none."""
    schema, given = schema_at(federation, node), node.data.get("path")
    if not isinstance(given, str):
        raise UserError("this node has no table of its own", file=node.path, key="data.path", allowed='path = "..."')
    path = (node.path.parent / Path(given).expanduser()).absolute()
    known = with_agreed(federation.task, node.state_dir)
    codes = schema_of(known.options, federation.path.parent)[1]
    table = read_table(path, schema, make_layout(known.options, node.data, codes))
    return SiteTable(schema=schema, columns=table.columns)


def check_question(schema: Schema, columns: tuple[str, ...], by: str | None, file: object) -> None:
    """Raises UserError: the schema has no such columns, or the groups are of no categorical column."""
    names = schema.columns
    for name in columns:
        if name not in names:
            text = "the schema has no such column"
            raise UserError(text, file=file, key="--columns", value=name, allowed=", ".join(names))
        if columns.count(name) > 1:
            raise UserError("this column appears twice", file=file, key="--columns", value=name)
    if by is None:
        return
    allowed = ", ".join(name for name in names if categories_of(schema, name) is not None) or "none here"
    if by not in names or categories_of(schema, by) is None:
        raise UserError("not a categorical column of the schema", file=file, key="--by", value=by, allowed=allowed)
    if by in columns:
        raise UserError("is in --columns too", file=file, key="--by", value=by, allowed="one of the two")


BOUNDS_FILE = "stats.bounds"


def check_bound(folder: Path, data: bytes, least_rows: int) -> dict[bytes, int]:
    """Return the bounds of tables, by digest. Raises UserError: this one was answered about with another one;
    StorageError.
    """
    kept: dict[bytes, int] = _kept(folder / BOUNDS_FILE, dict[bytes, int]) or {}
    before = kept.get(data, least_rows)
    if before != least_rows:
        text = (
            f"least_rows was {before} in an earlier question about the same table: two answers could tell of few rows"
        )
        raise UserError(text, key="stats.least_rows", value=least_rows, allowed=f"{before}, the most of all sites")
    return kept


def keep_bound(folder: Path, data: bytes, least_rows: int) -> None:
    """Remember the bound of a table before anything is shown that depends on it. Raises as above."""
    kept = check_bound(folder, data, least_rows)
    if data not in kept:
        kept[data] = least_rows
        _keep(folder / BOUNDS_FILE, dict([*kept.items()][-MOST_BOUNDS:]))


def _kept(path: Path, kind: Any) -> Any:
    """Return what is in a file of the state folder, None if there is none. Raises StorageError."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, *UNREADABLE) as error:
        text = "without it a question might tell of the few rows by which the table has changed"
        raise StorageError(f"{path} cannot be read: {error}: {text}") from error


def _keep(path: Path, content: Any) -> None:
    """Write a file of the state folder; it is on the disk when this returns. Raises StorageError."""
    with storage_errors(path):
        make_folder(path.parent)
    replace_file(path, [msgspec.msgpack.encode(content)])


ROWS_FILE = "stats.rows"
HASH_BYTES = 16

Rows = Counter[bytes]


class HashedTable(Struct, frozen=True, array_like=True):
    """Keyed hashes of rows, one after the other, by value in the column of the groups; with none there is one group.
    `columns` has the same of the values that are known in each column that was asked about.
    """

    by: str | None
    groups: dict[int, bytes]
    columns: dict[str, dict[int, bytes]] = {}
    """Empty in files of earlier versions."""

    @property
    def digest(self) -> bytes:
        """32 bytes by which sums of these rows are known, whatever is asked about them."""
        hashes = b"".join(sorted(_members(self.groups).elements()))
        return hashlib.blake2b(hashes, digest_size=32, person=b"p2pfl-stats-rows").digest()

    def is_near(self, before: HashedTable, least_rows: int) -> bool:
        """True if in all or in a group the rows, the known values of a column, or the number of either differ by fewer,
        but not by none.
        """
        groups = self.groups.keys() | before.groups.keys() if self.by == before.by else ()
        pairs = [(self.groups, before.groups)]
        pairs += [(self.columns[name], before.columns[name]) for name in self.columns.keys() & before.columns.keys()]
        return any(
            0 < size < least_rows
            for group in (None, *groups)
            for mine, its in pairs
            if mine != its
            for new, old in [(_members(mine, group), _members(its, group))]
            for size in (max((new - old).total(), (old - new).total()), abs(new.total() - old.total()))
        )


def _members(hashes: Mapping[int, bytes], group: int | None = None) -> Rows:
    """Return the hashes of a group, or of all."""
    raw = b"".join(hashes.values()) if group is None else hashes.get(group, b"")
    return Counter(raw[at : at + HASH_BYTES] for at in range(0, len(raw), HASH_BYTES))


def hashed(columns: Mapping[str, NDArray[np.float64]], by: str | None, key: bytes, asked: Iterable[str]) -> HashedTable:
    """Hash each row of columns (n,), and each known value of those asked about, with a key of the site."""
    table = np.ascontiguousarray(np.stack([columns[name] for name in sorted(columns)], axis=1))
    groups = np.zeros(len(table)) if by is None else np.nan_to_num(columns[by], nan=-1.0)
    names = (*asked, *([] if by is None else [by]))
    known = {name: ~np.isnan(columns[name]) for name in names}
    values = {name: _by_group(columns[name][known[name]] + 0.0, groups[known[name]], key) for name in names}
    return HashedTable(by, _by_group(table, groups, key), values)


def _by_group(table: NDArray[np.float64], groups: NDArray[np.float64], key: bytes) -> dict[int, bytes]:
    """Hash what is at each place of a table (n, ...)."""
    hashes: dict[int, list[bytes]] = {}
    for row, group in zip(table, groups.astype(np.int64).tolist(), strict=True):
        hashes.setdefault(group, []).append(hashlib.blake2b(row.tobytes(), digest_size=HASH_BYTES, key=key).digest())
    return {group: b"".join(sorted(hashes[group])) for group in sorted(hashes)}


class AnsweredRows:
    """The tables of earlier answers, in the state folder. Raises StorageError: it is damaged, or cannot be read."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ROWS_FILE
        self._tables: list[HashedTable] = _kept(self._path, list[HashedTable]) or []

    def is_too_near(self, table: HashedTable, least_rows: int) -> bool:
        """Return True if this table differs from an earlier one by fewer rows, but not by none."""
        return any(table.is_near(before, least_rows) for before in self._tables)

    def keep(self, table: HashedTable) -> None:
        """Remember a table, and what was asked; it is on the disk when this returns. Raises StorageError."""
        same = [each for each in self._tables if (each.by, each.groups) == (table.by, table.groups)]
        columns = {name: column for each in (*same, table) for name, column in each.columns.items()}
        if same and columns.keys() == same[0].columns.keys():
            return
        others = [each for each in self._tables if each not in same]
        self._tables = [*others, msgspec.structs.replace(table, columns=columns)][-MOST_TABLES_KEPT:]
        _keep(self._path, self._tables)


LOG_FILE = "stats.log"
DAY = timedelta(hours=24)
ANSWERED, REFUSED = "answered", "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One question. `asker` is a member's name; empty: a program with the folders of all sites."""

    time: datetime
    asker: str
    serial: int
    columns: tuple[str, ...]
    by: str | None
    answer: str
    """ANSWERED or REFUSED."""
    reason: str = ""


class QuestionLog:
    """The log in a node's state folder; in memory are each asker's serial, and the latest times, at most `most` of
    each answer. Raises StorageError: it is damaged, or the disk refuses.
    """

    def __init__(self, folder: Path, most: int = MOST_REFUSALS) -> None:
        self._path, self._most = folder / LOG_FILE, most
        self._serials: dict[str, int] = {}
        self._times: dict[tuple[str, str], list[datetime]] = {}
        with storage_errors(self._path):
            make_folder(folder)
        self._size = 0
        self._read()

    def add(self, line: LogLine) -> None:
        """Keep a line; it is on the disk when this returns. Raises StorageError."""
        facts = asdict(line) | {"time": line.time.isoformat(timespec="seconds"), "columns": list(line.columns)}
        content = json.dumps(facts, ensure_ascii=False).encode() + b"\n"
        self._size = append_record(self._path, self._size, content)
        self._count(line)

    def serial(self, asker: str) -> int:
        """Return the greatest serial of a member's questions; 0 if it has asked none."""
        return self._serials.get(asker, 0)

    def today(self, asker: str, now: datetime, answer: str) -> int:
        """Count a member's questions of the last 24 hours, and any that the clock says are to come; `most` at most."""
        return sum(time > now - DAY for time in self._times.get((asker, answer), ()))

    def _count(self, line: LogLine) -> None:
        self._serials[line.asker] = max(line.serial, self.serial(line.asker))
        times = self._times.setdefault((line.asker, line.answer), [])
        insort(times, line.time)
        del times[: -self._most]

    def _read(self) -> None:
        content = b"\n"
        try:
            with self._path.open("rb") as file:
                for number, content in enumerate(file, start=1):
                    if content.endswith(b"\n"):
                        self._count(self._line(number, content))
                        self._size += len(content)
        except FileNotFoundError:
            create_file(self._path, b"")
        except OSError as error:
            raise StorageError(f"cannot read {self._path}: {error.strerror or error}") from error
        if not content.endswith(b"\n"):  # a crash cut the last line off, before its answer left
            truncate_file(self._path, self._size)

    def _line(self, number: int, content: bytes) -> LogLine:
        try:
            line = msgspec.convert(json.loads(content), LogLine)
        except (TypeError, *UNREADABLE) as error:
            text = f"{self._path}:{number} is damaged ({error}): without it nobody knows how often was asked"
            raise StorageError(text) from None
        return line if line.time.tzinfo else replace(line, time=line.time.replace(tzinfo=UTC))


def shortened(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names, or the first of them: what is refused must not fill the log."""
    ends = accumulate(map(len, names))
    first = tuple(name for name, end in zip(names, ends, strict=True) if end <= MOST_REASON)
    return names if first == names else (*first, "...")


PROGRAM = ""
"""Asks in the log for a program that has the folders of all sites."""
WITHHELD = "under [privacy] nothing is answered from rows without noise: ask for a model with a budget instead"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAnswer:
    """The site's answer. With a `refusal` there is no table."""

    least_rows: int
    refusal: str = ""
    table: SiteTable | None = None
    data: bytes = b""
    """32 bytes that name the rows of the table."""


class QueryPolicy:
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
        self._log = QuestionLog(node.state_dir, max(MOST_REFUSALS, node.stats.a_day))
        self._rows = AnsweredRows(node.state_dir)

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
    ) -> PolicyAnswer:
        """Decide on a question, and log it. `busy` says why none is answered just now.

        Raises StorageError: the log cannot be written, so there is no answer.
        """
        answer = self._decide(asker, columns, by, busy)
        answer = replace(answer, refusal=answer.refusal[:MOST_REASON])
        line = LogLine(
            time=self._now(),
            asker=asker,
            serial=serial,
            columns=shortened(columns) if answer.refusal else columns,
            by=by,
            answer=REFUSED if answer.refusal else ANSWERED,
            reason=answer.refusal,
        )
        self._log.add(line)
        return answer

    def _decide(self, asker: str, columns: tuple[str, ...], by: str | None, busy: str) -> PolicyAnswer:
        policy = self._node.stats
        refusal = self._refusal(asker, columns, by) or busy
        if refusal:
            return PolicyAnswer(least_rows=policy.least_rows, refusal=refusal)
        try:
            table = read_site(self._federation, self._node)
            check_question(table.schema, columns, by, self._node.path)
        except UserError as error:
            log.error("%s", error)  # noqa: TRY400 - the command shows errors only, and one line says all
            return PolicyAnswer(least_rows=policy.least_rows, refusal="its table cannot be read: its log says why")
        rows = hashed(table.columns, by, self._key, columns)
        refusal = self._refusal_of(table, rows, columns, by)
        if refusal:
            return PolicyAnswer(least_rows=policy.least_rows, refusal=refusal)
        self._rows.keep(rows)
        return PolicyAnswer(least_rows=policy.least_rows, table=table, data=rows.digest)

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
        if large := [name for name in columns if bool((np.abs(table.columns[name]) > MOST_SIZE).any())]:
            return f"a number in {large[0]} is too large to be summed"
        if self._rows.is_too_near(rows, self._node.stats.least_rows):
            least = f"fewer than {self._node.stats.least_rows} rows"
            return f"its table has changed since an earlier question by {least}, or values of a column"
        return ""


class StatsCheck(Check):
    def of_files(self, inspected: Inspected) -> None:
        federation = inspected.federation
        nodes = [node for node in inspected.here.values() if node.stats.columns or node.stats.to]
        if not nodes:
            return
        try:
            schema = schema_at(federation)
        except UserError:  # there is none yet, or it has mistakes, which others report
            schema = None
        for node in nodes:
            inspected.mistakes += mistakes_in(federation, node, schema)
        offering = [node for node in nodes if node.stats.to and node.stats.columns]
        if federation.privacy is not None:
            inspected.warnings.append("under [privacy] `p2pfl stats` answers nothing, whatever [stats] says")
        elif offering:
            first, others = offering[0], [node.name for node in offering[1:]]
            whom = others[0] if len(others) == 1 else f"{len(others)} more nodes"
            to = "all members" if EVERYBODY in first.stats.to else ", ".join(first.stats.to)
            more = f"; {whom} too: [stats] in their node.toml" if others else ""
            inspected.brief["statistics"] = f"{first.name} offers {', '.join(first.stats.columns)} to {to}{more}"


def mistakes_in(federation: FederationConfig, node: NodeConfig, schema: Schema | None) -> list[UserError]:
    """Return the mistakes in a node's `[stats]`; `schema` None: not known yet."""

    def mistake(text: str, key: str, value: str, allowed: str) -> UserError:
        return UserError(text, file=node.path, key=f"stats.{key}", value=value, allowed=allowed or "none here")

    policy, names = node.stats, [member.name for member in federation.present]
    mistakes = [
        mistake("not a member", "to", name, f'{", ".join(names)}, or "{EVERYBODY}"')
        for name in policy.to
        if name not in (*names, EVERYBODY)
    ]
    if schema is None:
        return mistakes
    columns = schema.columns
    text = "the schema has no such column"
    mistakes += [mistake(text, "columns", name, ", ".join(columns)) for name in policy.columns if name not in columns]
    groups = [name for name in columns if categories_of(schema, name) is not None]
    if policy.by is not None and policy.by not in groups:
        mistakes.append(mistake("not a categorical column of the schema", "by", policy.by, ", ".join(groups)))
    return mistakes
