"""The `[[node]]` tables: who belongs to the federation. Membership is this list of keys and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from p2pfl.config.model import Member
from p2pfl.config.schema import MEMBER
from p2pfl.config.tables import Mistakes, read_table, require

FEWEST = 2


def read_members(tables: Any, mistakes: Mistakes) -> tuple[Member, ...]:
    """The members in the file's order; empty if any of them is not usable."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        mistakes.add("must be a list of tables", "node", None, "[[node]] once for each node")
        return ()
    before = len(mistakes.found)
    values = [_read_one(index, table, mistakes) for index, table in enumerate(tables)]
    if len(tables) < FEWEST:
        mistakes.add("too few nodes", "node", len(tables), f"{FEWEST} or more [[node]] tables")
    for key in MEMBER:
        _refuse_repetition(key, values, mistakes)
    if len(mistakes.found) > before:
        return ()
    return tuple(
        Member(index=index, name=value["name"], key=value["key"], address=value.get("address"))
        for index, value in enumerate(values)
    )


def _read_one(index: int, table: dict[str, Any], mistakes: Mistakes) -> dict[str, Any]:
    prefix = f"node[{index}]."
    require(table, prefix, ("name", "key"), MEMBER, mistakes)
    return read_table(table, prefix, MEMBER, mistakes)


def _refuse_repetition(key: str, values: list[dict[str, Any]], mistakes: Mistakes) -> None:
    first: dict[Any, int] = {}
    for index, value in enumerate(values):
        if key not in value:
            continue
        if value[key] in first:
            other = first[value[key]]
            both = f"{_called(other, values)} and {_called(index, values)} have the same {key}"
            shown = None if isinstance(value[key], bytes) else value[key]
            mistakes.add(both, f"node[{index}].{key}", shown, "a different one for each node")
        else:
            first[value[key]] = index


def _called(index: int, values: list[dict[str, Any]]) -> str:
    name = values[index].get("name")
    return f"node[{index}] ({name})" if name else f"node[{index}]"


def default_names(count: int) -> list[str]:
    """node0, node1, ...: as in a demo."""
    return [f"node{index}" for index in range(count)]


def made_up(names: Sequence[str]) -> tuple[Member, ...]:
    """Members that exist nowhere, with keys that nobody holds."""
    keys = [blake2b(str(i).encode(), digest_size=32, person=b"p2pfl-simulated").digest() for i in range(len(names))]
    return tuple(
        Member(index=index, name=name, key=key, address=None)
        for index, (name, key) in enumerate(zip(names, keys, strict=True))
    )
