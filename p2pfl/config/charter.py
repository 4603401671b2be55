"""The values that nodes must agree on: the federation id, and the charter, which may change while nodes run.

The id is a hash for each shared section and key, and one over all of them. Defaults are filled in, so that writing out
a default changes nothing. Addresses and `[network]` are excluded, because they may differ between sites; so is the
topology's name, because the resolved edges are included. For a task in a file only the name is included: a mismatch of
models is detected by their shapes. If the file has admin keys, everything that a charter may change is excluded too:
members, graph and rounds. A key added in a later version is included only if its value differs from the default, which
is how nodes without the key behave. So a federation, its charters and its invites remain valid when a version adds a
key. A default never changes: otherwise nodes with different versions would consider different settings equal
(`tests/config/test_federation_id.py` pins all defaults).

The charter is the members of a federation, and its graph, as one signed document. It is signed with one of the `admin`
keys of the federation file, over canonical bytes. Charters are ordered by (version, digest), so that any two nodes
agree on which one is newer, even if one version was signed twice. A member's index is assigned once: a removed member
keeps its row. `members` defines the file format, `writing` how a charter follows from another.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from p2pfl.config.model import MEMBER, Edges, Edition, FederationConfig, Member
from p2pfl.config.tables import ALWAYS, CHANGED, NAMED, to_text
from p2pfl.errors import UserError
from p2pfl.foreign import UNREADABLE
from p2pfl.limits import MOST_CHARTER_BYTES, MOST_MEMBERS

HASH_BYTES = 32


def sections(federation: FederationConfig) -> tuple[tuple[str, bytes], ...]:
    """Return (name, 32-byte hash) for each shared section, always in the same order."""
    head: dict[str, Any] = {"name": federation.name, "seed": federation.seed}
    if federation.admin:
        head["admin"] = sorted(key.hex() for key in federation.admin)
    contents: dict[str, Any] = {
        "federation": head,
        "task": {"name": federation.task.name, "options": federation.task.options},
        "training": _training(federation),
        "gossip": counting(federation.gossip),
        **_membership(federation),
        **({"privacy": privacy} if (privacy := _privacy(federation)) else {}),
    }
    return tuple((name, _hash(_canonical(content), f"p2pfl-{name}")) for name, content in contents.items())


def keys(federation: FederationConfig) -> tuple[tuple[str, bytes], ...]:
    """Return (name, 32-byte hash) for each key on which both ends must agree, always in the same order, so that they
    can name what differs. The members, the graph and a task's options have no fixed keys, and count as one each.
    """
    contents: dict[str, Any] = {
        "federation.name": federation.name,
        "federation.seed": federation.seed,
        "task.name": federation.task.name,
        "task.options": federation.task.options,
        **_by_key("training", _training(federation, named=True)),
        **_by_key("gossip", counting(federation.gossip)),
        **({"federation.admin": sorted(key.hex() for key in federation.admin)} if federation.admin else {}),
        **_membership(federation),
        **_by_key("privacy", _privacy(federation)),
    }
    return tuple((name, _hash(_canonical([name, content]), "p2pfl-key")) for name, content in contents.items())


def federation_id(federation: FederationConfig) -> bytes:
    """Return a 32-byte hash that differs whenever any section differs."""
    fields = [field for name, digest in sections(federation) for field in (name.encode(), digest)]
    return _hash(b"".join(len(field).to_bytes(8, "little") + field for field in fields), "p2pfl-fed-id")


def counting(config: Any, *, named: bool = False) -> dict[str, Any]:
    """Return the keys of a section that are included, with their values: those of the first version always, those that
    later ones added only if their value differs from the default. `named` includes those, too, that all nodes with
    version 9 of the protocol have, so that both ends can name what differs. No key moves between these.
    """
    always = (ALWAYS, NAMED) if named else (ALWAYS,)
    values = {key: getattr(config, key.name) for key in dataclasses.fields(config)}
    return {
        key.name: value
        for key, value in values.items()
        if key.metadata.get("counts", CHANGED) in always or value != key.default
    }


def _training(federation: FederationConfig, *, named: bool = False) -> dict[str, Any]:
    values = counting(federation.training, named=named) | {"method": federation.method}
    if federation.admin:
        del values["rounds"]
    return values


def _privacy(federation: FederationConfig) -> dict[str, Any]:
    table = federation.privacy or federation.hides
    return {} if table is None else counting(table)


def _membership(federation: FederationConfig) -> dict[str, Any]:
    """Return the hashed part of members and graph. With admin keys both are in the charter, which may change."""
    if federation.admin:
        return {"edges": []}  # members and graph are in the charter; earlier versions had tables of single edges here
    return {
        "node": [{"name": member.name, "key": member.key.hex()} for member in federation.members],
        "edges": _graph(federation),
    }


def _by_key(section: str, content: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{section}.{key}": value for key, value in content.items()}


def _graph(federation: FederationConfig) -> Any:
    """Return the hashed part of the graph: its edges, or the rounds of a schedule, and settings of single edges."""
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


VERSIONS = 2**53
"""An exclusive upper bound on versions."""
FEWEST = 2
FORM = 1
KEY_BYTES, SIGNATURE_BYTES = 32, 64
SIGNED = b"p2pfl-charter-1\n"
"""The prefix of the signed digest, so that no signature made for another purpose is valid for a charter."""

_Key = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
_Index = Annotated[int, Meta(ge=0, lt=MOST_MEMBERS)]
_Edges = tuple[tuple[_Index, _Index], ...]
_HashOrEmpty = Annotated[bytes, Meta(max_length=HASH_BYTES)]


class _Row(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    name: str
    key: _Key
    address: str | None
    retired: bool


class _Statement(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """The order of the fields is the format."""

    form: int
    realm: Annotated[bytes, Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]
    version: Annotated[int, Meta(ge=1, lt=VERSIONS)]
    previous: _HashOrEmpty
    topology: Annotated[str, Meta(min_length=1, max_length=1000)]
    rounds: Annotated[int, Meta(ge=1, lt=2**53)] | None
    members: Annotated[tuple[_Row, ...], Meta(max_length=MOST_MEMBERS)]
    edges: _Edges
    schedule: tuple[_Edges, ...]


_SAME = tuple(name for name in _Statement.__struct_fields__ if name not in ("form", "members"))
"""The fields that a charter and its statement have in common."""
_decode_statement = msgspec.msgpack.Decoder(_Statement).decode


@dataclass(frozen=True, kw_only=True)
class Charter:
    """One version of the member list. `members[i].index == i`; `edges` and `schedule` are as in `FederationConfig`."""

    realm: bytes
    """The federation to which it belongs: the 32 bytes from `realm_of`."""
    version: int
    previous: bytes
    """The digest of the charter from which it was made; empty for the first one."""
    topology: str
    """The spec from which the signer resolved the edges, stored for the next change."""
    rounds: int | None
    """`training.rounds`; None if time limits training."""
    members: tuple[Member, ...]
    edges: Edges
    schedule: tuple[Edges, ...] = ()
    signer: bytes = field(default=b"", repr=False)
    """The signer's public key, 32 bytes."""
    signature: bytes = field(default=b"", repr=False)
    """The signature, 64 bytes."""

    @cached_property
    def statement(self) -> bytes:
        """Return the signed statement: canonical bytes for everything except the signature."""
        rows = tuple(_Row(member.name, member.key, member.address, member.retired) for member in self.members)
        return msgspec.msgpack.encode(
            _Statement(form=FORM, members=rows, **{name: getattr(self, name) for name in _SAME})
        )

    @cached_property
    def digest(self) -> bytes:
        return _digest(self.statement)

    @property
    def edition(self) -> Edition:
        return Edition(self.version, self.digest)

    @property
    def present(self) -> tuple[Member, ...]:
        """Return the members that were not removed, by index."""
        return tuple(member for member in self.members if not member.retired)

    def packed(self) -> bytes:
        """Return the charter in the form in which it is sent and stored."""
        return self.signer + self.signature + self.statement


