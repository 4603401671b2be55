"""The word that all nodes are through: when each knows it, by the rules of `p2pfl.core.members`."""

from __future__ import annotations

import math
from bisect import bisect_right
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from p2pfl.core.members import may_wait_s

if TYPE_CHECKING:
    from sim.arrays.clock import Course, Floats

LATEST_SOURCES = 16
"""Of so many nodes that were the last to be through, the word is followed to every other node."""


def known_s(course: Course, through_s: Floats) -> Floats:
    """Return when each node knows that all are through (n,), from when each was. A node tells news when a round of its
    own ends, of those asked or of those beyond, or before, as the census says.
    """
    latest = np.argsort(through_s)[-LATEST_SOURCES:].tolist()
    known, everything = through_s.copy(), (1 << len(latest)) - 1
    ways: list[list[tuple[int, float]]] = [[] for _ in through_s]
    for (low, high), hop_s in zip(course.ends.tolist(), course.latency_s.tolist(), strict=True):
        ways[low].append((high, hop_s))
        ways[high].append((low, hop_s))
    told, due = [0] * len(ways), [math.inf] * len(ways)
    step = 1 / course.rounds
    ends = list(accumulate(course.beyond or (), lambda end, begins: max(end, begins) + step, initial=1.0))
    events = [(float(through_s[node]), node, 1 << bit) for bit, node in enumerate(latest)]
    heapify(events)
    while events:
        at, node, word = heappop(events)
        if word & ~told[node]:
            told[node] |= word
            if complete := told[node] == everything:
                known[node] = max(at, known[node])
            start_s, own_at = float(course.start_s[node]), float(through_s[node])
            own_s = own_at - start_s
            place = bisect_right(ends, (at - start_s) / own_s)
            if at < own_at or course.beyond is None:
                told_at = at + (own_at - at) % (own_s * step)
            else:
                told_at = start_s + own_s * ends[place] if place < len(ends) else math.inf
            send_at = min(told_at, at + may_wait_s(at, own_at if own_at <= at else None, complete=complete))
            if send_at < due[node]:
                due[node] = send_at
                heappush(events, (send_at, node, 0))
        elif not word and at == due[node]:
            due[node] = math.inf
            for other, hop_s in ways[node]:
                if told[node] & ~told[other]:
                    heappush(events, (at + hop_s, other, told[node]))
    return known
