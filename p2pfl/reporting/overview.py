"""One node's view of its whole federation: the response to `GET /federation`, which the page, `watch` and `status`
read.

A field that is null is unknown. Times are in seconds on a clock of the responding node, whose zero is arbitrary: `now`
minus another time is an age. The clocks of different nodes need not agree.
"""

from __future__ import annotations

import msgspec

from p2pfl.learn.metrics import Measure
from p2pfl.reporting.status import PrivacyStatus


class MemberRow(msgspec.Struct, kw_only=True):
    """One member, according to its own latest row. Without a row, all fields except index and name are null."""

    index: int
    name: str
    at: float | None = None
    """The time when the member sent this row, on the clock of the responding node."""
    source: str | None = None
    """The node that forwarded the row to the responding node, if it was not the member itself."""
    quiet: bool = False
    """True if a newer row from the member is overdue."""
    lost: bool = False
    """True if none of the member's neighbors reports that it hears from it."""
    phase: str | None = None
    rounds: int | None = None
    main: float | None = None
    """The score in its latest test, by the task's main measure."""
    accuracy: float | None = None
    scores: dict[str, float | None] = {}
    """The scores in its latest test, by the name of each measure of the task, the main one first."""
    intervals: dict[str, tuple[float, float]] = {}
    """The 95% intervals of the responding node's own scores, by name; they are not sent to other nodes."""
    tested_round: int | None = None
    """The round after which its scores were tested, if its model has had more than one since."""
    loss: float | None = None
    distance: float | None = None
    staleness: float | None = None
    bytes_sent: int | None = None
    bytes_received: int | None = None
    bytes_per_s: float | None = None
    """The bytes that it sent per second between its latest two rows."""
    exchanges: int | None = None
    live: list[int] | None = None
    """The members with which it has a session."""
    unheard: list[int] = []
    """The neighbors with a session that have sent nothing for several heartbeats."""
    alarms: int | None = None
    """The number of alarms raised since its process started."""
    standing: list[str] = []
    """The kinds of its active alarms."""
    charter: int | None = None
    software: str | None = None
    life: int | None = None
    epsilon: float | None = None
    """The epsilon that it has spent from its privacy budget."""


class NotableEvent(msgspec.Struct, kw_only=True, frozen=True):
    """One notable event, as the responding node observed it."""

    number: int
    at: float
    kind: str
    about: str | None
    text: str
    wrong: bool


class StandingAlarm(msgspec.Struct, kw_only=True, frozen=True):
    """One active alarm of the responding node."""

    kind: str
    about: str | None
    text: str
    since: float
    count: int
    means: str
    does: str
    advice: str


class FederationStatus(msgspec.Struct, kw_only=True):
    """The response to `GET /federation`."""

    federation: str
    node: str
    """The name of the responding node."""
    number: int
    """A number that grows with each response that differs from the previous one."""
    now: float
    vitals: bool
    """True if members send their status to each other."""
    period_s: float
    """The period in which a member sends its row."""
    quiet_after_s: float
    measures: list[Measure] = []
    """The measures of the task, the main one first."""
    privacy: PrivacyStatus | None = None
    """The budget of the responding node; null if there is no privacy promise."""
    rounds_to_do: int | None
    topology: str
    charter: int
    software: str
    edges: tuple[tuple[int, int], ...]
    members: list[MemberRow]
    alarms: list[StandingAlarm]
    events: list[NotableEvent]


class FederationStep(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The changes since the response with the previous number."""

    number: int
    now: float
    members: list[MemberRow] = []
    """The rows that have changed, each in full."""
    events: list[NotableEvent] = []
    alarms: list[StandingAlarm] | None = None
    privacy: PrivacyStatus | None = None
    point: dict[str, list[float | None]] | None = None
    """The next point of the curves, if one is due."""
