"""Reads a world file once, at the edge, into the frozen values of `model`, and refuses what contradicts itself.

`docs/worlds.md` teaches the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from p2pfl.config.model import FederationConfig
from p2pfl.config.tables import Kind, Mistakes, exclusive, read_document, read_table, require, unknown_keys
from p2pfl.errors import UserError
from sim.worlds import schema
from sim.worlds.check import check_world
from sim.worlds.model import (
    ChurnSpec,
    ComputeSpec,
    CrashSpec,
    JoinSpec,
    LiarSpec,
    LinkSpec,
    PartitionSpec,
    SlowNodes,
    WorldSpec,
)
from sim.worlds.schema import Names
from sim.worlds.speeds import read_trace


def load_world(path: Path | str, federation: FederationConfig) -> WorldSpec:
    """What the file says about this federation's nodes. Raises UserError: the first of its `world_mistakes`."""
    world, mistakes = _read(Path(path), federation)
    if mistakes:
        raise mistakes[0]
    if world is None:
        raise AssertionError("no world and no mistake")
    return world


def world_mistakes(path: Path | str, federation: FederationConfig) -> list[UserError]:
    """Everything that is wrong with a world file; empty if it can be loaded."""
    return _read(Path(path), federation)[1]


def _read(path: Path, federation: FederationConfig) -> tuple[WorldSpec | None, list[UserError]]:
    try:
        document = read_document(path)
    except UserError as error:
        return None, [error]
    mistakes = Mistakes(path)
    return world_from(document, [member.name for member in federation.members], mistakes), mistakes.found


def world_from(document: dict[str, Any], names: Sequence[str], mistakes: Mistakes) -> WorldSpec | None:
    """What a document says that has the tables of a world file, for nodes of these names.

    What is wrong with it goes to `mistakes`; None where it could not be understood.
    """
    world = _WorldReader(document, Names(names), mistakes).world()
    if world is None:
        return None
    mistakes.found.extend(check_world(world, len(names)))
    if world.compute.trace is not None and not mistakes.found:
        try:
            read_trace(world.compute.trace, names)
        except UserError as error:
            mistakes.found.append(error)
    return world