class CharterError(ValueError):
    """Raised for a charter that no honest signer would make, or that is not for this federation."""


def realm_of(federation: FederationConfig) -> bytes:
    """The hash that binds a charter to its federation. Other keys in the file may change without a new signature."""
    return realm_named(federation.name, federation.seed)


def realm_named(name: str, seed: int) -> bytes:
    """Return the realm of a federation with that name and seed, 32 bytes."""
    named = msgspec.msgpack.encode((name, seed))
    return hashlib.blake2b(named, digest_size=HASH_BYTES, person=b"p2pfl-realm").digest()


def signed(charter: Charter, signer: bytes, sign: Callable[[bytes], bytes]) -> Charter:
    """Sign a charter. `sign` makes the Ed25519 signature (64 bytes) with the private key of `signer`."""
    return replace(charter, signer=signer, signature=sign(SIGNED + charter.digest))


def edition_of(raw: bytes) -> Edition:
    """Read which edition this charter claims to be; nothing else is checked, so that an old one costs little. Raises
    CharterError: it is not a charter.
    """
    *_, statement = _split(raw)
    try:
        return Edition(_decode_statement(statement).version, _digest(statement))
    except UNREADABLE as error:
        raise CharterError(f"not a charter: {error}") from None


def require_signed(raw: bytes, admin: Sequence[bytes]) -> None:
    """Require an admin's signature; this is cheap, as nothing is parsed. Raises CharterError: there is none."""
    signer, signature, statement = _split(raw)
    check_signature(signer, signature, _digest(statement), admin)


