"""The tables of the files that people write, as the reference lists them, and as JSON Schemas for editors.

`write_schemas` puts a schema of each kind of file beside a federation, also of those that other packages offer by the
entry point group `p2pfl.schemas`: a function that returns the tables. The first line of a file says where its schema
is: `#:schema .schema/federation.json`. Only editors read them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from p2pfl.config.load import HEAD_DEFAULTS
from p2pfl.config.model import (
    EDGE,
    FEDERATION,
    GOSSIP,
    MEMBER,
    NETWORK,
    NODE,
    OWN_NETWORK,
    TASK,
    TRAINING,
    Compute,
    GossipConfig,
    NodeConfig,
    TaskConfig,
    TrainingConfig,
)
from p2pfl.config.sections import PRIVACY, STATS, HideConfig, PrivacyConfig, StatsConfig
from p2pfl.config.tables import Kinds
from p2pfl.config.writing import SCHEMAS

GROUP = "p2pfl.schemas"
DRAFT = "http://json-schema.org/draft-07/schema#"
"""What the editors' checkers of TOML know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of a file: its keys, their defaults as the file would have them, and those that must be given."""

    name: str
    kinds: Kinds
    defaults: Mapping[str, Any] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    repeats: bool = False
    """True if the file may have any number of them, as `[[name]]`."""
    more: bool = False
    """True if others than this file's reader know further keys."""

    def schema(self) -> Mapping[str, Any]:
        keys = {}
        for key, kind in self.kinds.items():
            means = ". ".join(filter(None, (kind.means, f"Allowed: {kind.allowed}")))
            default = {"default": self.defaults[key]} if key in self.defaults else {}
            keys[key] = {"description": means, **kind.schema, **default}
        table = {"type": "object", "properties": keys, "required": [*self.needed], "additionalProperties": self.more}
        return {"type": "array", "items": table} if self.repeats else table


def defaults_of(*owners: type[Any]) -> dict[str, Any]:
    """Return the defaults of classes' fields, as a file would have them; a field that is None has none."""
    values = {}
    for each in (each for owner in owners for each in fields(owner)):
        value = each.default if each.default_factory is MISSING else each.default_factory()
        if value not in (None, MISSING):
            values[each.name] = (
                str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
            )
    return values


def federation_tables() -> tuple[Table, ...]:
    privacy = defaults_of(PrivacyConfig, HideConfig)
    head = {key: value for key, value in HEAD_DEFAULTS.items() if value != ""}
    return (
        Table(name="federation", kinds=FEDERATION, defaults=head, needed=("name",)),
        Table(name="task", kinds=TASK, defaults=defaults_of(TaskConfig), more=True),
        Table(name="training", kinds=TRAINING, defaults=defaults_of(TrainingConfig)),
        Table(name="gossip", kinds=GOSSIP, defaults=defaults_of(GossipConfig)),
        Table(name="privacy", kinds=PRIVACY, defaults=privacy),
        Table(name="network", kinds=NETWORK, defaults=defaults_of(NodeConfig)),
        Table(name="edge", kinds=EDGE, needed=tuple(EDGE), repeats=True),
        Table(name="node", kinds=MEMBER, needed=("name", "key"), repeats=True),
    )


def node_tables() -> tuple[Table, ...]:
    return (
        Table(name="node", kinds=NODE, defaults=defaults_of(NodeConfig, Compute)),
        Table(name="network", kinds=OWN_NETWORK),
        Table(name="data", kinds={}, more=True),
        Table(name="stats", kinds=STATS, defaults=defaults_of(StatsConfig)),
    )


def schema_of(title: str, tables: Iterable[Table]) -> str:
    """Return the JSON Schema of a kind of file, as text."""
    properties = {table.name: table.schema() for table in tables}
    file = {"$schema": DRAFT, "title": title, "type": "object", "properties": properties, "additionalProperties": False}
    return json.dumps(file, indent=1, ensure_ascii=False) + "\n"


def write_schemas(folder: Path) -> None:
    """Write the schemas beside a federation; those of another version are replaced."""
    kinds = {"federation": federation_tables, "node": node_tables}
    kinds |= {entry.name: entry.load() for entry in entry_points(group=GROUP)}
    (folder / SCHEMAS).mkdir(exist_ok=True)
    for name, tables in kinds.items():
        (folder / SCHEMAS / f"{name}.json").write_text(schema_of(name, tables()), encoding="utf-8")
