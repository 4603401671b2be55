"""A world as a Python object or a file: how fast simulated nodes are, what their links are like, what goes wrong.

    from sim import World, simulate

    report = simulate(federation, world=World(speed="log-uniform:1,10", loss=0.1))

Whatever a world file can say is a keyword of the same name, with the same default and the same check:
docs/reference/worlds.md. Both are read once, at the edge, into the frozen values of `model`; contradictions are
refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from p2pfl.config.model import FederationConfig
from p2pfl.config.tables import Mistakes, exclusive, read_document, read_table, require, unknown_keys
from p2pfl.specs import Kind
from sim.attacks import with_absolute_path
from sim.worlds import model
from sim.worlds.model import (
    COMPUTE,
    LINKS,
    RUN,
    SECTIONS,
    AmendSpec,
    ChurnSpec,
    ComputeSpec,
    CrashSpec,
    JoinSpec,
    LiarSpec,
    LinkSpec,
    Names,
    PartitionSpec,
    SlowNodes,
    WorldSpec,
    needed,
)
from sim.worlds.settling import check_world

WHERE = "World"
"""The name that errors give in place of a file."""
TABLES = {"compute": COMPUTE, "links": LINKS, "run": RUN}
OTHERS = tuple(section for section in SECTIONS if section not in TABLES)

Table = Mapping[str, Any]


class World:
    """The world in which a federation is simulated; without keywords, the default world.

    `slow`, `partition`, `crash`, `join` and `amend` are lists of dictionaries, `churn` and `liars` one dictionary, each
    with the keys that the table has in a world file. Nodes are named, numbered from 0, or drawn by `count` or
    `fraction`. Raises UserError if a keyword is unknown or has an impossible value. What depends on the federation's
    nodes is checked when it is simulated.
    """

    def __init__(self, **conditions: Any) -> None:
        document: dict[str, Any] = {}
        mistakes = Mistakes(Path(WHERE))
        unknown_keys(conditions, "", [*COMPUTE, *LINKS, *RUN, *OTHERS], mistakes)
        for section, kinds in TABLES.items():
            table = {key: value for key, value in conditions.items() if key in kinds and value is not None}
            read_table(table, "", kinds, mistakes)
            document |= {section: table} if table else {}
        for section in OTHERS:
            if conditions.get(section) is not None:
                document[section] = _as_in_a_file(conditions[section])
        for mistake in mistakes.errors:
            raise mistake
        self.document = document
        self.place = Path(WHERE)

    @classmethod
    def from_file(cls, path: Path | str) -> World:
        """Read a world; it is checked when simulated. Raises UserError if the file cannot be read, or is not TOML."""
        world = cls()
        world.document, world.place = read_document(Path(path)), Path(path)
        return world

    def spec(self, names: Sequence[str]) -> WorldSpec:
        """Return the world for nodes with these names. Raises UserError for its first mistake or contradiction."""
        mistakes = Mistakes(self.place)
        world = _WorldReader(self.document, Names(names), mistakes).world()
        if world is not None:
            mistakes.errors.extend(check_world(world, len(names)))
        for mistake in mistakes.errors:
            if self.place == Path(WHERE) and mistake.key is not None:
                for section in TABLES:
                    mistake.key = mistake.key.removeprefix(f"{section}.")
            raise mistake
        if world is None:
            raise AssertionError("no world and no mistake")
        return world


def read_world(path: Path | str, federation: FederationConfig) -> WorldSpec:
    """Read the world in the file for this federation's nodes. Raises UserError for its first mistake."""
    return World.from_file(path).spec([member.name for member in federation.members])


