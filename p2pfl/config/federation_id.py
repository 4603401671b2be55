"""The federation id, on which two nodes must agree: a hash for each shared section and key, and one over all of them.

Defaults are filled in, so that writing out a default changes nothing. Addresses and `[network]` are excluded, because
they may differ between sites; so is the topology's name, because the resolved edges are included. For a task in a file
only the name is included: a mismatch of models is detected by their shapes. If the file has admin keys, everything that
a charter may change is excluded too (`charter`): members, graph and rounds.

A key added in a later version is included only if its value differs from the default, which is how nodes without the
key behave. So a federation, its charters and its invites remain valid when a version adds a key. A default never
changes: otherwise nodes with different versions would consider different settings equal
(`tests/config/test_federation_id.py` pins all defaults).
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
"""The keys that are included whatever their value. No key is ever added here, and none removed."""

NAMED: Mapping[str, frozenset[str]] = {
    **FOUNDING,
    "training": FOUNDING["training"] | {"schedule", "keep_optimizer", "stop"},
}
"""The keys that sessions compare whatever their value, so that both ends can name what differs. All nodes with version
9 of the protocol have them. No key is ever added here either.
"""

UNSHARED = frozenset({("gossip", "memory")})
"""Sections and keys that never count, because a node's neighbors do not notice them."""


def sections(federation: FederationConfig) -> tuple[tuple[str, bytes], ...]:
    """Return (name, 32-byte hash) for each shared section, always in the same order."""
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
    """Return (name, 32-byte hash) for each key on which both ends must agree, always in the same order.

    These are keys such as `training.rounds`, so that two nodes can name what differs. The members, the graph and a
    task's options have no fixed keys, and count as one each.
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
    """Return a 32-byte hash that differs whenever any section differs."""
    fields = [field for name, digest in sections(federation) for field in (name.encode(), digest)]
    return _hash(b"".join(len(field).to_bytes(8, "little") + field for field in fields), "p2pfl-fed-id")


def counting(section: str, config: Any, always: Mapping[str, frozenset[str]] = FOUNDING) -> dict[str, Any]:
    """Return the keys in a section that are included, with their values; those in `always` are included whatever their
    value.
    """
    usual = {key.name: key.default for key in dataclasses.fields(config)}
    found = {key: value for key, value in dataclasses.asdict(config).items() if (section, key) not in UNSHARED}
    return {key: value for key, value in found.items() if key in always[section] or value != usual[key]}


def _training(federation: FederationConfig, always: Mapping[str, frozenset[str]] = FOUNDING) -> dict[str, Any]:
    found = counting("training", federation.training, always) | {"method": federation.method}
    if federation.admin:
        del found["rounds"]
    return found


def _admin(federation: FederationConfig) -> list[str]:
    return sorted(key.hex() for key in federation.admin)


def _plug_ins(federation: FederationConfig) -> dict[str, Any]:
    """Return the hashed part of the plug-ins: names and options, but not the location of their code, as for a task in a
    file.
    """
    return {one.name: one.options for one in federation.plug_ins}


def _membership(federation: FederationConfig) -> dict[str, Any]:
    """Return the hashed part of members and graph. With admin keys both are in the charter, which changes while nodes
    run.
    """
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
    """Return the hashed part of the graph: the edges, or the rounds of a schedule in order, followed by the settings of
    single edges.
    """
    usual = federation.gossip.compressor
    own = [[*edge, spec] for edge, spec in sorted(federation.edge_compressors.items()) if spec != usual]
    weights = [[*edge, weight] for edge, weight in sorted(federation.edge_weights.items())]
    if not federation.schedule and not own and not weights:
        return federation.edges
    more = ({"compressors": own} if own else {}) | ({"weights": weights} if weights else {})
    return {"union": federation.edges, "rounds": federation.schedule} | more


def _canonical(content: Any) -> bytes:
    """Write canonical JSON; TOML dates, which JSON lacks, become ISO text."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return text.encode("ascii")


def _hash(content: bytes, person: str) -> bytes:
    return hashlib.blake2b(content, digest_size=HASH_BYTES, person=person.encode()).digest()
