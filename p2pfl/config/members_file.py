"""`members.toml`, the charter as a file beside the federation file: for people to read, for `p2pfl member` to change.

Its contents are checked as if a stranger had sent them: first key by key, for a clear error, then the signature.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from p2pfl.config.charter import (
    FEWEST,
    MOST_BYTES,
    SIGNATURE_BYTES,
    Charter,
    CharterError,
    flaws,
    realm_of,
    unpack,
)
from p2pfl.config.federation_id import HASH_BYTES
from p2pfl.config.model import MEMBER, TRAINING, Edges, FederationConfig, Kinds, Member
from p2pfl.config.tables import Mistakes, public_key, read_document, read_table, require, text, unknown_keys
from p2pfl.errors import UserError
from p2pfl.specs import Kind, whole

FILE_NAME = "members.toml"
EDGES_IN_LINE = 8


def members_file(federation: FederationConfig) -> Path:
    return federation.path.parent / FILE_NAME


def _bytes(size: int, *, empty: bool = False) -> Kind:
    """A value of `size` bytes in base64url without padding."""

    def read(value: Any) -> bytes:
        raw = _from_text(value) if isinstance(value, str) else b"?"
        if len(raw) != size and not (empty and not raw):
            raise ValueError
        return raw

    return Kind(f"{size} bytes in base64url", read)


def _edges() -> Kind:
    def read(value: Any) -> Edges:
        if not isinstance(value, list):
            raise ValueError  # noqa: TRY004 - a reader has one way to refuse
        found = tuple(tuple(pair) if isinstance(pair, list) else () for pair in value)
        if any(len(pair) != 2 or not all(type(end) is int and end >= 0 for end in pair) for pair in found):
            raise ValueError
        return found

    return Kind("a list of pairs [i, j] of members, counted from 0", read)


def _schedule() -> Kind:
    one = _edges()

    def read(value: Any) -> tuple[Edges, ...]:
        if not isinstance(value, list):
            raise ValueError  # noqa: TRY004 - a reader has one way to refuse
        return tuple(one.read(each) for each in value)

    return Kind("a list of rounds, each a list of pairs", read)


def _truth() -> Kind:
    def read(value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError  # noqa: TRY004 - a reader has one way to refuse
        return value

    return Kind("true or false", read)


HEAD: Kinds = {
    "version": whole(1, 2**53 - 1),
    "realm": _bytes(HASH_BYTES),
    "previous": _bytes(HASH_BYTES, empty=True),
    "topology": text(),
    "rounds": TRAINING["rounds"],
    "edges": _edges(),
    "schedule": _schedule(),
    "signer": public_key(),
    "signature": _bytes(SIGNATURE_BYTES),
}
ROW: Kinds = {**MEMBER, "retired": _truth()}


def read_members_file(path: Path, federation: FederationConfig, mistakes: Mistakes) -> Charter | None:
    """Read the charter in a file; None where it is not one, for the reasons in `mistakes`.

    Raises UserError: the file cannot be read at all.
    """
    document = read_document(path)
    before = len(mistakes.found)
    tables = document.pop("member", [])
    unknown_keys(document, "", (*HEAD, "member"), mistakes)
    needed = [key for key in HEAD if key not in ("rounds", "schedule", "previous")]
    require(document, "", needed, HEAD, mistakes)
    head = read_table({key: value for key, value in document.items() if key in HEAD}, "", HEAD, mistakes)
    members = _members(tables, mistakes)
    if len(mistakes.found) > before:
        return None
    charter = Charter(**{"previous": b"", "rounds": None, "schedule": ()} | head, members=members)
    for flaw in flaws(charter):
        mistakes.add(flaw.message, flaw.key, flaw.value, flaw.allowed)
    if len(mistakes.found) > before:
        return None
    return _checked(charter, federation, mistakes)


def _members(tables: Any, mistakes: Mistakes) -> tuple[Member, ...]:
    if not isinstance(tables, list) or len(tables) < FEWEST or not all(isinstance(table, dict) for table in tables):
        mistakes.add("must be a list of tables", "member", None, f"[[member]] {FEWEST} times or more")
        return ()
    found = []
    for index, table in enumerate(tables):
        prefix = f"member[{index}]."
        require(table, prefix, ("name", "key"), ROW, mistakes)
        values = read_table(table, prefix, ROW, mistakes)
        found.append({"address": None, "retired": False} | values)
    if mistakes.found:
        return ()
    return tuple(Member(index=index, **values) for index, values in enumerate(found))


def _checked(charter: Charter, federation: FederationConfig, mistakes: Mistakes) -> Charter | None:
    try:
        return unpack(charter.packed(), admin=federation.admin, realm=realm_of(federation))
    except CharterError as error:
        allowed = "what `p2pfl member` has written, for this federation and by one of its admin keys"
        mistakes.add(str(error), "signature", None, allowed)
        return None


def members_text(charter: Charter, name: str) -> str:
    """Write the file of a signed charter. Raises UserError: it is too large."""
    size = len(charter.packed())
    if size > MOST_BYTES:
        what, allowed = "too many members or edges for a charter", f"at most {MOST_BYTES} bytes"
        raise UserError(what, key="members", value=f"{size} bytes", allowed=allowed)
    head: dict[str, str | int | None] = {
        "version": charter.version,
        "realm": _to_text(charter.realm),
        "previous": _to_text(charter.previous),
        "topology": charter.topology,
        "rounds": charter.rounds,
        "signer": _to_text(charter.signer),
        "signature": _to_text(charter.signature),
    }
    lines = [_HEAD.format(name=name)]
    lines += [f"{key} = {_toml(value)}" for key, value in head.items() if value is not None]
    lines += ["edges = [", *_pairs(charter.edges), "]"]
    if charter.schedule:
        lines.append("schedule = [")
        for edges in charter.schedule:
            lines += ["  [", *(f"  {line}" for line in _pairs(edges)), "  ],"]
        lines.append("]")
    for member in charter.members:
        lines += ["", "[[member]]", f"name = {_toml(member.name)}", f"key = {_toml(_to_text(member.key))}"]
        lines += [f"address = {_toml(member.address)}"] if member.address is not None else []
        lines += ["retired = true"] if member.retired else []
    return "\n".join(lines) + "\n"


_HEAD = """\
# The members of {name} and their graph, signed: `p2pfl member` changes it, and hands it to the nodes that run.
# The signature covers everything here, so a change by hand makes the file useless. See docs/how-to/members.md.
"""


def _pairs(edges: Edges) -> Iterator[str]:
    for start in range(0, len(edges), EDGES_IN_LINE):
        yield "  " + " ".join(f"[{i}, {j}]," for i, j in edges[start : start + EDGES_IN_LINE])


def _toml(value: str | int) -> str:
    return json.dumps(value)


def _to_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def _from_text(value: str) -> bytes:
    """Read bytes. Raises ValueError: it is not the one spelling that `_to_text` has for some bytes."""
    raw = base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_", validate=True)
    if _to_text(raw) != value:
        raise ValueError(value)
    return raw
