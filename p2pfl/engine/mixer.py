"""A robust rule at work in one node: it mixes the node's vector with the replicas, and records each replica's share."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

import numpy as np

from p2pfl.aggregate import Neighborhood, Rule
from p2pfl.core.effects import Mix
from p2pfl.engine.arithmetic import norm
from p2pfl.learn.interface import Vector

log = logging.getLogger("p2pfl")

NEWEST = 0.1
"""The weight of the latest round in `RuleMixer.kept`."""


class RuleMixer:
    """Applies the rule and checks its result: a failing rule, or a norm above `longest`, yields no model."""

    def __init__(self, rule: Rule, longest: float) -> None:
        self.rule, self.longest = rule, longest
        self.kept: dict[int, float] = {}
        """The share of each neighbor's pull that the rule recently let through.

        The mapping is only ever replaced, because other threads read it.
        """
        self._last_warning = ""

    def mix(self, own: Vector, replicas: Sequence[Vector], op: Mix) -> Vector | None:
        """Return the mixed model (c d,) in its own memory, or None. `replicas` (c d,) are in the order of
        `op.peers`.
        """
        own, *others = map(_read_only, (own, *replicas))
        weights = np.array(op.weights)
        around = Neighborhood(own=own, others=others, weights=weights, peers=op.peers)
        try:
            mixture = self.rule.mix(around)
            model = np.ascontiguousarray(mixture.model, dtype=own.dtype)
        except Exception as error:  # noqa: BLE001 - a neighbor must not stop the node, whatever the rule raises
            self._say(f"the rule raised {type(error).__name__}: {error}")
            return None
        if model.shape != own.shape or not norm(model) <= self.longest:
            return None
        if any(np.may_share_memory(model, given) for given in (own, *others)):
            model = model.copy()
        if mixture.kept is not None:
            known, kept = self.kept, zip(op.peers, mixture.kept.tolist(), strict=True)
            self.kept = known | {peer: (1 - NEWEST) * known.get(peer, part) + NEWEST * part for peer, part in kept}
        return model

    def forget(self, peers: Collection[int]) -> None:
        """Forget peers that are no longer neighbors."""
        self.kept = {peer: share for peer, share in self.kept.items() if peer not in peers}

    def _say(self, text: str) -> None:
        """Log once: a failing rule fails in every round, mostly for the same reason."""
        if text != self._last_warning:
            self._last_warning = text
            log.warning("%s", text)


def _read_only(vector: Vector) -> Vector:
    """Return a read-only view of the same memory: the rule must not change replicas, which the neighbors also hold."""
    view = vector.view()
    view.flags.writeable = False
    return view
