"""Robust rules put off: each node's own rule, on its row and on the replicas as this node has them.

The responder of an edge has its neighbor's replica in `Rows.own`, which nobody else changes. The initiator's is that of
its latest reply, while the responder may be a transaction ahead: it keeps a copy (`HELD`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from p2pfl.aggregate import Rule
from p2pfl.core.tick import UNMOVED_ROUNDS
from p2pfl.engine.arithmetic import has_moved
from p2pfl.engine.engine import NORM_CEILING
from p2pfl.engine.mixer import RuleMixer
from sim.lazy.operations import MixOp
from sim.lazy.rows import HELD, MisjudgedError, Rows


class Mixers:
    """The mixers of all nodes; none in the conservative profile.

    The core was told that each mix succeeds and moves the model; where that is not so `MisjudgedError` says why.
    """

    def __init__(self, rules: Sequence[Rule], rows: Rows) -> None:
        self._rows = rows
        self._mixers = [RuleMixer(rule, NORM_CEILING) for rule in rules]
        self._unmoved = [0] * len(rules)
        """Per node, how many of the latest mixes in a row hardly moved it."""
        if rules:
            rows.mix_by_rules()

    def mix(self, node: int, op: MixOp) -> None:
        rows = self._rows
        own, held = rows.models[node], rows.kept[HELD]
        replicas = [rows.own[pair] if pair >= 0 else held[2 * (-1 - pair)] for pair in op.pairs]
        model = self._mixers[node].mix(own, replicas, op.effect)
        if model is None:
            raise MisjudgedError("a rule gave no model")
        self._unmoved[node] = 0 if has_moved(own, replicas, model) else self._unmoved[node] + 1
        if self._unmoved[node] >= UNMOVED_ROUNDS:
            raise MisjudgedError("a rule keeps nothing of the neighbors' models")
        np.copyto(rows.unmixed[node], own)
        np.copyto(own, model)
