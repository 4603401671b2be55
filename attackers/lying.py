"""The engine of a liar: it keeps to the protocol, and shows each neighbor something else instead of its model."""

from __future__ import annotations

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from p2pfl.compress import Payload
from p2pfl.config.model import Federation
from p2pfl.core.effects import ApplyRequest, Freeze, Operation
from p2pfl.engine.codecs import chance_of
from p2pfl.engine.engine import Engine, Outcome
from p2pfl.learn.interface import Vector
from sim.attacks import BOAST, Attack, Sight

NOT_A_NUMBER = b"\xff"
"""no encoder gives a payload for what is not finite; these bytes, read as floats, are NaN."""


class LyingEngine(Engine):
    """`deceive` makes a liar of it; before, it is honest.

    In the robust profile it also says that it has more samples than anybody.
    """

    attack: Attack | None = None

    def deceive(self, attack: Attack, federation: Federation, league: frozenset[int], initial: Vector) -> None:
        """`league` are the liars, itself among them; `initial` (d,) is the model that every node starts from."""
        self.attack, self.federation, self.league, self.initial = attack, federation, league, initial
        self.count = 0

    def run(self, operation: Operation) -> Outcome:
        boasts = self.attack is not None and self.rule is not None
        if boasts and isinstance(operation, Freeze | ApplyRequest):
            operation = structs.replace(operation, weight=BOAST)
        return super().run(operation)

    def _encode(self, peer: int, incarnation: int, seq: int, *, decoded: NDArray[np.float32] | None = None) -> Payload:
        if self.attack is None:
            return super()._encode(peer, incarnation, seq, decoded=decoded)
        shown = self.attack.tell(self.sight(peer))
        self.count += 1
        codec, own = self.codecs.of(peer), self.state.edges[peer].own
        chance = chance_of(self.index, peer, incarnation, seq) if codec.random else 0
        if shown.size == own.size and np.isfinite(shown).all():
            return codec.encode(shown - own, chance=chance, decoded=decoded)
        if decoded is not None:
            decoded[:] = 0.0  # no honest node will take it in, and the liar's own books stay readable
        if np.isfinite(shown).all():
            return codec.encode(shown, chance=chance)
        return NOT_A_NUMBER * codec.size_bytes(shown.size)

    def sight(self, peer: int) -> Sight:
        """What a real neighbor sees: the latest replicas on its own edges, and what the federation's file says."""
        return Sight(
            node=self.index,
            peer=peer,
            own=self.state.shown,
            initial=self.initial,
            models={other: edge.peer for other, edge in self.state.edges.items() if edge.record.seq},
            liars=self.league,
            edges=self.federation.edges,
            rule=self.federation.gossip.rule,
            rounds=self.state.rounds,
            count=self.count,
            seed=self.federation.seed,
        )
