"""The row about itself that a node signs and sends to all members, and one node's view of its whole federation. Both
are for people only: no decision depends on them.

A row consists of its fields in order, as msgpack, and an Ed25519 signature. The signed bytes begin with a name for this
purpose and the federation's name and seed, so that no other signature by the same key can be used in its place. Fields
may be added at the end: a node that does not know them ignores them.

The view is the response to `GET /federation`, which the page, `watch` and `status` read. A field that is null is
unknown. Times are in seconds on a clock of the responding node, whose zero is arbitrary: `now` minus another time is an
age.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from p2pfl.config.model import FederationConfig
from p2pfl.crypto.identity import SIGNATURE_BYTES, Identity
from p2pfl.errors import PeerFault
from p2pfl.foreign import UNREADABLE
from p2pfl.learn.metrics import ACCURACY, LOSS, Measure
from p2pfl.limits import MOST_ROW_BYTES
from p2pfl.reporting.status import PrivacyStatus

MOST_WORDS = 6
"""The most alarm kinds in one row."""
MOST_METRICS = 8
"""The most metrics in one row."""

Count = Annotated[int, Meta(ge=0, lt=2**53)]
Figure = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)] | None
Figures = Annotated[tuple[Figure, ...], Meta(max_length=MOST_METRICS)]
Word = Annotated[str, Meta(max_length=32, pattern=r"^[A-Za-z0-9 .+_-]*\Z")]
Words = Annotated[tuple[Word, ...], Meta(max_length=MOST_WORDS)]
Bits = Annotated[bytes, Meta(max_length=128)]


class Vitals(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A member's report about itself. `counter` grows with each row that it signs; a null figure is unknown.

    `live` is the set of members with which it has a session, as a bitmap whose lowest bit is member 0, left out if it
    would be too long. `alarms` counts the alarms in this process; `standing` has the kinds of active alarms, as many as
    there is room for. `loss` comes from the latest local round. `metrics` are the task's own metrics and the loss in
    the latest test, in the order of `in_row`: every member has the same task. `epsilon` is what it has spent from its
    privacy budget; `budget`, `begun` and `paid` identify that budget by name and order, and say how many steps are paid
    for (`ledger.Signed`). Without a privacy promise the row has none of these. `unheard` are the members of
    `live` that have sent nothing for several heartbeats. `tested_round` is the round after which the scores were
    tested, if the model has changed for more than one round since. `period_s` is the most time until the next row; the
    version before does not say it.
    """

    member: Count
    counter: Count
    life: Count
    phase: Word
    rounds: Count
    accuracy: Figure
    loss: Figure
    distance: Figure
    staleness: Figure
    bytes_sent: Count
    bytes_received: Count
    exchanges: Count
    live: Bits
    alarms: Count
    standing: Words
    charter: Count
    software: Word
    metrics: Figures = ()
    epsilon: Figure = None
    budget: Count = 0
    begun: Count = 0
    paid: Count = 0
    unheard: Bits = b""
    tested_round: Count | None = None
    period_s: Count = 0


_LATER = ("epsilon", "budget", "begun", "paid", "unheard", "tested_round", "period_s")
"""Fields at the end of a row that are left out if they have their default values, in order."""
_DEFAULTS = [field.default for field in msgspec.structs.fields(Vitals) if field.name in _LATER]
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Vitals)


def realm_of(federation: FederationConfig) -> bytes:
    """Return the bytes that bind a signature to this purpose in this federation."""
    name = federation.name.encode()
    return hashlib.blake2b(name + b"\0%d" % federation.seed, digest_size=32, person=b"p2pfl-vitals").digest()


def shortened(vitals: Vitals) -> Vitals:
    """Shorten a row until it fits: drop alarm kinds from the end, then `live`. The rest always fits."""
    while vitals.standing and not _fits(vitals):
        vitals = msgspec.structs.replace(vitals, standing=vitals.standing[:-1])
    return vitals if _fits(vitals) else msgspec.structs.replace(vitals, live=b"")


def _fits(vitals: Vitals) -> bool:
    return len(_row(vitals)) + SIGNATURE_BYTES <= MOST_ROW_BYTES


def _row(vitals: Vitals) -> bytes:
    values = list(msgspec.structs.astuple(vitals))
    for usual in reversed(_DEFAULTS):
        if values[-1] != usual:
            break
        del values[-1]
    return _ENCODER.encode(values)


def sign(vitals: Vitals, identity: Identity, realm: bytes) -> bytes:
    """Encode and sign the row. Raises ValueError: it has contents that no member would accept."""
    row = _row(vitals)
    try:
        _DECODER.decode(row)
    except msgspec.ValidationError as error:
        raise ValueError(f"vitals that cannot be encoded: {error}") from error
    if len(row) + SIGNATURE_BYTES > MOST_ROW_BYTES:
        raise ValueError(f"vitals of {len(row)} bytes")
    return row + identity.sign(realm + row)


def read(raw: bytes) -> Vitals:
    """Decode a row without checking its signature, which `prove` does. Raises PeerFault: it is not a row."""
    try:
        return _DECODER.decode(raw[:-SIGNATURE_BYTES])
    except UNREADABLE as error:
        raise PeerFault(f"a malformed row of vitals: {error}") from error


