"""The federation id on which two nodes must agree: a hash of each shared section and key, and one over all of them.

Defaults are filled in, so that writing a default out changes nothing. Addresses and `[network]` do not count, because
they may differ from site to site; nor does the topology's name, because the resolved edges count. Of a task in a file
only the name counts: models that do not match show by their shapes. Where the file names admin keys, what a charter may
change does not count either (`charter`): members, graph and rounds.

A key that a later version adds counts only where its value is not the default, by which nodes without it act. So a
federation, its charters and its invites remain valid when a version has one more key. A default is never changed in
place: nodes of two versions would treat two files as the same (`tests/config/test_federation_id.py` pins them all).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from p2pfl.config.model import FederationConfig

HASH_BYTES = 32

FOUNDING: Mapping[str, frozenset[str]] = {
    "training": frozenset(
        {
            "rounds",
            "time_s",
            "local_steps",
            "local_epochs",
            "batch_size",
            "optimizer",
            "learning_rate",
            "momentum",
            "weight_decay",
            "method",
            "speed_correction",
            "closing_rounds",
            "when_through",
            "evaluate_every",
        }
    ),
    "gossip": frozenset(
        {
            "compressor",
            "share",
            "rule",
            "staleness",
            "gamma",
            "start_wait_s",
            "linger_s",
            "max_wait_s",
            "exchanges_per_s",
            "audit_every",
            "vitals",
        }
    ),
    "privacy": frozenset({"unit", "epsilon", "noise", "delta", "clip", "rounds", "accountant", "test_set"}),
}
"""The keys that count whatever their value. No key is ever added here, and none removed."""

NAMED: Mapping[str, frozenset[str]] = {
    **FOUNDING,
    "training": FOUNDING["training"] | {"schedule", "keep_optimizer", "stop"},
}
"""The keys that sessions compare whatever their value, so that both ends can name what differs. All nodes that speak
version 9 of the protocol have them; likewise, none is ever added.
"""


def sections(federation: FederationConfig) -> tuple[tuple[str, bytes], ...]:
    """(name, 32-byte hash) of each shared section, always in the same order."""
    head: dict[str, Any] = {"name": federation.name, "seed": federation.seed}
    if federation.admin:
        head["admin"] = _admin(federation)
    contents: dict[str, Any] = {
        "federation": head,
        "task": federation.task.contents,
        "training": _training(federation),
        "gossip": counting("gossip", federation.gossip),
        **_membership(federation),
        **({} if federation.privacy is None else {"privacy": counting("privacy", federation.privacy)}),
        **({"features": _plug_ins(federation)} if federation.plug_ins else {}),
    }
    return tuple((name, _hash(_canonical(content), f"p2pfl-{name}")) for name, content in contents.items())


def keys(federation: FederationConfig) -> tuple[tuple[str, bytes], ...]:
    """(name, 32-byte hash) of each key that both ends must agree on, always in the same order.

    `training.rounds` and its like, so that two nodes can name what differs; the members, the graph and the options of
    a task, which have no fixed keys, count as one each.
    """
    contents: dict[str, Any] = {
        "federation.name": federation.name,
        "federation.seed": federation.seed,
        "task.name": federation.task.name,
        "task.options": federation.task.options,
        **_by_key("training", _training(federation, NAMED)),
        **_by_key("gossip", counting("gossip", federation.gossip)),
        **({"federation.admin": _admin(federation)} if federation.admin else {}),
        **_membership(federation),
        **({} if federation.privacy is None else _by_key("privacy", counting("privacy", federation.privacy))),
        **_by_key("features", _plug_ins(federation)),
    }
    return tuple((name, _hash(_canonical([name, content]), "p2pfl-key")) for name, content in contents.items())


def federation_id(federation: FederationConfig) -> bytes:
    """A 32-byte hash that differs whenever any section does."""
    fields = [field for name, digest in sections(federation) for field in (name.encode(), digest)]
    return _hash(b"".join(len(field).to_bytes(8, "little") + field for field in fields), "p2pfl-fed-id")


def counting(section: str, config: Any, always: Mapping[str, frozenset[str]] = FOUNDING) -> dict[str, Any]:
    """The keys of a section that count, with their values; those in `always` count whatever their value."""
    usual = {key.name: key.default for key in dataclasses.fields(config)}
    found = dataclasses.asdict(config)
    return {key: value for key, value in found.items() if key in always[section] or value != usual[key]}


def _training(federation: FederationConfig, always: Mapping[str, frozenset[str]] = FOUNDING) -> dict[str, Any]:
    found = counting("training", federation.training, always) | {"method": federation.method}
    if federation.admin:
        del found["rounds"]
    return found


def _admin(federation: FederationConfig) -> list[str]:
    return sorted(key.hex() for key in federation.admin)


def _plug_ins(federation: FederationConfig) -> dict[str, Any]:
    """The plug-ins as they are hashed: names and options count, the place of their code does not, as for a task in a
    file.
    """
    return {one.name: one.options for one in federation.plug_ins}


def _membership(federation: FederationConfig) -> dict[str, Any]:
    """The hashed part of members and graph: with admin keys the charter has both, and changes while nodes run."""
    if federation.admin:
        usual = federation.gossip.compressor
        return {"edges": sorted(table for table in federation.edge_tables if table[2] != usual)}
    return {
        "node": [{"name": member.name, "key": member.key.hex()} for member in federation.members],
        "edges": _graph(federation),
    }


def _by_key(section: str, content: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{section}.{key}": value for key, value in content.items()}


def _graph(federation: FederationConfig) -> Any:
    """The hashed part of the graph: the edges of a static one, the rounds of a schedule in order; then what single
    edges use.
    """
    usual = federation.gossip.compressor
    own = [[*edge, spec] for edge, spec in sorted(federation.edge_compressors.items()) if spec != usual]
    if not federation.schedule and not own:
        return federation.edges
    return {"union": federation.edges, "rounds": federation.schedule} | ({"compressors": own} if own else {})


def _canonical(content: Any) -> bytes:
    """Write TOML dates, which JSON lacks, as ISO text."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return text.encode("ascii")


def _hash(content: bytes, person: str) -> bytes:
    return hashlib.blake2b(content, digest_size=HASH_BYTES, person=person.encode()).digest()
