"""A world file's content after validation, as plain frozen values; then the keys, their allowed values, and node names.

A default in a class is the default of the file. A reader also accepts its own results, so that the same table checks a
world that was built in Python.

Times are in virtual seconds, sizes in bytes, rates in bytes per second, probabilities per message. Nodes are member
indices. Everything random that the file asks for is drawn later, from the run's seed: if `count` is given beside
`nodes`, `drawn.settle` chooses that many nodes, and `nodes` names all of them afterwards. The times at which each node
is up (`UpTimes`) are integer nanoseconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from p2pfl.config.schemas import Table, defaults_of
from p2pfl.config.tables import Mistakes, flag, list_of, or_none, text
from p2pfl.specs import Kind, number, whole
from sim.attacks import ALLOWED_ATTACKS, parse_attack

NANOSECONDS = 1_000_000_000

Kinds = Mapping[str, Kind]

LONGEST_S = 1e9
"""Thirty years: longer than any run, and nanoseconds still fit into 63 bits."""
FASTEST = 1e6
SHORTEST_S = 1e-6
"""The shortest step or round at speed 1, and the shortest time between two dials."""

_INDEX = re.compile(r"[0-9]{1,9}")
_RANGE = re.compile(r"([0-9]{1,9})\s*-\s*([0-9]{1,9})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A random quantity: `constant` (low), `uniform` or `log-uniform` between low and high."""

    kind: str = "constant"
    low: float = 1.0
    high: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeSpec:
    """The speed of local steps: `step_s` divided by the node's speed; `round_s`, if given, is a round at speed 1."""

    step_s: float = 0.0025
    round_s: float | None = None
    speed: Spread = field(default_factory=Spread)
    """A node's speed, drawn once."""
    jitter: float = 0.02
    """Each round takes longer by up to this fraction, drawn per round."""
    engine_s: float = 0.0005
    """The duration of one exchange operation (encode, apply)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    latency_s: Spread = field(default_factory=lambda: Spread(low=0.002, high=0.002))
    """A link's latency, drawn once."""
    jitter_s: float = 0.0
    """Each message takes longer by up to this much, so that messages overtake each other."""
    bandwidth: float | None = None
    """Bytes per second in each direction of a link; None for unlimited."""
    loss: float = 0.0
    """The probability that a packet is lost. TCP sends it again, and what follows waits for it: nothing is lost."""
    drop: float = 0.0
    """The probability that a message vanishes within its session, which TCP never does."""
    duplication: float = 0.0
    redial_s: float = 0.05
    """The delay before a dead session's link is redialed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowNodes:
    """Slow nodes: their messages take `far_s` longer, with at most `bandwidth`; their speed is times `speed`."""

    nodes: tuple[int, ...] = ()
    count: int = 0
    far_s: float = 0.0
    bandwidth: float | None = None
    speed: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSpec:
    """A partition: no message passes between groups from `at_s` to `until_s`; nodes in no group form one more."""

    groups: tuple[tuple[int, ...], ...]
    at_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashSpec:
    """Power off at `at_s`; on again after `down_s`, None for never. With `amnesia` the disk is lost too."""

    nodes: tuple[int, ...] = ()
    count: int = 0
    at_s: float
    down_s: float | None = None
    amnesia: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnSpec:
    """Random crashes until `until_s`: up times are exponential with mean `up_s`, down times with mean `down_s`.

    Each crash loses the disk with probability `amnesia`. With neither `nodes` nor `count`, all honest nodes crash.
    """

    nodes: tuple[int, ...] | None = None
    count: int | None = None
    up_s: float
    down_s: float
    until_s: float
    amnesia: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSpec:
    """Nodes that first start at `at_s`."""

    nodes: tuple[int, ...] = ()
    count: int = 0
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AmendSpec:
    """A change of the federation at `at_s`: `join` lists members that start then, `leave` members that are removed.

    The graph of the remaining members is `topology` from then on; None keeps the previous one.
    """

    at_s: float
    join: tuple[int, ...] = ()
    leave: tuple[int, ...] = ()
    topology: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiarSpec:
    """Liars: `attack` names what these nodes show instead of their model (see `attacks`)."""

    nodes: tuple[int, ...] = ()
    count: int = 0
    attack: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSpec:
    """A whole world; `path` is the file it came from, None for the default world."""

    path: Path | None = None
    compute: ComputeSpec = field(default_factory=ComputeSpec)
    links: LinkSpec = field(default_factory=LinkSpec)
    slow: tuple[SlowNodes, ...] = ()
    partitions: tuple[PartitionSpec, ...] = ()
    crashes: tuple[CrashSpec, ...] = ()
    churn: ChurnSpec | None = None
    joins: tuple[JoinSpec, ...] = ()
    amendments: tuple[AmendSpec, ...] = ()
    liars: LiarSpec | None = None
    evaluate_every_s: float | None = None
    """The virtual time between two evaluations; None for about forty per run."""
    limit_s: float = 86_400.0
    """The virtual time at which a run ends at the latest."""

    @property
    def starts(self) -> tuple[JoinSpec, ...]:
        """First starts of the nodes that are absent at the beginning."""
        return self.joins + tuple(
            JoinSpec(nodes=amendment.join, at_s=amendment.at_s) for amendment in self.amendments if amendment.join
        )


def nanoseconds(time_s: float) -> int:
    return round(time_s * NANOSECONDS)


class UpTimes:
    """When each node is up, as far as known: from its join on, except between a crash and the restart.

    Its entries never contradict each other.
    """

    def __init__(self, joins: Iterable[JoinSpec] = ()) -> None:
        self.born = {node: nanoseconds(join.at_s) for join in joins for node in join.nodes}
        self._down: dict[int, list[tuple[int, int | None]]] = {}

    def objection(self, node: int, begin_ns: int, end_ns: int | None) -> str | None:
        """Say why the node cannot be down from `begin_ns` to `end_ns` (None for good); return None if it can."""
        if begin_ns <= self.born.get(node, 0):
            return "would crash before it has started"
        for begin, end in self._down.get(node, ()):
            if (end_ns is None or begin <= end_ns) and (end is None or begin_ns <= end):
                return "would crash while it is down" if end is not None else "would crash though it never comes back"
        return None

    def add(self, node: int, begin_ns: int, end_ns: int | None) -> None:
        self._down.setdefault(node, []).append((begin_ns, end_ns))


def ends(crash: CrashSpec) -> tuple[int, int | None]:
    """Return when the nodes of a crash go down and when they are up again."""
    begin = nanoseconds(crash.at_s)
    return begin, None if crash.down_s is None else begin + max(1, nanoseconds(crash.down_s))


def seconds(least: float = 0.0) -> Kind:
    return replace(number(least, LONGEST_S), words=f"seconds, from {least:g} to {LONGEST_S:g}")


def probability() -> Kind:
    return replace(number(0, 1), words="a probability, from 0 to 1")


def spread(least: float, most: float) -> Kind:
    """Return the kind for a number, or a text with the two numbers between which one is drawn."""
    allowed = f'a number X, "uniform:X,Y" or "log-uniform:X,Y" with X up to Y, each from {least:g} to {most:g}'
    return Kind(allowed, lambda value: _spread(value, least, most), {"type": ["number", "string"]})


def attack() -> Kind:
    def read(value: Any) -> str:
        parse_attack(value)
        return str(value)

    return Kind(ALLOWED_ATTACKS, read)


COMPUTE: Kinds = {
    "step_s": seconds(SHORTEST_S).key("duration of a local step at speed 1"),
    "round_s": seconds(SHORTEST_S).key("instead of step_s: duration of a whole round at speed 1"),
    "speed": spread(1 / FASTEST, FASTEST).key("speed of each node: a step takes step_s / speed"),
    "jitter": number(0, 1000).key("each round takes up to this fraction longer; with 0, equal nodes stay in lockstep"),
    "engine_s": seconds().key("time to encode or apply one message"),
}

LINKS: Kinds = {
    "latency_s": spread(0, LONGEST_S).key("latency of each link"),
    "jitter_s": seconds().key("each message takes up to this much longer, so that messages overtake each other"),
    "bandwidth": or_none(replace(number(1), words="bytes per second, from 1")).key(
        "of each link and direction; messages queue"
    ),
    "loss": probability().key("probability that a packet is lost: it is sent again, and later ones wait for it"),
    "drop": probability().key("probability that a message vanishes, which TCP never lets happen within a session"),
    "duplication": probability().key("probability that a message arrives twice"),
    "redial_s": seconds(SHORTEST_S).key("time until a broken session is dialed again"),
}

WHO: Kinds = {
    "count": whole(0).key("this many, drawn at random"),
    "fraction": replace(number(0, 1), words="a share of all nodes, from 0 to 1").key(
        "this share of all, drawn at random"
    ),
}
"""Options by which nodes are chosen at random; `Names` reads the key `nodes` beside them."""

SLOW: Kinds = {
    "far_s": seconds().key("messages to and from these nodes take this much longer"),
    "bandwidth": LINKS["bandwidth"].key("bandwidth to and from these nodes, at most"),
    "speed": number(1 / FASTEST, FASTEST).key("their speed is multiplied by this"),
}

PARTITION: Kinds = {
    "at_s": seconds().key("from then on no message passes between groups; sessions between them are cut"),
    "until_s": seconds().key("the end of the partition"),
}

CRASH: Kinds = {
    "at_s": seconds().key("time of the power failure"),
    "down_s": or_none(seconds(SHORTEST_S)).key("time until it is on again; without it, never"),
    "amnesia": flag().key("whether the disk is lost too"),
}

CHURN: Kinds = {
    "up_s": seconds(SHORTEST_S).key("mean time until a node crashes, exponential"),
    "down_s": seconds(SHORTEST_S).key("mean time until it is on again, exponential"),
    "until_s": seconds().key("no crash begins later"),
    "amnesia": probability().key("probability that a crash loses the disk too"),
}

JOIN: Kinds = {"at_s": seconds(SHORTEST_S).key("time of the first start")}

AMEND: Kinds = {
    "at_s": seconds(SHORTEST_S).key("time of the change"),
    "topology": text().key("graph of those who are members from then on; without it, the spec of before"),
}

LIARS: Kinds = {"attack": attack().key("what malicious nodes show or learn: `p2pfl list attacks`")}

RUN: Kinds = {
    "evaluate_every_s": seconds(0.001).key("time between two points of the history; without it, about forty in a run"),
    "limit_s": seconds(0.001).key("the run ends here at the latest"),
}

SECTIONS = ("compute", "links", "slow", "partition", "crash", "churn", "join", "amend", "liars", "run")


def needed(spec: type[Any]) -> tuple[str, ...]:
    """Return the fields without a default."""
    return tuple(each.name for each in fields(spec) if each.default is MISSING and each.default_factory is MISSING)


def tables() -> tuple[Table, ...]:
    """Return the tables of a world file, for the reference and for editors."""
    words, schema = 'names, indices from 0, ranges such as "0-9", or a list of these', {"type": ["string", "integer"]}
    nodes = Kind(words, tuple, {"type": ["string", "integer", "array"], "items": schema})  # `Names` reads them
    groups = replace(nodes, words="a list, each group as `nodes`", schema=list_of(nodes, 1))
    changed = replace(nodes, words="as `nodes`")
    partition = {"groups": groups.key("groups between which no message passes; nodes in none form one more")}
    amend = {
        "join": changed.key("these are members from then on, and start"),
        "leave": changed.key("these are removed"),
    }
    who = {"nodes": nodes.key("these nodes"), **WHO}
    shapes: tuple[tuple[str, type[Any], Kinds], ...] = (
        ("compute", ComputeSpec, COMPUTE),
        ("links", LinkSpec, LINKS),
        ("[slow]", SlowNodes, {**SLOW, **who}),
        ("[partition]", PartitionSpec, {**partition, **PARTITION}),
        ("[crash]", CrashSpec, {**CRASH, **who}),
        ("churn", ChurnSpec, {**CHURN, **who}),
        ("[join]", JoinSpec, {**JOIN, **who}),
        ("[amend]", AmendSpec, {**amend, **AMEND}),
        ("liars", LiarSpec, {**LIARS, **who}),
        ("run", WorldSpec, RUN),
    )
    return tuple(
        Table(
            name=name.strip("[]"),
            kinds=kinds,
            defaults={
                key: value.low if isinstance(value, Spread) else value
                for key, value in defaults_of(spec).items()
                if value != [] and key not in who
            },
            needed=needed(spec),
            repeats=name.startswith("["),
        )
        for name, spec, kinds in shapes
    )


class Names:
    """A federation's members, in order: named by member name, by index from 0, or by a range such as "0-9".

    If members are called by numbers that are not their indices, a number could mean two nodes; only names count then.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.count = len(names)
        self._index = {name: index for index, name in enumerate(names)}
        self.by_index = all(not name.isdigit() or int(name) == index for index, name in enumerate(names))
        some = f"a member's name ({names[0]} to {names[-1]})" if names else "nothing: there are no members"
        self.allowed_one = f"{some} or an index from 0 to {self.count - 1}" if self.by_index else some
        """The allowed names of one node, in words."""
        ranges = (
            f', a range such as "0-{min(4, self.count - 1)}", or a list of these' if self.by_index else ", or a list"
        )
        self.allowed = self.allowed_one + ranges

    def read(self, value: Any, key: str, mistakes: Mistakes) -> tuple[int, ...]:
        """Read the ascending indices named by `value`: a text (commas between parts), an index, or a list of these."""
        parts: list[Any] = value if isinstance(value, list) else [value]
        seen: set[int] = set()
        for part in parts:
            for word in part.split(",") if isinstance(part, str) else [part]:
                nodes = self.find(word)
                if not nodes:
                    shown = word if isinstance(word, str | int | float) else type(word).__name__
                    mistakes.add("no such node", key, _short(shown), self.allowed)
                    return ()
                repeated = seen.intersection(nodes)
                if repeated:
                    mistakes.add("names a node twice", key, _short(word), "each node once")
                    return ()
                seen.update(nodes)
        if not seen:
            mistakes.add("names no node", key, None, self.allowed)
        return tuple(sorted(seen))

    def find(self, word: object) -> Sequence[int]:
        """Return the indices that one word stands for; none if it is not understood."""
        if isinstance(word, str):
            word = word.strip()
            if word in self._index:
                return [self._index[word]]
            if not self.by_index:
                return []
            if _INDEX.fullmatch(word):
                return self._within(int(word), int(word))
            ends = _RANGE.fullmatch(word)
            return self._within(int(ends[1]), int(ends[2])) if ends else []
        if isinstance(word, int) and not isinstance(word, bool) and self.by_index:
            return self._within(word, word)
        return []

    def _within(self, first: int, last: int) -> Sequence[int]:
        return range(first, last + 1) if 0 <= first <= last < self.count else []


def _spread(value: Any, least: float, most: float) -> Spread:
    if isinstance(value, Spread):
        parsed = value
    elif isinstance(value, str):
        parsed = _spread_in_words(value)
    else:
        number(least, most).read(value)
        parsed = Spread(low=float(value), high=float(value))
    if parsed.kind not in ("constant", "uniform", "log-uniform") or not least <= parsed.low <= parsed.high <= most:
        raise ValueError
    if parsed.kind == "log-uniform" and parsed.low == 0:
        raise ValueError
    return Spread(low=parsed.low, high=parsed.low) if parsed.kind == "constant" or parsed.low == parsed.high else parsed


def _spread_in_words(text: str) -> Spread:
    kind, _, numbers = text.partition(":")
    try:
        low, high = (float(part) for part in numbers.split(","))
    except ValueError:
        raise ValueError from None  # the caller says what is allowed, not Python
    if kind not in ("uniform", "log-uniform") or not math.isfinite(low + high):
        raise ValueError
    return Spread(kind=kind, low=low, high=high)


def _short(value: object) -> object:
    if isinstance(value, int) and value.bit_length() > 64:  # Python refuses to print longer numbers
        return "a very large number"
    return value if len(str(value)) <= 100 else str(value)[:100] + "..."