def _split(raw: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the signer's key, the signature and the statement."""
    head = KEY_BYTES + SIGNATURE_BYTES
    if not head < len(raw) <= MOST_CHARTER_BYTES:
        raise CharterError(f"a charter of {len(raw)} bytes: at most {MOST_CHARTER_BYTES}")
    return raw[:KEY_BYTES], raw[KEY_BYTES:head], raw[head:]


def unpack(raw: bytes, *, admin: Sequence[bytes], realm: bytes) -> Charter:
    """Decode and check the charter in `raw`; only whether it is new remains to be checked. Raises CharterError: it is
    too large, truncated, forged, for another federation, or contradicts itself.
    """
    signer, signature, statement = _split(raw)
    check_signature(signer, signature, _digest(statement), admin)
    try:
        decoded = _decode_statement(statement)
    except UNREADABLE as error:
        raise CharterError(f"signed, but not a charter: {error}") from None
    members = tuple(
        Member(index=index, name=row.name, key=row.key, address=row.address, retired=row.retired)
        for index, row in enumerate(decoded.members)
    )
    same: dict[str, Any] = {name: getattr(decoded, name) for name in _SAME}
    charter = Charter(members=members, signer=signer, signature=signature, **same)
    if decoded.form != FORM or charter.statement != statement:
        raise CharterError("signed, but not in the canonical form")
    if charter.realm != realm:
        raise CharterError("it is for another federation")
    for flaw in flaws(charter):
        raise CharterError(f"{flaw.key}: {flaw.message}")
    return charter


def check_signature(signer: bytes, signature: bytes, digest: bytes, admin: Sequence[bytes]) -> None:
    """Check a signature. Raises CharterError: no admin has signed this digest."""
    from nacl.exceptions import CryptoError  # noqa: PLC0415 - for federations with an admin only
    from nacl.signing import VerifyKey  # noqa: PLC0415 - as above

    if signer not in admin:
        raise CharterError("signed by a key that is not one of federation.admin")
    try:
        VerifyKey(signer).verify(SIGNED + digest, signature)
    except (CryptoError, ValueError):
        raise CharterError("the signature does not fit: it was changed after it was signed") from None


def flaws(charter: Charter) -> Iterator[UserError]:
    """Yield the contradictions in a charter, signed or not, in the order of the file."""
    if len(charter.previous) not in (0, HASH_BYTES):
        yield UserError("not a digest", key="previous")
    if not charter.topology.isprintable():
        yield UserError("not printable", key="topology")
    if not FEWEST <= len(charter.present) <= len(charter.members) <= MOST_MEMBERS:
        allowed = f"{FEWEST} or more that are not retired, {MOST_MEMBERS} in all"
        yield UserError("too few or too many members", key="member", value=len(charter.present), allowed=allowed)
    yield from _flaws_of_rows(charter.members)
    retired = {member.index for member in charter.members if member.retired}
    yield from _flaws_of_edges("edges", charter.edges, len(charter.members), retired)
    union = set(charter.edges)
    for number, edges in enumerate(charter.schedule):
        yield from _flaws_of_edges(f"schedule[{number}]", edges, len(charter.members), retired)
        if not union.issuperset(edges):
            yield UserError("an edge that is not among the edges", key=f"schedule[{number}]")
    if charter.schedule and union != {edge for edges in charter.schedule for edge in edges}:
        yield UserError("an edge that no round of the schedule uses", key="edges")


def _flaws_of_rows(members: Sequence[Member]) -> Iterator[UserError]:
    names: dict[str, int] = {}
    keys: dict[bytes, int] = {}
    for index, member in enumerate(members):
        for word, value in (("name", member.name), ("address", member.address), ("key", to_text(member.key))):
            kind = MEMBER[word]
            try:
                value is None or kind.read(value)
            except ValueError:
                yield UserError("impossible value", key=f"member[{index}].{word}", value=value, allowed=kind.allowed)
        other = keys.setdefault(member.key, index)
        if other != index:
            both = f"member[{other}] ({members[other].name}) and member[{index}] ({member.name}) have the same key"
            yield UserError(
                both, key=f"member[{index}].key", allowed="a new key for each member, also for one that comes back"
            )
        other = index if member.retired else names.setdefault(member.name, index)
        if other != index:
            taken = f"member[{other}] has that name"
            yield UserError(
                taken,
                key=f"member[{index}].name",
                value=member.name,
                allowed="a different one for each that is not retired",
            )


def _flaws_of_edges(key: str, edges: Edges, members: int, retired: set[int]) -> Iterator[UserError]:
    for i, j in edges:
        if not 0 <= i < j < members or i in retired or j in retired:
            yield UserError(
                "not an edge between two members",
                key=key,
                value=[i, j],
                allowed="[i, j] with i < j, neither of them retired",
            )
    if any(before >= after for before, after in pairwise(edges)):
        yield UserError("not sorted, or an edge twice", key=key)


def extends(new: Sequence[Member], old: Sequence[Member]) -> bool:
    """Return True if every index means the same member in both, and no removed member has returned under it."""
    return len(new) >= len(old) and all(
        (after.name, after.key) == (before.name, before.key) and after.retired >= before.retired
        for after, before in zip(new, old, strict=False)
    )


def checked(raw: bytes, federation: FederationConfig) -> Charter:
    """Return the charter in `raw`, if it can belong to this federation. Raises CharterError: it cannot."""
    charter = unpack(raw, admin=federation.admin, realm=realm_of(federation))
    if wrong := contradiction(federation, charter):
        raise CharterError(wrong)
    return charter


def contradiction(federation: FederationConfig, charter: Charter) -> str | None:
    """Return why a validly signed charter cannot follow what is known here, or None if it can.

    An index means the same member for ever: this holds for the `[[node]]` tables and for the charter from which this
    one was made. It does not hold for a known charter from which it was not made: if two were signed with the same
    version, the one that takes precedence may have assigned an index to somebody else.
    """
    for index, key in enumerate(federation.founders):
        if index >= len(charter.members) or charter.members[index].key != key:
            return f"member[{index}] is not the [[node]] at that place in the federation file"
    before = federation.edition
    follows = before is not None and (charter.version, charter.previous) == (before.version + 1, before.digest)
    if follows and not extends(charter.members, federation.members):
        return "it gives an index to another member, or takes back one that was removed"
    return None


def amended(federation: FederationConfig, charter: Charter) -> FederationConfig:
    """Return the federation with the members, graph and rounds of a checked charter."""
    training = federation.training
    rounds = training.rounds if charter.rounds is None or training.rounds is None else charter.rounds
    return replace(
        federation,
        members=charter.members,
        edges=charter.edges,
        schedule=charter.schedule,
        topology=charter.topology,
        training=replace(training, rounds=rounds),
        edition=charter.edition,
        charter=charter.packed(),
    )


def compacted(federation: FederationConfig) -> FederationConfig:
    """Return the federation without removed members, the others renumbered: for figures, and for new runs."""
    if len(federation.present) == len(federation.members):
        return federation
    index = {member.index: place for place, member in enumerate(federation.present)}

    def counted(edges: Edges) -> Edges:
        return tuple((index[i], index[j]) for i, j in edges)

    return replace(
        federation,
        members=tuple(replace(member, index=index[member.index]) for member in federation.present),
        edges=counted(federation.edges),
        schedule=tuple(counted(edges) for edges in federation.schedule),
    )


def _digest(statement: bytes) -> bytes:
    return hashlib.blake2b(statement, digest_size=HASH_BYTES, person=b"p2pfl-charter").digest()
