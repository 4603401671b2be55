"""What two nodes must agree on before they talk: a hash for each shared section and key, and one over all of them.

Defaults are filled in, so that writing a default out changes nothing. Addresses do not count, because they may differ
from site to site; nor does the topology's name, because the resolved edges count. Of a task in a file only
the name counts: models that do not match are found by their shapes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from p2pfl.config.model import FederationConfig

HASH_BYTES = 32


def sections(federation: FederationConfig) -> tuple[tuple[str, bytes], ...]:
    """(name, 32-byte hash) of each shared section, always in the same order."""
    contents: dict[str, Any] = {
        "federation": {"name": federation.name, "seed": federation.seed},
        "task": federation.task.contents,
        "training": _training(federation),
        "gossip": dataclasses.asdict(federation.gossip),
        "node": [{"name": member.name, "key": member.key.hex()} for member in federation.members],
        "edges": _graph(federation),
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
        **{f"training.{key}": value for key, value in _training(federation).items()},
        **_by_key("gossip", federation.gossip),
        "node": [{"name": member.name, "key": member.key.hex()} for member in federation.members],
        "edges": _graph(federation),
    }
    return tuple((name, _hash(_canonical([name, content]), "p2pfl-key")) for name, content in contents.items())


def _training(federation: FederationConfig) -> dict[str, Any]:
    return dataclasses.asdict(federation.training) | {"method": federation.method}


def _by_key(section: str, config: Any) -> dict[str, Any]:
    return {f"{section}.{key}": value for key, value in dataclasses.asdict(config).items()}


def federation_id(federation: FederationConfig) -> bytes:
    """A 32-byte hash that differs whenever any section does."""
    fields = [field for name, digest in sections(federation) for field in (name.encode(), digest)]
    return _hash(b"".join(len(field).to_bytes(8, "little") + field for field in fields), "p2pfl-fed-id")


def _graph(federation: FederationConfig) -> Any:
    """A static graph counts as its edges alone, a schedule with the order of its rounds; then what single edges use."""
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
