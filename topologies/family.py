"""A family of graphs: its rule, parameters and closed form; and the parsing of values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from topologies.errors import TopologyError
from topologies.graph import Ends
from topologies.schedule import Schedule

WHOLE_LIMIT = 10**9
"""The largest value of a parameter; sums and products of a few such values still fit into 64 bits."""


@dataclass(frozen=True, slots=True)
class FamilyParameter:
    """A parameter. `read` converts the text of a value and raises ValueError if it cannot.

    A default of None means that the family chooses; `meaning` says how.
    """

    default: Any
    allowed: str
    read: Callable[[str], Any]
    meaning: str = ""


def counted(text: str, minimum: int, maximum: int = WHOLE_LIMIT) -> int:
    """Read only digits: `int` also accepts `1_0` and digits of other scripts. Raises ValueError."""
    if not (text.isascii() and text.isdigit()) or not minimum <= (value := int(text)) <= maximum:
        raise ValueError(text)
    return value


def whole(default: int | None, minimum: int, meaning: str = "", *, maximum: int = WHOLE_LIMIT) -> FamilyParameter:
    def read(text: str) -> int:
        return counted(text, minimum, maximum)

    return FamilyParameter(default, f"a whole number from {minimum} to {maximum}", read, meaning)


def fraction(default: float, meaning: str = "") -> FamilyParameter:
    def read(text: str) -> float:
        if not 0.0 <= (value := float(text)) <= 1.0:
            raise ValueError(text)
        return value

    return FamilyParameter(default, "a number from 0 to 1", read, meaning)


def positive(default: float | None, meaning: str = "") -> FamilyParameter:
    def read(text: str) -> float:
        if not 0.0 < (value := float(text)) < math.inf:
            raise ValueError(text)
        return value

    return FamilyParameter(default, "a number above 0", read, meaning)


def offsets(default: tuple[int, ...], meaning: str = "") -> FamilyParameter:
    def read(text: str) -> tuple[int, ...]:
        return tuple(sorted({counted(part, 1) for part in text.split("-")}))

    return FamilyParameter(default, "whole numbers from 1 joined by '-', such as 1-2", read, meaning)


def lengths(meaning: str = "") -> FamilyParameter:
    """The sides of a box, in order; none by default."""

    def read(text: str) -> tuple[int, ...]:
        return tuple(counted(part, 2) for part in text.split("x"))

    return FamilyParameter(None, "whole numbers from 2 joined by 'x', such as 4x5x6", read, meaning)


def choice(default: str, *others: str, meaning: str = "") -> FamilyParameter:
    words = (default, *others)

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return FamilyParameter(default, " or ".join(words), read, meaning)


def file(meaning: str = "") -> FamilyParameter:
    """The path of a file, without commas; none by default. Relative paths start at the request's folder."""

    def read(text: str) -> Path:
        if not text:
            raise ValueError(text)
        return Path(text)

    return FamilyParameter(None, "the path of a file, without commas", read, meaning)


Parameters = Mapping[str, Any]


class GraphKind(Enum):
    """The kind of a graph.

    `STATIC`: one undirected graph. `SCHEDULE`: a different undirected graph in each round. `DIRECTED`: one or more
    directed graphs. A federation can run the first two; directed graphs stay inside this library.
    """

    STATIC = "static"
    SCHEDULE = "schedule"
    DIRECTED = "directed"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRequest:
    """A request for a graph. `names` are the nodes' names, one for each or none, for families that order their members.

    `folder` is where a relative path among the parameters starts.
    """

    spec: str
    nodes: int
    parameters: Parameters
    seed: int = 0
    names: Sequence[str] = ()
    folder: Path = Path()

    def __getitem__(self, key: str) -> Any:
        return self.parameters[key]

    def called(self) -> Sequence[str]:
        """Return the nodes' names, by default their numbers."""
        return self.names or [str(node) for node in range(self.nodes)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedForm:
    """A graph's figures from a formula, without an eigensolver and without the edges.

    `low`, `high` are the second smallest and the largest eigenvalue of the Laplacian; `degrees` the minimum and maximum
    degree. `diameter` is None if no formula is known.
    """

    low: float
    high: float
    edges: int
    degrees: tuple[int, int]
    diameter: int | None = None


EdgeBuilder = Callable[[GraphRequest], Ends | Iterable[Sequence[int]]]
ScheduleBuilder = Callable[[GraphRequest], Schedule]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of graphs. `rule`, `degree`, `connectivity` (lambda_2) and `source` are what `topology list` prints.

    `transitive`: every node has the same view of the graph. `random`: the edges depend on the seed. `by_name`: they
    depend on the nodes' names. `closed` is called for two or more nodes and returns None if no formula holds for these
    parameters. `expected` returns the number of edges, or its mean if they are drawn at random, so that a graph too
    large to hold is refused before it is made. A family with many edges on few nodes needs one of the two.
    `edges_limit` is for a family whose edges are drawn in a Python loop: that many take a minute or 3 GB. Without it,
    the limit is what memory can hold.
    """

    rule: str
    degree: str
    build: EdgeBuilder | None = None
    schedule: ScheduleBuilder | None = None
    parameters: Mapping[str, FamilyParameter] = field(default_factory=dict)
    closed: Callable[[GraphRequest], ClosedForm | None] | None = None
    expected: Callable[[GraphRequest], float] | None = None
    connectivity: str = ""
    source: str = ""
    kind: GraphKind = GraphKind.STATIC
    transitive: bool = False
    random: bool = False
    edges_limit: int | None = None
    by_name: bool = False


def impossible(name: str, nodes: int, allowed: str) -> TopologyError:
    return TopologyError(f"no {name} of this size", key="nodes", value=nodes, allowed=allowed)


REACH = 1_000
"""The distance from an impossible size within which `sizes_near` looks for possible ones."""


def sizes_near(nodes: int, fits: Callable[[int], bool]) -> str:
    """Name the nearest sizes that fit, such as `8 or 10`; empty if there is none near."""
    below = next((n for n in range(nodes - 1, max(0, nodes - REACH), -1) if fits(n)), None)
    above = next((n for n in range(nodes + 1, nodes + REACH) if fits(n)), None)
    return " or ".join(str(n) for n in (below, above) if n is not None)


def unfit(key: str, value: object, nodes: int, allowed: str) -> TopologyError:
    """Make the error for a parameter, called `family:key`, that no graph with this many nodes can have."""
    return TopologyError(f"no such graph on {nodes} nodes", key=key, value=value, allowed=allowed)
