"""`members.toml`, and the two lines that people pass on: an invite to a new machine, and its request.

`members.toml` is the charter in a file next to the federation file, which people read and `p2pfl member` changes. Its
contents are checked as if a stranger had sent them: first key by key, for a clear error, then the signature.

The only secret in an invite is a token, valid for one request and for a few days. Neither line contains code or signing
keys. The request is signed with the key that the new member has created, so that nobody can request a place for
somebody else's key. The inviting machine's record and clock decide whether an invite is still valid, because the clock
of a board may be wrong.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from p2pfl.config import charter as charters
from p2pfl.config import tables
from p2pfl.config.charter import FEWEST, HASH_BYTES, Charter, CharterError, federation_id, flaws, realm_of, unpack
from p2pfl.config.model import MEMBER, TRAINING, Edges, FederationConfig, Member
from p2pfl.config.tables import Kinds, Mistakes, from_text, read_document, read_row, read_table, require, to_text
from p2pfl.errors import UserError
from p2pfl.foreign import UNREADABLE, read_file
from p2pfl.limits import MOST_CHARTER_BYTES
from p2pfl.specs import Kind, whole

FILE_NAME = "members.toml"
EDGES_IN_LINE = 8


def members_file(federation: FederationConfig) -> Path:
    return federation.path.parent / FILE_NAME


def _bytes(size: int, *, empty: bool = False) -> Kind:
    """A kind of value: `size` bytes in base64url without padding."""

    def read(value: Any) -> bytes:
        raw = from_text(value) if isinstance(value, str) else b"?"
        if len(raw) != size and not (empty and not raw):
            raise ValueError
        return raw

    return Kind(f"{size} bytes in base64url", read)


def _edges(value: Any) -> Edges:
    edges = tuple(tuple(pair) if isinstance(pair, list) else () for pair in _list(value))
    if any(len(pair) != 2 or not all(type(end) is int and end >= 0 for end in pair) for pair in edges):
        raise ValueError
    return edges


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError  # noqa: TRY004 - a reader has one way to refuse
    return value


HEAD: Kinds = {
    "version": whole(1, 2**53 - 1),
    "realm": _bytes(HASH_BYTES),
    "previous": _bytes(HASH_BYTES, empty=True),
    "topology": tables.text(),
    "rounds": TRAINING["rounds"],
    "edges": Kind("a list of pairs [i, j] of members, counted from 0", _edges),
    "schedule": Kind("a list of rounds, each a list of pairs", lambda value: tuple(map(_edges, _list(value)))),
    "signer": tables.public_key(),
    "signature": _bytes(charters.SIGNATURE_BYTES),
}
ROW: Kinds = {**MEMBER, "retired": tables.flag()}


def read_members_file(path: Path, federation: FederationConfig, mistakes: Mistakes) -> Charter | None:
    """Read the charter in a file; None if it is none, with the reasons in `mistakes`. Raises UserError: unreadable."""
    document = read_document(path)
    before = len(mistakes.errors)
    rows = document.pop("member", [])
    tables.unknown_keys(document, "", (*HEAD, "member"), mistakes)
    needed = [key for key in HEAD if key not in ("rounds", "schedule", "previous")]
    require(document, "", needed, HEAD, mistakes)
    head = read_table({key: value for key, value in document.items() if key in HEAD}, "", HEAD, mistakes)
    members = members_in(rows, mistakes)
    if len(mistakes.errors) > before:
        return None
    charter = Charter(**{"previous": b"", "rounds": None, "schedule": ()} | head, members=members)
    for flaw in flaws(charter):
        flaw.file = str(path)
        mistakes.errors.append(flaw)
    if len(mistakes.errors) > before:
        return None
    try:
        return unpack(charter.packed(), admin=federation.admin, realm=realm_of(federation))
    except CharterError as error:
        allowed = "what `p2pfl member` has written, for this federation and by one of its admin keys"
        mistakes.add(str(error), "signature", None, allowed)
        return None


def members_in(rows: Any, mistakes: Mistakes) -> tuple[Member, ...]:
    if not isinstance(rows, list) or len(rows) < FEWEST or not all(isinstance(table, dict) for table in rows):
        mistakes.add("must be a list of tables", "member", None, f"[[member]] {FEWEST} times or more")
        return ()
    checked = []
    for index, table in enumerate(rows):
        values = read_row(table, f"member[{index}].", ROW, mistakes)
        checked.append({"address": None, "retired": False} | values)
    if mistakes.errors:
        return ()
    return tuple(Member(index=index, **values) for index, values in enumerate(checked))


def members_text(charter: Charter, name: str) -> str:
    """Return the text of a signed charter's file. Raises UserError: it is too large."""
    size = len(charter.packed())
    if size > MOST_CHARTER_BYTES:
        what, allowed = "too many members or edges for a charter", f"at most {MOST_CHARTER_BYTES} bytes"
        raise UserError(what, key="members", value=f"{size} bytes", allowed=allowed)
    lines = [_HEAD.format(name=name)]
    head = ("version", "realm", "previous", "topology", "rounds", "signer", "signature")
    values = {key: to_text(value) if isinstance(value := getattr(charter, key), bytes) else value for key in head}
    lines += [f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None]
    lines += ["edges = [", *_pairs(charter.edges), "]"]
    if charter.schedule:
        lines.append("schedule = [")
        for edges in charter.schedule:
            lines += ["  [", *(f"  {line}" for line in _pairs(edges)), "  ],"]
        lines.append("]")
    for member in charter.members:
        lines += ["", "[[member]]", f"name = {json.dumps(member.name)}", f"key = {json.dumps(to_text(member.key))}"]
        lines += [f"address = {json.dumps(member.address)}"] if member.address is not None else []
        lines += ["retired = true"] if member.retired else []
    return "\n".join(lines) + "\n"


