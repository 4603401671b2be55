"""A world as a Python object: how fast simulated nodes are, what their links are like, what goes wrong.

    from sim import World, simulate

    report = simulate(federation, world=World(speed="log-uniform:1,10", loss=0.1))

Whatever a world file can say is a keyword of the same name, with the same default and the same check: docs/worlds.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import msgspec

from p2pfl.config.tables import Mistakes, read_document, read_table, unknown_keys
from sim.worlds.load import world_from
from sim.worlds.model import WorldSpec
from sim.worlds.schema import COMPUTE, LINKS, RUN, SECTIONS

WHERE = "World"
"""What errors name in place of a file."""
TABLES = {"compute": COMPUTE, "links": LINKS, "run": RUN}
OTHERS = tuple(section for section in SECTIONS if section not in TABLES)

Table = Mapping[str, Any]


class Conditions(TypedDict, total=False):
    """The keys of `[compute]`, `[links]` and `[run]`, and the other tables as dictionaries."""

    step_s: float
    round_s: float
    speed: float | str
    trace: str | Path
    jitter: float
    engine_s: float
    latency_s: float | str
    jitter_s: float
    bandwidth: float
    loss: float
    duplication: float
    redial_s: float
    evaluate_every_s: float
    limit_s: float
    slow: Sequence[Table]
    partition: Sequence[Table]
    crash: Sequence[Table]
    join: Sequence[Table]
    churn: Table
    liars: Table


class World:
    """The world that a federation is simulated in; without keywords the default one.

    `slow`, `partition`, `crash` and `join` are lists of dictionaries, `churn` and `liars` one dictionary, each with the
    keys that the table has in a world file. Nodes are named, numbered from 0, or drawn by `count` or `fraction`.
    Raises UserError: a keyword is unknown or has an impossible value. What depends on the federation's nodes is checked
    when it is simulated.
    """

    def __init__(self, **conditions: Unpack[Conditions]) -> None:
        document: dict[str, Any] = {}
        mistakes = Mistakes(Path(WHERE))
        unknown_keys(conditions, "", [*COMPUTE, *LINKS, *RUN, *OTHERS], mistakes)
        for section, kinds in TABLES.items():
            table = {key: value for key, value in conditions.items() if key in kinds and value is not None}
            read_table(table, "", kinds, mistakes)
            document |= {section: table} if table else {}
        for section in OTHERS:
            if conditions.get(section) is not None:
                document[section] = _as_in_a_file(conditions[section])  # type: ignore[literal-required]
        for mistake in mistakes.found:
            raise mistake
        self.document = document
        self.place = Path(WHERE)

    @classmethod
    def from_file(cls, path: Path | str) -> World:
        """The world of a file, checked when simulated. Raises UserError: it cannot be read, or is no TOML."""
        world = cls()
        world.document, world.place = read_document(Path(path)), Path(path)
        return world

    def __repr__(self) -> str:
        return f"World({self.place}: {', '.join(self.document) or 'the default one'})"

    def to_json(self) -> bytes:
        """The tables of the world file that says the same."""
        return msgspec.json.format(msgspec.json.encode(self.document, enc_hook=str), indent=1)

    def spec(self, names: Sequence[str]) -> WorldSpec:
        """The world for nodes of these names. Raises UserError: its first mistake or contradiction."""
        mistakes = Mistakes(self.place)
        spec = world_from(self.document, names, mistakes)
        for mistake in mistakes.found:
            if self.place == Path(WHERE) and mistake.key is not None:
                for section in TABLES:
                    mistake.key = mistake.key.removeprefix(f"{section}.")
            raise mistake
        if spec is None:
            raise AssertionError("no world and no mistake")
        return spec


def load_world(path: Path | str) -> World:
    """The world of a file. Raises UserError: the file cannot be read, or is not TOML."""
    return World.from_file(path)


def _as_in_a_file(value: Any) -> Any:
    """Dictionaries and lists of TOML, of whatever kind the program has."""
    if isinstance(value, Mapping):
        return {str(key): _as_in_a_file(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_as_in_a_file(one) for one in value]
    return value