def prove(raw: bytes, key: bytes, realm: bytes) -> None:
    """Check the signature. Raises PeerFault: the row is not signed by the member with this public key."""
    try:
        VerifyKey(key).verify(realm + raw[:-SIGNATURE_BYTES], raw[-SIGNATURE_BYTES:])
    except (BadSignatureError, ValueError):
        raise PeerFault("a row of vitals not signed by its member") from None


def figure(value: float | None) -> float | None:
    """Round a figure for a row to four digits; a value that is not finite becomes None."""
    return float(f"{value:.4g}") if value is not None and math.isfinite(value) else None


def word(text: str) -> str:
    """Shorten a text for a row, and remove characters that a page would have to escape."""
    kept = "".join(letter if (letter.isascii() and letter.isalnum()) or letter in " .+_-" else "-" for letter in text)
    return kept[:32]


def in_row(measures: Sequence[Measure]) -> list[Measure]:
    """Return the measures whose values a row has, by name, in this order: all except accuracy, which has a separate
    field.
    """
    others = [measure for measure in measures if measure.name != ACCURACY.name]
    return sorted(others, key=lambda measure: measure.name)[:MOST_METRICS]


def scores(vitals: Vitals, measures: Sequence[Measure]) -> dict[str, float | None]:
    """Return the scores in a member's latest test, by the names of its task's `measures`, the main one first.

    If the task does not name its measures, return accuracy if there is one, else the latest round's loss.
    """
    by_name = {ACCURACY.name: vitals.accuracy}
    by_name |= {measure.name: value for measure, value in zip(in_row(measures), vitals.metrics, strict=False)}
    if not measures:
        return by_name if vitals.accuracy is not None else {LOSS.name: vitals.loss}
    return {measure.name: by_name.get(measure.name) for measure in measures}


def bitmap(members: Iterable[int]) -> bytes:
    bits = sum(1 << member for member in set(members))
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")[:128]


def is_among(member: int, bits: bytes) -> bool:
    return member >> 3 < len(bits) and bool(bits[member >> 3] >> (member & 7) & 1)


def members_of(bits: bytes) -> list[int]:
    return [member for member in range(8 * len(bits)) if is_among(member, bits)]


class MemberRow(msgspec.Struct, kw_only=True):
    """One member, according to its own latest row. Without a row, all fields except index and name are null."""

    index: int
    name: str
    at: float | None = None
    """The time when the member sent this row, on the clock of the responding node."""
    source: str | None = None
    """The node that forwarded the row to the responding node, if it was not the member itself."""
    quiet: bool = False
    """True if a newer row from the member is overdue."""
    lost: bool = False
    """True if none of the member's neighbors reports that it hears from it."""
    phase: str | None = None
    rounds: int | None = None
    main: float | None = None
    """The score in its latest test, by the task's main measure."""
    accuracy: float | None = None
    scores: dict[str, float | None] = {}
    """The scores in its latest test, by the name of each measure of the task, the main one first."""
    intervals: dict[str, tuple[float, float]] = {}
    """The 95% intervals of the responding node's own scores, by name; they are not sent to other nodes."""
    tested_round: int | None = None
    """The round after which its scores were tested, if its model has had more than one since."""
    loss: float | None = None
    distance: float | None = None
    staleness: float | None = None
    bytes_sent: int | None = None
    bytes_received: int | None = None
    bytes_per_s: float | None = None
    """The bytes that it sent per second between its latest two rows."""
    exchanges: int | None = None
    live: list[int] | None = None
    """The members with which it has a session."""
    unheard: list[int] = []
    """The neighbors with a session that have sent nothing for several heartbeats."""
    alarms: int | None = None
    """The number of alarms raised since its process started."""
    standing: list[str] = []
    """The kinds of its active alarms."""
    charter: int | None = None
    software: str | None = None
    life: int | None = None
    epsilon: float | None = None
    """The epsilon that it has spent from its privacy budget."""


class NotableEvent(msgspec.Struct, kw_only=True, frozen=True):
    """One notable event, as the responding node observed it."""

    number: int
    at: float
    kind: str
    about: str | None
    text: str
    wrong: bool


class StandingAlarm(msgspec.Struct, kw_only=True, frozen=True):
    """One active alarm of the responding node."""

    kind: str
    about: str | None
    text: str
    since: float
    count: int
    means: str
    does: str
    advice: str


class FederationStatus(msgspec.Struct, kw_only=True):
    """The response to `GET /federation`."""

    federation: str
    node: str
    """The name of the responding node."""
    now: float
    vitals: bool
    """True if members send their status to each other."""
    period_s: float
    """The period in which a member sends its row while something changes."""
    quiet_after_s: float
    measures: list[Measure] = []
    """The measures of the task, the main one first."""
    privacy: PrivacyStatus | None = None
    """The budget of the responding node; null if there is no privacy promise."""
    rounds_to_do: int | None
    topology: str
    charter: int
    software: str
    edges: tuple[tuple[int, int], ...]
    members: list[MemberRow]
    alarms: list[StandingAlarm]
    events: list[NotableEvent]
    point: dict[str, list[float | None]] | None = None
    """The latest point of the page's curves."""