_HEAD = """\
# The members of {name} and their graph, signed: `p2pfl member` changes it, and hands it to the nodes that run.
# The signature covers everything here, so a change by hand makes the file useless. See docs/how-to/members.md.
"""


def _pairs(edges: Edges) -> Iterator[str]:
    for start in range(0, len(edges), EDGES_IN_LINE):
        yield "  " + " ".join(f"[{i}, {j}]," for i, j in edges[start : start + EDGES_IN_LINE])


INVITE, REQUEST = "p2pfl:", "p2pfl-request:"
MOST_CHARACTERS = 2900  # a QR code has room for 2953
MOST_CONTACTS = 3
TOKEN_BYTES = 16
CHECK_BYTES = 6
MOST_SECONDS = 2**32 - 1
SIGNED = b"p2pfl-request-1\n"

_Key = Annotated[bytes, Meta(min_length=32, max_length=32)]
_Hash = Annotated[bytes, Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]
_Token = Annotated[bytes, Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]


class Contact(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """A member that a new member may ask for the charter."""

    key: _Key
    address: str


class Meeting(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Where the inviter waits for some minutes, by a public key of its own. At a `relay` (a URL, or empty) the new
    machine shows the `ticket`.
    """

    key: _Key
    addresses: tuple[str, ...]
    relay: str = ""
    ticket: bytes = b""


class Invite(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """An invite. `federation` is its id, `code` the hash of the user's own code, `until` in seconds since 1970."""

    federation: _Hash
    code: _Hash
    federation_name: str
    name: str
    token: _Token
    admin: Annotated[tuple[_Key, ...], Meta(min_length=1)]
    contacts: tuple[Contact, ...]
    until: Annotated[int, Meta(ge=0, le=MOST_SECONDS)]
    meeting: Meeting | None = None

    def line(self) -> str:
        fields = msgspec.structs.astuple(self)  # without a meeting, earlier versions read the line, too
        return _line(INVITE, msgspec.msgpack.encode(fields if self.meeting else fields[:-1]))


class JoinRequest(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    federation: _Hash
    name: str
    key: _Key
    address: str | None
    token: _Token


Form = TypeVar("Form", Invite, JoinRequest)


def read_invite(text: str) -> Invite:
    """Read an invite. Raises UserError: it is not an invite, or was truncated."""
    allowed = "the line that `p2pfl invite` prints, from its p2pfl: to its end"
    invite = _convert(_raw(text, INVITE, "LINE", allowed), Invite, "LINE", allowed)
    require_valid("name", invite.name, "LINE")
    require_valid("name", invite.federation_name, "LINE")
    met = () if invite.meeting is None else (*invite.meeting.addresses, invite.meeting.relay)
    for address in (*(contact.address for contact in invite.contacts), *filter(None, met)):
        require_valid("address", address, "LINE")
    return invite


def require_current(invite: Invite, now: float) -> None:
    """Require that the invite has not expired. `now` is this machine's clock. Raises UserError: it has expired."""
    if now > invite.until:
        text = f"the invite ended at {in_words(invite.until)}, and by this machine's clock it is {in_words(now)}"
        raise UserError(
            text, key="LINE", value=invite.name, allowed="a new invite, or the right time, if that is wrong"
        )


def in_words(when_s: float) -> str:
    """Format a time in seconds since 1970, in UTC, because the two ends may be in different time zones."""
    return f"{datetime.fromtimestamp(when_s, UTC):%Y-%m-%d %H:%M} UTC"


def request_line(request: JoinRequest, sign: Callable[[bytes], bytes]) -> str:
    """Write and sign a request; `sign` makes the signature (64 bytes) with the private key for `request.key`."""
    packed = msgspec.msgpack.encode(request)
    return _line(REQUEST, sign(SIGNED + packed) + packed)


def read_request(text: str) -> JoinRequest:
    """Read a request. Raises UserError: it is not a request, was truncated or changed, or has an invalid address."""
    from nacl.exceptions import CryptoError  # noqa: PLC0415 - for who adds a member only
    from nacl.signing import VerifyKey  # noqa: PLC0415 - as above

    allowed = "the line that `p2pfl join` prints, from its p2pfl-request: to its end"
    raw = _raw(text, REQUEST, "REQUEST", allowed)
    signature, packed = raw[:64], raw[64:]
    request = _convert(packed, JoinRequest, "REQUEST", allowed)
    try:
        VerifyKey(request.key).verify(SIGNED + packed, signature)
    except (CryptoError, ValueError):
        raise UserError("is not signed by the key that it names", key="REQUEST", allowed=allowed) from None
    require_valid("name", request.name, "REQUEST")
    if request.address is not None:
        require_valid("address", request.address, "REQUEST")
    return request


def invite_of(
    federation: FederationConfig, name: str, token: bytes, *, until: int = MOST_SECONDS, replacing: bool = False
) -> Invite:
    """Make an invite with the addresses of a few members. Raises UserError: the name is invalid or taken."""
    require_valid("name", name, "NAME")
    taken = any(member.name == name for member in federation.present)
    if replacing and not taken:
        allowed = ", ".join(member.name for member in federation.present)
        raise UserError("no such member to replace", file=federation.path, key="NAME", value=name, allowed=allowed)
    if taken and not replacing:
        allowed = "another name; --replace for a new machine that replaces the current one"
        raise UserError("the name is taken", key="NAME", value=name, allowed=allowed)
    others = [member for member in federation.present if member.name != name]
    contacts = [Contact(member.key, member.address) for member in others if member.address is not None]
    return Invite(
        federation=federation_id(federation),
        code=code_digest(federation),
        federation_name=federation.name,
        name=name,
        token=token,
        admin=federation.admin,
        contacts=tuple(contacts[:MOST_CONTACTS]),
        until=until,
    )


def code_files(federation: FederationConfig) -> list[Path]:
    """Return the files with a task, rule or method given as `file.py:object`, but not those that they import."""
    specs = [federation.task.name, federation.gossip.rule, federation.method]
    names = {spec.partition(".py:")[0] + ".py" for spec in specs if ".py:" in spec}
    return [federation.path.parent / name for name in sorted(names)]


def code_digest(federation: FederationConfig) -> bytes:
    """Hash these files into 32 bytes. Raises UserError: one of them cannot be read."""
    hasher = hashlib.blake2b(digest_size=HASH_BYTES, person=b"p2pfl-code")
    for file in code_files(federation):
        content = read_file(file)
        hasher.update(len(content).to_bytes(8, "little") + content)
    return hasher.digest()


def _line(prefix: str, raw: bytes) -> str:
    return prefix + to_text(_check(prefix, raw) + raw)


def _check(prefix: str, raw: bytes) -> bytes:
    """Compute a checksum that detects a truncated or mistyped line; it is no protection against attacks."""
    return hashlib.blake2b(raw, digest_size=CHECK_BYTES, person=prefix.encode()[:16]).digest()


def _raw(text: str, prefix: str, key: str, allowed: str) -> bytes:
    text = text.strip()
    if not text.startswith(prefix) or len(text) > MOST_CHARACTERS:
        raise UserError("not a line of this kind", key=key, value=text[:30], allowed=allowed)
    try:
        raw = from_text(text.removeprefix(prefix))
    except ValueError:
        raw = b""
    check, raw = raw[:CHECK_BYTES], raw[CHECK_BYTES:]
    if not raw or check != _check(prefix, raw):
        raise UserError("the line was cut or mistyped", key=key, value=f"{len(text)} characters", allowed=allowed)
    return raw


def _convert(raw: bytes, form: type[Form], key: str, allowed: str) -> Form:
    try:
        return msgspec.msgpack.decode(raw, type=form)
    except UNREADABLE:
        raise UserError("a line of another version of p2pfl", key=key, allowed=allowed) from None


def require_valid(word: str, value: str, key: str) -> None:
    """Require a member's `name` or `address`. Raises UserError."""
    kind = MEMBER[word]
    try:
        kind.read(value)
    except ValueError as reason:
        text = str(reason) or f"not {'an' if word == 'address' else 'a'} {word}"
        raise UserError(text, key=key, value=value[:64], allowed=kind.allowed) from None
