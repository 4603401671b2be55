"""How a state goes from neighbor to neighbor: piece by piece, each asked for, and compared with its digest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from p2pfl.errors import PeerFault
from p2pfl.features.summed.standings import PIECE_BYTES, StatePiece, StateWanted, state_digest

PATIENCE_S = 5.0
"""How long a neighbor may take for a piece."""
KEPT = 3
"""The latest states that are kept for others."""

SendPiece = Callable[[int, StateWanted | StatePiece], bool]


class StateFetching:
    """Gives this node's latest states to neighbors, and gets one from them. `most_bytes` bounds a state."""

    def __init__(self, say: SendPiece, most_bytes: int) -> None:
        self._say, self._most_bytes = say, most_bytes
        self._kept: dict[bytes, bytes] = {}
        self._wanted = b""
        self._body, self._size = bytearray(), 0
        self._from: int | None = None
        self._news = asyncio.Event()

    def keep(self, state: bytes, digest: bytes) -> None:
        self._kept.pop(digest, None)
        self._kept[digest] = state
        while len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]

    def hear_wanted(self, peer: int, wanted: StateWanted) -> None:
        state = self._kept.get(wanted.digest, b"")
        part = state[wanted.offset : wanted.offset + PIECE_BYTES]
        self._say(peer, StatePiece(digest=wanted.digest, size=len(state), offset=wanted.offset, part=part))

    def hear_piece(self, peer: int, piece: StatePiece) -> None:
        """Raises PeerFault: the piece is none of the state that was asked for."""
        if peer != self._from or piece.digest != self._wanted or piece.offset != len(self._body):
            return  # an answer that came too late
        if piece.size > self._most_bytes:
            raise PeerFault(f"a state of {piece.size} bytes; at most {self._most_bytes}")
        if piece.size == 0 and not piece.part:
            self._news.set()  # it does not have the state any longer
            return
        if len(piece.part) != min(PIECE_BYTES, piece.size - piece.offset) or self._size not in (0, piece.size):
            raise PeerFault("a piece of a state that is not as long as it should be")
        self._size = piece.size
        self._body += piece.part
        self._news.set()

    async def fetch(self, digest: bytes, peers: Iterable[int]) -> bytes | None:
        """Return the state with this digest from one of these neighbors; None if none of them gives it."""
        for peer in peers:
            self._wanted, self._from, self._body, self._size = digest, peer, bytearray(), 0
            while await self._next_piece():
                if self._body and len(self._body) == self._size:
                    found, self._from = bytes(self._body), None
                    if state_digest(found) == digest:
                        return found
                    break
        self._from = None
        return None

    async def _next_piece(self) -> bool:
        before, self._news = len(self._body), asyncio.Event()
        if self._from is None or not self._say(self._from, StateWanted(digest=self._wanted, offset=before)):
            return False
        try:
            await asyncio.wait_for(self._news.wait(), PATIENCE_S)
        except TimeoutError:
            return False
        return len(self._body) > before
