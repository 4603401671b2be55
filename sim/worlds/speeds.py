"""How long a node's local round takes, in nanoseconds, computed with integers so that it is equal on every machine.

A round is work, counted in nanoseconds at speed 1. A speed is work per nanosecond; a trace may change it within the
round, and the round ends in the first nanosecond in which all its work is done. A trace is a CSV file with the columns
node, time_s, speed; other columns are ignored. Each node's first row is at time 0, and a speed holds until the node's
next row, the last one forever. Rows of different nodes may be in any order.
"""

from __future__ import annotations

import csv
import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from p2pfl.chance import stream
from p2pfl.config.model import FederationConfig
from p2pfl.errors import UserError
from p2pfl.foreign import read_file
from p2pfl.specs import number
from sim.worlds.drawn import draw, require_settled
from sim.worlds.model import FASTEST, LONGEST_S, NANOSECONDS, Names, WorldSpec, nanoseconds, seconds

UNIT = 10**15
"""The unit in which speeds are integers; the slowest still has nine digits."""
LONGEST_NS = round(LONGEST_S * NANOSECONDS)

NUMBERS = {"time_s": seconds(), "speed": number(1 / FASTEST, FASTEST)}
COLUMNS = ("node", *NUMBERS)
KEY = "compute.trace"
LARGEST_BYTES = 64 * 1024 * 1024
Steps = list[tuple[int, float]]
"""(time in nanoseconds, speed from then on), ascending."""


class NodeSpeed:
    """One node's speed over time. Jitter is drawn from the node's own stream, once per call of `round_ns`."""

    def __init__(
        self, steps: Steps, *, step_s: float, round_s: float | None, jitter: float, rng: Random | None
    ) -> None:
        self._times = [time for time, _ in steps]
        self._speeds = [max(1, round(speed * UNIT)) for _, speed in steps]
        self._step_units = round(step_s * NANOSECONDS * 1000) * (UNIT // 1000)
        self._round_units = None if round_s is None else round(round_s * NANOSECONDS * 1000) * (UNIT // 1000)
        self._jitter = jitter
        self._rng = rng

    def speed(self, time_ns: int) -> float:
        return self._speeds[bisect_right(self._times, time_ns) - 1] / UNIT

    def round_ns(self, steps: int, time_ns: int) -> int:
        """Return the duration of a round of `steps` local steps that begins at `time_ns`: at least 1, at most
        `LONGEST_NS`.
        """
        work = self._step_units * steps if self._round_units is None else self._round_units
        if self._rng is not None:
            work += work * round(self._jitter * self._rng.random() * UNIT) // UNIT
        now, place = time_ns, bisect_right(self._times, time_ns) - 1
        for following in range(place + 1, len(self._times)):
            done = (self._times[following] - now) * self._speeds[place]
            if done >= work:
                break
            work -= done
            now, place = self._times[following], following
        now += -(-work // self._speeds[place])
        return min(max(1, now - time_ns), LONGEST_NS)

    def estimate_ns(self, steps: int) -> int:
        """Estimate a round's duration at the first speed, without jitter: nothing is drawn."""
        work = self._step_units * steps if self._round_units is None else self._round_units
        return min(max(1, work // self._speeds[0]), LONGEST_NS)


def node_speeds(world: WorldSpec, federation: FederationConfig) -> tuple[NodeSpeed, ...]:
    """Return the speed of each member in a settled world. Raises UserError if the trace cannot be read."""
    require_settled(world)
    compute, seed = world.compute, federation.seed
    factors = {node: slow.speed for slow in world.slow for node in slow.nodes}
    return tuple(
        NodeSpeed(
            [(time, speed * factors.get(node, 1.0)) for time, speed in steps],
            step_s=compute.step_s,
            round_s=compute.round_s,
            jitter=compute.jitter,
            rng=stream(seed, "round jitter", node) if compute.jitter else None,
        )
        for node, steps in enumerate(_speeds_over_time(world, federation))
    )


def read_trace(path: Path, members: Sequence[str]) -> list[Steps]:
    """Read speeds by member. Raises UserError if the file cannot be read, or lacks a node's speed at some time."""
    names = Names(members)
    steps: list[Steps] = [[] for _ in members]
    for line, row in _rows(path):
        node = _node(row["node"], names, path, line)
        file = f"{path}:{line}"
        time_s, speed = (_number(row[column], column, file) for column in NUMBERS)
        _append(steps[node], nanoseconds(time_s), speed, file=file, value=time_s)
    missing = [name for name, own in zip(members, steps, strict=True) if not own]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise UserError(f"has no row for {shown}", file=path, key="node", allowed="one row or more for each node")
    return steps


def _speeds_over_time(world: WorldSpec, federation: FederationConfig) -> Sequence[Steps]:
    """Return each node's speeds: as in its trace, or one that is drawn for all time."""
    if world.compute.trace is not None:
        return read_trace(world.compute.trace, [member.name for member in federation.members])
    rng = stream(federation.seed, "speeds")
    return [[(0, draw(rng, world.compute.speed))] for _ in federation.members]


def _append(own: Steps, time_ns: int, speed: float, *, file: str, value: float) -> None:
    if not own and time_ns != 0:
        raise UserError("the node's first row is later than 0", file=file, key="time_s", value=value, allowed="0")
    if own and time_ns <= own[-1][0]:
        allowed = "times that grow from row to row of a node"
        raise UserError(
            "is not later than the node's row before", file=file, key="time_s", value=value, allowed=allowed
        )
    own.append((time_ns, speed))


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, the three columns as text) of each row that is not empty."""
    lines = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    try:
        header = [name.strip() for name in next(lines, [])]
        absent = [name for name in COLUMNS if name not in header]
        if absent:
            allowed = "a header with the columns " + ", ".join(COLUMNS)
            raise UserError(f"has no column {absent[0]}", file=path, value=",".join(header)[:100], allowed=allowed)
        places = [header.index(name) for name in COLUMNS]
        for row in lines:
            if not any(row):
                continue
            if len(row) != len(header):
                text = f"has {len(row)} fields where the header has {len(header)}"
                raise UserError(text, file=f"{path}:{lines.line_num}")
            yield lines.line_num, {name: row[place].strip() for name, place in zip(COLUMNS, places, strict=True)}
    except csv.Error as error:
        raise UserError(f"not CSV: {error}", file=f"{path}:{lines.line_num}", key=KEY) from None


def _text(path: Path) -> str:
    try:
        return read_file(path, LARGEST_BYTES, "a CSV file with the columns " + ", ".join(COLUMNS)).decode("utf-8-sig")
    except UserError as error:
        error.key = KEY
        raise
    except UnicodeDecodeError:
        raise UserError("is not UTF-8 text", file=path, key=KEY) from None


def _node(text: str, names: Names, path: Path, line: int) -> int:
    found = names.find(text)
    if len(found) != 1:
        raise UserError("no such node", file=f"{path}:{line}", key="node", value=text[:100], allowed=names.allowed_one)
    return found[0]


def _number(text: str, column: str, file: str) -> float:
    kind = NUMBERS[column]
    try:
        return float(kind.read(float(text)))
    except ValueError:
        raise UserError("impossible value", file=file, key=column, value=text[:100], allowed=kind.allowed) from None
