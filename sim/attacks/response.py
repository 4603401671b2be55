"""What a victim's rule would make of a lie: for attacks that look for the worst one."""

from __future__ import annotations

from functools import cache

import numpy as np

from p2pfl.aggregate import Neighborhood, Rule, make_rule
from sim.attacks.attack import Vector
from sim.attacks.sight import Sight


def response(sight: Sight, lie: Vector) -> Vector:
    """The victim's model (d,) after it has mixed with its honest neighbors and, from each liar at it, with `lie`.

    Without a rule, or with `mean`, it takes the Laplacian step.
    """
    lies = dict.fromkeys(sight.lying, lie)
    others = {node: np.asarray(sight.models[node], np.float64) for node in sight.known} | lies
    peers = tuple(sorted(others))
    own = np.asarray(sight.victim, np.float64)
    weights = np.array([sight.weight(peer) for peer in peers])
    rule = None if sight.rule is None else _rule(sight.rule)
    if rule is None:
        mixed: Vector = own + sum(weight * (others[peer] - own) for weight, peer in zip(weights, peers, strict=True))
        return mixed
    around = Neighborhood(own=own, others=[others[peer] for peer in peers], weights=weights, peers=peers)
    return rule.mix(around).model


@cache
def _rule(spec: str) -> Rule | None:
    return make_rule(spec)