class _WorldReader:
    """Turns one document into a WorldSpec; its mistakes go to `mistakes`."""

    def __init__(self, document: dict[str, Any], names: Names, mistakes: Mistakes) -> None:
        self.document = document
        self.names = names
        self.mistakes = mistakes

    def world(self) -> WorldSpec | None:
        """Return the world, or None if anything in it could not be understood."""
        unknown_keys(self.document, "", model.SECTIONS, self.mistakes)
        parts: dict[str, Any] = {
            "compute": self._compute(),
            "links": self._read_one("links", LinkSpec, model.LINKS),
            "slow": self._read_many("slow", SlowNodes, model.SLOW),
            "partitions": self._partitions(),
            "crashes": self._read_many("crash", CrashSpec, model.CRASH),
            "churn": self._read_one("churn", ChurnSpec, model.CHURN, all_nodes=True)
            if "churn" in self.document
            else None,
            "joins": self._read_many("join", JoinSpec, model.JOIN),
            "amendments": self._amendments(),
            "liars": self._liars() if "liars" in self.document else None,
        }
        parts |= read_table(self.document.get("run", {}), "run.", model.RUN, self.mistakes)
        return None if self.mistakes.errors else WorldSpec(path=self.mistakes.file.absolute(), **parts)

    def _compute(self) -> ComputeSpec | None:
        table = self.document.get("compute", {})
        exclusive(table, "compute.", "step_s", "round_s", self.mistakes)
        if isinstance(table, Mapping) and "trace" in table:
            instead = "use speed, drawn for each node, or [[slow]] tables with a speed for some"
            self.mistakes.add(f"is gone: {instead}", "compute.trace")
            return None
        return ComputeSpec(**read_table(table, "compute.", model.COMPUTE, self.mistakes))

    def _liars(self) -> LiarSpec | None:
        """Read the liars; an attack's file is relative to the folder of this file."""
        liars: LiarSpec | None = self._read_one("liars", LiarSpec, model.LIARS)
        return liars and replace(liars, attack=with_absolute_path(liars.attack, self.mistakes.file.absolute().parent))

    def _read_one(self, section: str, spec: Any, kinds: Mapping[str, Kind], *, all_nodes: bool = False) -> Any:
        return self._table(self.document.get(section, {}), section + ".", spec, kinds, all_nodes=all_nodes)

    def _read_many(self, section: str, spec: Any, kinds: Mapping[str, Kind]) -> tuple[Any, ...]:
        tables = self._tables(section)
        return tuple(self._table(table, f"{section}[{index}].", spec, kinds) for index, table in enumerate(tables))

    def _tables(self, section: str) -> list[dict[str, Any]]:
        tables = self.document.get(section, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            self.mistakes.add("must be a list of tables", section, None, f"[[{section}]], any number of them")
            return []
        return tables

    def _table(self, table: Any, prefix: str, spec: Any, kinds: Mapping[str, Kind], *, all_nodes: bool = False) -> Any:
        """Build one `spec`, or return None if a required key is missing or not understood."""
        if not isinstance(table, dict):
            read_table(table, prefix, kinds, self.mistakes)
            return None
        chosen = "nodes" in {field.name for field in fields(spec)}
        who = ("nodes", *model.WHO) if chosen else ()
        unknown_keys(table, prefix, (*who, *kinds), self.mistakes)
        own = {key: value for key, value in table.items() if key in kinds}
        require(table, prefix, needed(spec), kinds, self.mistakes)
        values = read_table(own, prefix, kinds, self.mistakes)
        if chosen:
            values |= self._read_selector(table, prefix, all_nodes=all_nodes)
        return None if self.mistakes.errors else spec(**values)

    def _read_selector(self, table: dict[str, Any], prefix: str, *, all_nodes: bool) -> dict[str, Any]:
        """Read `nodes`, or the `count` of nodes to draw."""
        given = [key for key in ("nodes", *model.WHO) if key in table]
        if len(given) > 1:
            exclusive(table, prefix, given[0], given[1], self.mistakes)
        if not given and not all_nodes:
            self.mistakes.add(
                "does not say which nodes", prefix + "nodes", None, f"{self.names.allowed}; or count, fraction"
            )
        if "nodes" in table:
            return {"nodes": self.names.read(table["nodes"], prefix + "nodes", self.mistakes)}
        values = read_table({key: table[key] for key in given}, prefix, model.WHO, self.mistakes)
        if "fraction" not in values:
            return values
        count = round(values["fraction"] * self.names.count)
        if count == 0 < values["fraction"]:
            text = f"is no whole node of {self.names.count}"
            self.mistakes.add(text, prefix + "fraction", values["fraction"], "0, or more; or count = 1")
        return {"count": count}

    def _partitions(self) -> tuple[PartitionSpec, ...]:
        partitions = []
        for index, table in enumerate(self._tables("partition")):
            prefix = f"partition[{index}]."
            unknown_keys(table, prefix, ("groups", *model.PARTITION), self.mistakes)
            require(table, prefix, model.PARTITION, model.PARTITION, self.mistakes)
            own = {key: value for key, value in table.items() if key in model.PARTITION}
            values = read_table(own, prefix, model.PARTITION, self.mistakes)
            groups = self._groups(table.get("groups"), prefix + "groups")
            if not self.mistakes.errors:
                partitions.append(PartitionSpec(groups=groups, **values))
        return tuple(partitions)

    def _amendments(self) -> tuple[AmendSpec, ...]:
        amendments = []
        for index, table in enumerate(self._tables("amend")):
            prefix = f"amend[{index}]."
            unknown_keys(table, prefix, ("join", "leave", *model.AMEND), self.mistakes)
            require(table, prefix, ["at_s"], model.AMEND, self.mistakes)
            own = {key: value for key, value in table.items() if key in model.AMEND}
            values = read_table(own, prefix, model.AMEND, self.mistakes)
            for key in ("join", "leave"):
                if key in table:
                    values[key] = self.names.read(table[key], prefix + key, self.mistakes)
            if not self.mistakes.errors:
                amendments.append(AmendSpec(**values))
        return tuple(amendments)

    def _groups(self, value: Any, key: str) -> tuple[tuple[int, ...], ...]:
        allowed = 'one text or list of nodes for each group, such as ["0-4", "5-9"]'
        if not isinstance(value, list) or not value:
            self.mistakes.add("is missing" if value is None else "must be a list of groups", key, None, allowed)
            return ()
        return tuple(self.names.read(group, f"{key}[{index}]", self.mistakes) for index, group in enumerate(value))


def _as_in_a_file(value: Any) -> Any:
    """Convert whatever dictionaries and lists the program has to TOML's."""
    if isinstance(value, Mapping):
        return {str(key): _as_in_a_file(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_as_in_a_file(each) for each in value]
    return value