class _WorldReader:
    """One document on its way to a WorldSpec; what is wrong goes to `mistakes`."""

    def __init__(self, document: dict[str, Any], names: Names, mistakes: Mistakes) -> None:
        self.document = document
        self.names = names
        self.mistakes = mistakes

    def world(self) -> WorldSpec | None:
        """The world, or None if anything in it could not be understood."""
        unknown_keys(self.document, "", schema.SECTIONS, self.mistakes)
        parts: dict[str, Any] = {
            "compute": self._compute(),
            "links": self._one("links", LinkSpec, schema.LINKS),
            "slow": self._many("slow", SlowNodes, schema.SLOW),
            "partitions": self._partitions(),
            "crashes": self._many("crash", CrashSpec, schema.CRASH),
            "churn": self._one("churn", ChurnSpec, schema.CHURN, all_nodes=True) if "churn" in self.document else None,
            "joins": self._many("join", JoinSpec, schema.JOIN),
            "liars": self._one("liars", LiarSpec, schema.LIARS) if "liars" in self.document else None,
        }
        parts |= read_table(self.document.get("run", {}), "run.", schema.RUN, self.mistakes)
        return None if self.mistakes.found else WorldSpec(path=self.mistakes.file.absolute(), **parts)

    def _compute(self) -> ComputeSpec | None:
        table = self.document.get("compute", {})
        exclusive(table, "compute.", "step_s", "round_s", self.mistakes)
        exclusive(table, "compute.", "speed", "trace", self.mistakes)
        values = read_table(table, "compute.", schema.COMPUTE, self.mistakes)
        if "trace" in values:
            values["trace"] = self.mistakes.file.absolute().parent / values["trace"].expanduser()
        return ComputeSpec(**values)

    def _one(self, section: str, spec: Any, kinds: Mapping[str, Kind], *, all_nodes: bool = False) -> Any:
        return self._table(self.document.get(section, {}), section + ".", spec, kinds, all_nodes=all_nodes)

    def _many(self, section: str, spec: Any, kinds: Mapping[str, Kind]) -> tuple[Any, ...]:
        tables = self._tables(section)
        return tuple(self._table(table, f"{section}[{index}].", spec, kinds) for index, table in enumerate(tables))

    def _tables(self, section: str) -> list[dict[str, Any]]:
        tables = self.document.get(section, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            self.mistakes.add("must be a list of tables", section, None, f"[[{section}]], as often as you like")
            return []
        return tables

    def _table(self, table: Any, prefix: str, spec: Any, kinds: Mapping[str, Kind], *, all_nodes: bool = False) -> Any:
        """One `spec`, or None if a key that must be there is not, or is not understood."""
        if not isinstance(table, dict):
            read_table(table, prefix, kinds, self.mistakes)
            return None
        chosen = "nodes" in {field.name for field in fields(spec)}
        who = ("nodes", *schema.WHO) if chosen else ()
        unknown_keys(table, prefix, (*who, *kinds), self.mistakes)
        own = {key: value for key, value in table.items() if key in kinds}
        require(table, prefix, _needed(spec), kinds, self.mistakes)
        values = read_table(own, prefix, kinds, self.mistakes)
        if chosen:
            values |= self._who(table, prefix, all_nodes=all_nodes)
        return None if self.mistakes.found else spec(**values)

    def _who(self, table: dict[str, Any], prefix: str, *, all_nodes: bool) -> dict[str, Any]:
        """`nodes`, or the `count` that chance will choose."""
        given = [key for key in ("nodes", *schema.WHO) if key in table]
        if len(given) > 1:
            exclusive(table, prefix, given[0], given[1], self.mistakes)
        if not given and not all_nodes:
            self.mistakes.add(
                "says not which nodes", prefix + "nodes", None, f"{self.names.allowed}; or count, fraction"
            )
        if "nodes" in table:
            return {"nodes": self.names.read(table["nodes"], prefix + "nodes", self.mistakes)}
        values = read_table({key: table[key] for key in given}, prefix, schema.WHO, self.mistakes)
        if "fraction" not in values:
            return values
        count = round(values["fraction"] * self.names.count)
        if count == 0 < values["fraction"]:
            text = f"is no whole node of {self.names.count}"
            self.mistakes.add(text, prefix + "fraction", values["fraction"], "0, or more; or count = 1")
        return {"count": count}

    def _partitions(self) -> tuple[PartitionSpec, ...]:
        found = []
        for index, table in enumerate(self._tables("partition")):
            prefix = f"partition[{index}]."
            unknown_keys(table, prefix, ("groups", *schema.PARTITION), self.mistakes)
            require(table, prefix, schema.PARTITION, schema.PARTITION, self.mistakes)
            own = {key: value for key, value in table.items() if key in schema.PARTITION}
            values = read_table(own, prefix, schema.PARTITION, self.mistakes)
            groups = self._groups(table.get("groups"), prefix + "groups")
            if not self.mistakes.found:
                found.append(PartitionSpec(groups=groups, **values))
        return tuple(found)

    def _groups(self, value: Any, key: str) -> tuple[tuple[int, ...], ...]:
        allowed = 'one text or list of nodes for each group, such as ["0-4", "5-9"]'
        if not isinstance(value, list) or not value:
            self.mistakes.add("is missing" if value is None else "must be a list of groups", key, None, allowed)
            return ()
        return tuple(self.names.read(group, f"{key}[{index}]", self.mistakes) for index, group in enumerate(value))


def _needed(spec: Any) -> list[str]:
    """The fields that have no default."""
    return [field.name for field in fields(spec) if field.default is MISSING and field.default_factory is MISSING]
