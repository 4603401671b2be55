"""A node's news in one place: notable events, which are also logged, and standing alarms.

The ring of events is bounded, and so are the alarms: one of each kind per member.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from p2pfl.reporting.alarms import ALARMS, LASTS_S, OTHER, AlarmText
from p2pfl.reporting.vitals import NotableEvent, StandingAlarm

log = logging.getLogger("p2pfl")
notice = logging.getLogger("p2pfl.notice")

MOST_EVENTS = 100


@dataclass(slots=True)
class RaisedAlarm:
    """An alarm that has not been settled; times are from the monotonic clock."""

    text: str
    since: float
    last_at: float
    count: int = 1


@dataclass(slots=True, eq=False)
class Feed:
    """The events and standing alarms of one node, on the event loop. `name_of` turns a member index into a name."""

    name_of: Callable[[int], str]
    events: deque[NotableEvent] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    event_count: int = 0
    """The number of events so far."""
    changes: int = 0
    """A counter that grows whenever the standing alarms change."""
    texts: Mapping[str, AlarmText] = field(default_factory=lambda: ALARMS)
    """Texts for each kind of alarm, both those of every node and those of its features."""
    _standing: dict[tuple[str, int | None], RaisedAlarm] = field(default_factory=dict)

    def tell(self, kind: str, peer: int | None, text: str, *, wrong: bool = False, times: int = 1) -> None:
        """Log one notable event, and keep it for the page."""
        place = "" if peer is None else f" ({self.name_of(peer)})"
        more = f" (time {times})" if times > 1 else ""
        (log.warning if wrong else notice.info)("%s%s: %s%s", kind, place, text, more)
        self.keep(kind, peer, text + more, wrong=wrong)

    def keep(self, kind: str, peer: int | None, text: str, *, wrong: bool = False) -> None:
        """Keep an event for the page only: the log has it in other words."""
        self.event_count += 1
        about = None if peer is None else self.name_of(peer)
        self.events.append(
            NotableEvent(
                number=self.event_count, at=round(time.monotonic(), 1), kind=kind, about=about, text=text, wrong=wrong
            )
        )

    def stand(self, kind: str, peer: int | None, text: str) -> None:
        """Add an alarm to the standing ones, or count it again."""
        now = time.monotonic()
        one = self._standing.get((kind, peer))
        if one is None:
            self._standing[kind, peer] = RaisedAlarm(text, now, now)
        else:
            one.text, one.last_at, one.count = text, now, one.count + 1
        self.changes += 1

    def reword(self, kind: str, peer: int | None, text: str) -> bool:
        """Replace the text of a standing alarm; return False if it does not stand."""
        one = self._standing.get((kind, peer))
        if one is not None and one.text != text:
            one.text = text
            self.changes += 1
        return one is not None

    def settle(self, event: str, peer: int | None) -> list[str]:
        """End the alarms about that member that this event settles; return their kinds."""
        ended = [key for key in self._standing if key[1] == peer and self.text_of(key[0]).ended_by == event]
        self._drop(ended)
        return [kind for kind, _ in ended]

    def expire(self) -> None:
        """Drop alarms that no event ends and that have not been raised again for a long time. Call about once a
        second.
        """
        before = time.monotonic() - LASTS_S
        old = [key for key, one in self._standing.items() if one.last_at < before]
        self._drop(key for key in old if self.text_of(key[0]).ended_by is None)

    def text_of(self, kind: str) -> AlarmText:
        return self.texts.get(kind, OTHER)

    def _drop(self, keys: Iterable[tuple[str, int | None]]) -> None:
        for key in keys:
            del self._standing[key]
            self.changes += 1

    def forget(self, peer: int) -> None:
        """Forget the alarms about a member that nothing waits for any more."""
        self._drop([key for key in self._standing if key[1] == peer])

    def stands(self, kind: str, peer: int | None) -> bool:
        return (kind, peer) in self._standing

    @property
    def kinds(self) -> list[str]:
        """Kinds of the standing alarms, without duplicates."""
        return list(dict.fromkeys(kind for kind, _ in self._standing))

    def standing(self) -> list[StandingAlarm]:
        return [
            StandingAlarm(
                kind=kind,
                about=None if peer is None else self.name_of(peer),
                text=one.text,
                since=round(one.since, 1),
                count=one.count,
                means=self.text_of(kind).means,
                does=self.text_of(kind).does,
                advice=self.text_of(kind).advice,
            )
            for (kind, peer), one in self._standing.items()
        ]
