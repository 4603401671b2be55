"""What `p2pfl demo --byzantine` finds by the entry point group `p2pfl.attackers`: see `p2pfl.runtime.fleet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.errors import UserError
from p2pfl.learn.interface import Vector
from sim.attacks import ALLOWED_ATTACKS, Attack, parse_attack


def attack_of(spec: str) -> Attack:
    """The attack that `--attack` names. Raises UserError: no such attack, or an impossible parameter."""
    try:
        return parse_attack(spec)
    except ValueError as error:
        raise UserError(str(error), key="--attack", value=spec, allowed=ALLOWED_ATTACKS) from None


class Offer:
    def check(self, spec: str) -> None:
        attack_of(spec)

    def choose(self, federation: FederationConfig, count: int) -> tuple[str, ...]:
        from sim.attackers.places import spread_out  # noqa: PLC0415 - `--help` stays instant

        chosen = spread_out(len(federation.members), federation.edges, count, federation.seed)
        return tuple(federation.members[index].name for index in chosen)

    def command(self, federation: FederationConfig, name: str, spec: str, liars: Sequence[str]) -> list[str]:
        others = [word for other in liars if other != name for word in ("--with", other)]
        return ["-m", "sim.attackers", str(federation.path), "--node", name, "--attack", spec, *others]

    def success(
        self, spec: str, federation: FederationConfig, node: NodeConfig, models: Mapping[str, Vector]
    ) -> dict[str, float]:
        poison = attack_of(spec).poison
        if poison is None:
            return {}
        from p2pfl.runtime.parts import load_learner  # noqa: PLC0415 - as above
        from sim.attackers.poisoned import success  # noqa: PLC0415 - torch

        return success(load_learner(federation, node), poison, models)


OFFER = Offer()
