"""Robust rules and liars in step, node by node and by the shipped functions.

After each round every node shows its model to its neighbors, a liar what its attack says; then each node mixes what it
was shown by its rule, as `p2pfl.engine.arithmetic` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2pfl.config.graph import rule_of
from p2pfl.core.events import Mix
from p2pfl.engine.arithmetic import RuleMixer, chance_of
from p2pfl.engine.engine import NORM_CEILING
from sim.attacks import Attack
from sim.cluster import Liars, ShownModels

if TYPE_CHECKING:
    from sim.arrays.setting import Setting

Rows = NDArray[np.float32]


class Lies:
    """What liars show, (d,) in `shown` by liar and neighbor."""

    def __init__(self, setting: Setting, attack: Attack) -> None:
        learners = setting.learners
        self.liars = Liars(attack, setting.federation, setting.liars, learners=learners, samples=learners.counts)
        self.compressor, ends = setting.compressor, [*setting.ends.tolist(), *setting.ends[:, ::-1].tolist()]
        self.shown = {(liar, peer): learners[0].initial() for liar, peer in ends if liar in setting.liars}

    def tell(self, models: Rows, number: int) -> None:
        """Let all liars show what their attack says of `models` (n, d), after so many rounds before this one."""
        self.liars.meet(ShownModels(len(models), lambda node: models[node]), lambda _: number + 1)
        for (liar, peer), shown in self.shown.items():
            change = np.asarray(self.liars.show(liar)(models[liar], peer) - shown, dtype=np.float32)[None]
            if not np.isfinite(change).all():
                continue
            if self.compressor is not None:
                chances = [chance_of(liar, peer, 0, number)] if self.compressor.random else None
                self.compressor.quantize_rows(change, chances=chances, out=change)
            self.shown[liar, peer] = shown + change[0]


class ByRule:
    """Mixes all nodes by their rules. `peers` and `weights` are those of each node, `least` the fewest peers."""

    def __init__(self, setting: Setting) -> None:
        rules = [rule for _ in range(setting.nodes) if (rule := rule_of(setting.federation)) is not None]
        self.mixers = [RuleMixer(rule, NORM_CEILING) for rule in rules]
        self.least = max(2 * rules[0].liars + 1, rules[0].least)
        self.lies = None if setting.attack is None else Lies(setting, setting.attack)
        self.peers: list[tuple[int, ...]] = [() for _ in rules]
        for low, high in sorted([*map(tuple, setting.ends.tolist()), *map(tuple, setting.ends[:, ::-1].tolist())]):
            self.peers[low] += (high,)
        share = setting.samples / ([len(peers) + 1 for peers in self.peers])
        claimed = share.copy()
        claimed[sorted(setting.liars)] = np.inf
        self.weights = [
            tuple((np.minimum(share[node], claimed[list(peers)]) / setting.samples[node]).tolist())
            for node, peers in enumerate(self.peers)
        ]

    def mix(self, models: Tensor, shown: Tensor, number: int) -> None:
        """Mix `models` (n, d), of which their neighbors know `shown` (n, d), in the round of this number."""
        own, known = models.cpu().numpy().copy(), shown.cpu().numpy().copy()
        if self.lies is not None:
            self.lies.tell(own, number)
        told = {} if self.lies is None else self.lies.shown
        for node, (peers, weights) in enumerate(zip(self.peers, self.weights, strict=True)):
            if len(peers) < self.least:
                continue
            around = [told.get((peer, node), known[peer]) for peer in peers]
            found = self.mixers[node].mix(own[node], around, Mix(peers=peers, weights=weights))
            if found is not None:
                models[node] = torch.from_numpy(found)


def by_rule_of(setting: Setting) -> ByRule | None:
    return None if setting.federation.gossip.rule == "mean" else ByRule(setting)
