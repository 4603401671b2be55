"""Visits: connections that only bring the charter or ask for it, become no session, and then end.

A visitor that proves that it has a key may bring one charter, and need not be listed. In this way a newcomer can reach
a neighbor that does not know of it yet, and `p2pfl member` brings changes. An admin signs each charter, so it does not
matter who carries it. Only a listed key, or an admin's, gets a charter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn, Protocol

from p2pfl.config.charter import MOST_BYTES, VERSIONS
from p2pfl.crypto.session import Session
from p2pfl.errors import PeerFault
from p2pfl.net.line import GoneError, Line
from p2pfl.net.notices import BOOT_BYTES, LeftBehindFault, Notice, Word, hear

PIECE_BYTES = 64 * 1024
NOBODY = bytes(BOOT_BYTES)


class Charters(Protocol):
    """The node's charter, as visits need it."""

    @property
    def version(self) -> int:
        """The charter's version; 0: there is none yet."""
        ...

    @property
    def packed(self) -> bytes: ...

    def bring(self, raw: bytes) -> None:
        """Take a charter if it is newer. Raises PeerFault: it is not valid."""
        ...

    def left_behind(self, version: int, peer: int | None) -> None:
        """Note that a node has a newer charter, which does not list this node and is not shown to it."""
        ...

    def may_ask(self, public: bytes) -> bool:
        """Return True if this key may see the charter although no allow-list has it."""
        ...


async def receive(
    line: Line,
    session: Session,
    charters: Charters,
    refusal: PeerFault | None,
    *,
    listed: bool,
    first: Notice | None = None,
) -> NoReturn:
    """Let a visitor hand over a charter or ask for one; always ends in GoneError, or in a PeerFault.

    `refusal` is raised if the visitor does neither. `first` is the notice that it has sent already.
    """
    otherwise = refusal or PeerFault("neither a greeting nor a word about the charter")
    try:
        notice = first or await hear(line, session)
    except GoneError:
        raise otherwise from None
    if notice.word is Word.CHARTER:
        charters.bring(await receive_charter(line, session, notice))
        await say(line, session, Word.HELD, charters.version)
        raise GoneError("it came to hand over a charter")
    if notice.word is not Word.ASK or not (listed or charters.may_ask(session.peer_public)):
        raise otherwise
    if charters.version > notice.number:
        await hand_over(line, session, charters.packed)
        await hear(line, session)
    else:
        await say(line, session, Word.HELD, charters.version)
    raise GoneError("it came to ask for the charter")


async def settle(line: Line, session: Session, charters: Charters, answer: Notice) -> None:
    """Bring the older of two charters up to date, after a dialed node has refused a session.

    Raises GoneError: that is done, so dial again in a moment; PeerFault: the other end has a newer one and does not
    list this node. Returns if charters are not the reason.
    """
    own = charters.version
    if own > answer.number:
        held = await bring(line, session, charters.packed)
        if held > own:
            charters.left_behind(held, line.peer)
            text = f"it has version {held} of the members, which does not list this node; here is {own}"
            raise LeftBehindFault(text)
        raise GoneError(f"it did not follow version {own} of the members yet, and has received it now")
    if answer.word is Word.NO_EDGE and answer.number > own:
        _, raw = await ask(line, session, own)
        if raw is not None:
            charters.bring(raw)
            raise GoneError(f"it had a newer version of the members, and handed over version {charters.version}")


async def bring(line: Line, session: Session, raw: bytes) -> int:
    """Hand over a charter; return the version that the other end then has."""
    await hand_over(line, session, raw)
    held = await hear(line, session)
    if held.word is not Word.HELD:
        raise PeerFault(f"{held.word.name} in answer to a charter")
    return _checked_version(held)


async def ask(line: Line, session: Session, version: int) -> tuple[int, bytes | None]:
    """Return the version that the other end has, and its charter if that is newer than `version`."""
    await say(line, session, Word.ASK, version)
    answer = await hear(line, session)
    if answer.word is Word.HELD:
        return _checked_version(answer), None
    if answer.word is not Word.CHARTER:
        raise PeerFault(f"{answer.word.name} in answer to a request for the charter")
    raw = await receive_charter(line, session, answer)
    await say(line, session, Word.HELD, version)
    return version, raw


async def hand_over(line: Line, session: Session, raw: bytes) -> None:
    await say(line, session, Word.CHARTER, len(raw))
    for piece in _pieces(raw):
        await line.send(session.seal(piece))


async def receive_charter(line: Line, session: Session, announced: Notice) -> bytes:
    """Receive a charter of the announced size; the caller sets the deadline.

    Raises PeerFault: it is too long, or cut wrongly.
    """
    if not 0 < announced.number <= MOST_BYTES:
        raise PeerFault(f"a charter of {announced.number} bytes: at most {MOST_BYTES}")
    raw = bytearray()
    while len(raw) < announced.number:
        piece, final = session.open(await line.receive())
        if final or len(piece) != min(PIECE_BYTES, announced.number - len(raw)):
            raise PeerFault("a charter cut into pieces in another way than honest nodes do")
        raw += piece
    return bytes(raw)


async def say(line: Line, session: Session, word: Word, number: int) -> None:
    await line.send(session.seal(Notice(word, NOBODY, number).pack()))


def _checked_version(notice: Notice) -> int:
    if notice.number >= VERSIONS:
        raise PeerFault(f"it claims version {notice.number} of the members, which is impossible")
    return notice.number


def _pieces(raw: bytes) -> Iterator[bytes]:
    for start in range(0, len(raw), PIECE_BYTES):
        yield raw[start : start + PIECE_BYTES]
