"""The liars of a run: what they see and show. In a simulation they know every model as shown at that instant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from p2pfl.aggregate import liars_of
from p2pfl.config.model import FederationConfig
from p2pfl.learn.interface import Learner, Vector
from sim.attacks import Attack, Sight, press
from sim.attacks.lies import Slope, slope_for

if TYPE_CHECKING:
    from sim.cluster import Cluster

PRESSES_NS = 1_000_000
"""The time between two attempts by a flooding liar to begin an exchange."""

ShowLie = Callable[[Vector, int], Vector]
"""Maps (model (d,), peer) to the vector that a liar shows that neighbor: (d,), not always finite, or of
another length.
"""


class Liars:
    """The liars; `meet` connects them to what they see. `samples` are those of all nodes, `learners` their learners,
    or one pool of them.
    """

    def __init__(
        self,
        attack: Attack,
        federation: FederationConfig,
        liars: frozenset[int],
        *,
        learners: Sequence[Learner],
        samples: Sequence[int],
    ) -> None:
        self.attack, self.federation, self.liars = attack, federation, liars
        self._initial, self._samples = learners[0].initial(), samples
        self._slope = _slope(attack, learners, min(liars, default=0))
        self._counts = dict.fromkeys(sorted(liars), 0)
        self._models: Mapping[int, Vector]
        self._rounds: Callable[[int], int]

    def meet(self, models: Mapping[int, Vector], rounds: Callable[[int], int]) -> None:
        """Connect the liars to all models as they are shown, and to the number of rounds that each node has done."""
        self._models, self._rounds = models, rounds

    def flood(self, world: Cluster) -> None:
        """Let them press for exchanges in a world, if that is their attack."""
        for index in sorted(self.liars) if self.attack.flood else ():
            world.kernel.at_ns(PRESSES_NS, partial(self._press, world, index))

    def _press(self, world: Cluster, index: int) -> None:
        """Press for exchanges repeatedly, until the liar's rounds are done."""
        host = world.hosts[index]
        if host.process is not None and host.alive:
            host.process.act(press(host.core, world.kernel.now))
        if not host.finished and index not in world.gone:
            world.kernel.at_ns(world.kernel.now_ns + PRESSES_NS, partial(self._press, world, index))

    def show(self, index: int) -> ShowLie:
        """Return the function that shows lies for the liar `index`."""

        def show(model: Vector, peer: int) -> Vector:
            count = self._counts[index]
            self._counts[index] += 1
            return self.attack.tell(self._sight(index, peer, model, count))

        return show

    def _sight(self, index: int, peer: int, model: Vector, count: int) -> Sight:
        """Build a liar's sight; blind attacks get no models, since they would not look at them."""
        sees = self.attack.sees
        return Sight(
            node=index,
            peer=peer,
            own=model,
            initial=self._initial,
            models=self._models if sees else {},
            liars=self.liars,
            edges=self.federation.edges if sees else (),
            weights=self._weights(peer) if sees else {},
            rule=self.federation.gossip.rule,
            rounds=self._rounds(index),
            count=count,
            seed=self.federation.seed,
            slope=self._slope,
        )

    def _weights(self, peer: int) -> Mapping[int, float]:
        """Compute a_ij of the peer in the Laplacian step, by neighbor: gamma min(n_i/(deg_i+1), n_j/(deg_j+1))/n_i.

        In the robust profile gamma is 1, and liars claim a large n_j.
        """
        robust = liars_of(self.federation.gossip.rule) > 0
        share = [n / (len(others) + 1) for n, others in zip(self._samples, self._neighbors, strict=True)]
        if robust:
            share = [share[peer] if node in self.liars else one for node, one in enumerate(share)]
        factor = (1.0 if robust else self.federation.gossip.gamma) / self._samples[peer]
        return {other: factor * min(share[peer], share[other]) for other in self._neighbors[peer]}

    @cached_property
    def _neighbors(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in self.federation.members]
        for low, high in self.federation.edges:
            found[low].append(high)
            found[high].append(low)
        return [sorted(others) for others in found]


def _slope(attack: Attack, learners: Sequence[Learner], liar: int) -> Slope | None:
    """Build the loss on everybody's data if they are in memory, otherwise on one liar's data."""
    if not attack.climbs and attack.own is None:
        return None
    pool = getattr(learners, "pool", "")
    return slope_for(attack, learners[liar], None if isinstance(pool, str) else pool.rows)


class ShownModels(Mapping[int, Vector]):
    """Every node's model, read on demand."""

    def __init__(self, nodes: int, model_of: Callable[[int], Vector]) -> None:
        self._nodes, self._model_of = range(nodes), model_of

    def __getitem__(self, node: int) -> Vector:
        if node not in self._nodes:
            raise KeyError(node)
        return self._model_of(node)

    def __iter__(self) -> Iterator[int]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)
