"""The offer of attacks to `p2pfl demo --byzantine`, by the entry point group `p2pfl.attackers` (`p2pfl.fleet`).

It also chooses the nodes that lie: spread out, so that the honest nodes have as few liars among their neighbors as the
graph allows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from p2pfl.chance import generator
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.errors import UserError
from p2pfl.learn.interface import Vector
from sim.attacks import ALLOWED_ATTACKS, ATTACKS, Attack, make_attack, with_absolute_path

TRIES = 32


def attack_of(spec: str) -> Attack:
    """Parse the attack given to `--attack`; a path starts at the working folder.

    Raises UserError if there is no such attack, if a parameter is impossible, or if the user's own attack cannot be
    imported.
    """
    try:
        return make_attack(spec)
    except ValueError as error:
        raise UserError(str(error), key="--attack", value=spec, allowed=ALLOWED_ATTACKS) from None
    except UserError as error:
        error.key = "--attack"
        raise


class LyingNodes:
    def check(self, spec: str) -> None:
        attack_of(spec)

    def listed(self) -> list[dict[str, str]]:
        attacks = ATTACKS.values()
        return [
            {"attack": attack.usage, "shows": attack.shows, "knows": attack.knows, "source": attack.source}
            for attack in attacks
        ]

    def choose(self, federation: FederationConfig, count: int) -> tuple[str, ...]:
        chosen = spread_out(len(federation.members), federation.edges, count, federation.seed)
        return tuple(federation.members[index].name for index in chosen)

    def command(self, federation: FederationConfig, name: str, spec: str, liars: Sequence[str]) -> list[str]:
        others = [word for other in liars if other != name for word in ("--with", other)]
        return [
            "-m",
            "sim.attackers",
            str(federation.path),
            "--node",
            name,
            "--attack",
            with_absolute_path(spec, Path()),
            *others,
        ]

    def success(
        self, spec: str, federation: FederationConfig, node: NodeConfig, models: Mapping[str, Vector]
    ) -> dict[str, float]:
        poison = attack_of(spec).poison
        if poison is None:
            return {}
        from p2pfl.node.assembly import load_learner  # noqa: PLC0415 - `--help` stays instant
        from sim.attacks.poison import success  # noqa: PLC0415 - torch

        return success(load_learner(federation, node), poison, models)


OFFER = LyingNodes()


def spread_out(nodes: int, edges: Sequence[tuple[int, int]], count: int, seed: int) -> tuple[int, ...]:
    """Choose `count` of `nodes`, in ascending order, at the lowest cost.

    The cost is first the maximum number of liars around one honest node, then the sum of squares of the liars around
    each honest node.
    """
    around: list[set[int]] = [set() for _ in range(nodes)]
    for low, high in edges:
        around[low].add(high)
        around[high].add(low)
    chance = generator(seed, "liars")
    drawn = [_greedy(around, count, chance.permutation(nodes).tolist()) for _ in range(TRIES)]
    return min(drawn, key=lambda liars: cost(around, liars))


def cost(around: Sequence[Collection[int]], liars: Collection[int]) -> tuple[int, int]:
    heard = liars_heard(around, liars)
    return max(heard.values(), default=0), sum(many * many for many in heard.values())


def liars_heard(around: Sequence[Collection[int]], liars: Collection[int]) -> dict[int, int]:
    """Count the lying neighbors of each honest node."""
    lying = set(liars)
    return {node: len(lying.intersection(peers)) for node, peers in enumerate(around) if node not in lying}


def _greedy(around: Sequence[Collection[int]], count: int, order: Iterable[int]) -> tuple[int, ...]:
    """Choose one liar after another, each where it costs least; `order` breaks ties."""
    order, liars = list(order), frozenset[int]()
    for _ in range(count):
        free = [node for node in order if node not in liars]
        liars |= {min(free, key=lambda node, liars=liars: cost(around, liars | {node}))}  # type: ignore[misc]
    return tuple(sorted(liars))
