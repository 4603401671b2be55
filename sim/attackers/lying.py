"""What a liar shows its neighbors: what an attack makes of its own model and of what its neighbors have shown it."""

from __future__ import annotations

from p2pfl.config.model import FederationConfig
from p2pfl.engine.codecs import Forgery, Occasion
from p2pfl.engine.engine import Engine
from p2pfl.learn.interface import Vector
from sim.attacks import Attack, Sight, boast, passable


class Deceiver:
    """Makes a liar of an `engine`. `league` are the liars, itself among them; `initial` (d,) is the model that every
    node starts from.

    In the robust profile it also says that it has more samples than anybody.
    """

    def __init__(
        self, engine: Engine, *, attack: Attack, federation: FederationConfig, league: frozenset[int], initial: Vector
    ) -> None:
        self.engine, self.attack, self.federation = engine, attack, federation
        self.league, self.initial = league, initial
        self.count = 0
        engine.show, engine.claim = self.show, self.claim

    def show(self, model: Vector, peer: int, occasion: Occasion) -> Vector | Forgery:
        del occasion
        shown = self.attack.tell(self.sight(model, peer))
        self.count += 1
        return passable(shown, model.size, self.engine.codecs.of(peer))

    def claim(self, weight: float) -> float:
        return weight if self.engine.rule is None else boast(weight)

    def sight(self, model: Vector, peer: int) -> Sight:
        """What a real neighbor sees: the latest replicas on its own edges, and what the federation's file says."""
        state = self.engine.state
        return Sight(
            node=self.engine.index,
            peer=peer,
            own=model,
            initial=self.initial,
            models={other: edge.peer for other, edge in state.edges.items() if edge.record.seq},
            liars=self.league,
            edges=self.federation.edges,
            rule=self.federation.gossip.rule,
            rounds=state.rounds,
            count=self.count,
            seed=self.federation.seed,
        )
