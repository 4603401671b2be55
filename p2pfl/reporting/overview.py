"""One node's view of its whole federation, the answer of `GET /federation`: page, `watch` and `status` read it.

A field that is null is unknown. Times are seconds of one clock of the node that answers, which begins anywhere: `now`
minus another of them is an age. Clocks of different nodes need not agree.
"""

from __future__ import annotations

import msgspec

from p2pfl.learn.metrics import Measure
from p2pfl.reporting.status import PrivacyStatus


class MemberRow(msgspec.Struct, kw_only=True):
    """One member, by its latest row about itself. Without a row all but index and name is null."""

    index: int
    name: str
    at: float | None = None
    """When the member sent this row, by the clock of the answering node."""
    source: str | None = None
    """The node that passed the row on to the answering node, if it was not the member itself."""
    quiet: bool = False
    """True if the member should have sent a newer row, and has not."""
    lost: bool = False
    """True if no neighbor of the member hears it, as far as they report."""
    phase: str | None = None
    rounds: int | None = None
    main: float | None = None
    """The score of its latest test by the task's main measure."""
    accuracy: float | None = None
    scores: dict[str, float | None] = {}
    """The scores of its latest test, by name of each of the task's measures, the main one first."""
    intervals: dict[str, tuple[float, float]] = {}
    """The 95% intervals of the answering node's own scores, by name; they are not sent to other nodes."""
    loss: float | None = None
    distance: float | None = None
    staleness: float | None = None
    bytes_sent: int | None = None
    bytes_received: int | None = None
    bytes_per_s: float | None = None
    """Bytes sent per second between its latest two rows."""
    exchanges: int | None = None
    live: list[int] | None = None
    """The members with which it has a session."""
    unheard: list[int] = []
    """The neighbors with a session that have sent nothing for some heartbeats."""
    alarms: int | None = None
    """The number of alarms raised since its process started."""
    standing: list[str] = []
    """The kinds of its alarms that stand."""
    charter: int | None = None
    software: str | None = None
    life: int | None = None
    epsilon: float | None = None
    """The epsilon that it has spent of its privacy budget."""


class NotableEvent(msgspec.Struct, kw_only=True, frozen=True):
    """One notable event, as the answering node saw it."""

    number: int
    at: float
    kind: str
    about: str | None
    text: str
    wrong: bool


class StandingAlarm(msgspec.Struct, kw_only=True, frozen=True):
    """One alarm of the answering node that stands."""

    kind: str
    about: str | None
    text: str
    since: float
    count: int
    means: str
    does: str
    advice: str


class FederationStatus(msgspec.Struct, kw_only=True):
    """The answer of `GET /federation`."""

    federation: str
    node: str
    """The name of the answering node."""
    number: int
    """Grows with each answer that differs from the one before."""
    now: float
    vitals: bool
    """True if members send each other their status."""
    period_s: float
    """The period in which a member sends its row."""
    quiet_after_s: float
    measures: list[Measure] = []
    """The measures of the task, the main one first."""
    privacy: PrivacyStatus | None = None
    """The budget of the answering node; null where nothing is promised."""
    rounds_to_do: int | None
    topology: str
    charter: int
    software: str
    edges: tuple[tuple[int, int], ...]
    members: list[MemberRow]
    alarms: list[StandingAlarm]
    events: list[NotableEvent]


class FederationStep(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The changes since the answer with the previous number."""

    number: int
    now: float
    members: list[MemberRow] = []
    """The rows that have changed, complete."""
    events: list[NotableEvent] = []
    alarms: list[StandingAlarm] | None = None
    privacy: PrivacyStatus | None = None
    point: dict[str, list[float | None]] | None = None
    """The next point of the curves, if one is due."""
