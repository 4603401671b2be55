"""D-PSGD in step, as mathematics: all nodes train a round, then each edge of the graph exchanges once.

x <- x + (W - I) h with W_ij = k_ij / n_i (Lian et al. 2017, arXiv 1705.09056); with a compressor h += Q(x - h) first
(CHOCO-SGD: Koloskova et al. 2019, arXiv 1902.00340). A schedule uses the edges of one of its graphs in each round.

With fragments each edge exchanges one of them a round, by turns as in `p2pfl.core.settings`: a fragment then has
a graph of its own in each round, whose W mixes it (DivShare: Biswas et al. 2024, arXiv 2410.12918). A directed graph
mixes with the matrices of its family, x <- W x.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

from p2pfl.compress import Compressor, Fragments
from p2pfl.config.graph import rule_of
from p2pfl.core.events import Mix
from p2pfl.core.settings import turn_of
from p2pfl.engine.engine import chance_of
from p2pfl.engine.rounds import RuleMixer
from p2pfl.limits import NORM_CEILING
from sim.arrays.setting import Flows, MethodMemory
from sim.arrays.vectors import CHUNK_FLOATS, Integers, Train
from sim.attacks import Attack
from sim.cluster import Liars, ShownModels
from topologies.schedule import MixingMatrix

if TYPE_CHECKING:
    from sim.arrays.setting import Setting


Rows = NDArray[np.float32]


class Lies:
    """The models that liars show, (d,) in `shown` by liar and neighbor."""

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
        lied = {} if self.lies is None else self.lies.shown
        for node, (peers, weights) in enumerate(zip(self.peers, self.weights, strict=True)):
            if len(peers) < self.least:
                continue
            around = [lied.get((peer, node), known[peer]) for peer in peers]
            mixed = self.mixers[node].mix(own[node], around, Mix(peers=peers, weights=weights))
            if mixed is not None:
                models[node] = torch.from_numpy(mixed)


def by_rule_of(setting: Setting) -> ByRule | None:
    return None if setting.federation.gossip.rule == "mean" else ByRule(setting)


Sparse = tuple[Tensor, Tensor, Tensor]
"""A matrix: the columns of its values, row by row, where each row starts, and the values."""


class InStep:
    """Models `x` (n, d), moved round by round.

    `graphs` has the edges of each round of a period, with their factors; with fragments, those of each round and class
    of edges that exchange the same one. `mixings` are the matrices of a directed graph, in place of `graphs`. `by_rule`
    mixes in place of both.
    """

    def __init__(
        self,
        initial: Tensor,
        samples: NDArray[np.float64],
        graphs: Sequence[tuple[Integers, NDArray[np.float64]]],
        train: Train,
        *,
        compressor: Compressor | None = None,
        memory: MethodMemory | None = None,
        mixings: Sequence[MixingMatrix] = (),
        by_rule: ByRule | None = None,
    ) -> None:
        self.nodes = len(samples)
        self.x = initial.repeat(self.nodes, 1)
        self.fragments = compressor if isinstance(compressor, Fragments) else None
        self.train, self.compressor = train, None if self.fragments else compressor
        self.memory, self.by_rule = memory or MethodMemory(), by_rule
        self.flows = memory if isinstance(memory, Flows) else None
        self.chunk = max(1, CHUNK_FLOATS // len(initial))
        self.shown = self.x.clone() if self.compressor else self.x
        self.steps = [self._step(*graph, 1.0 / samples) for graph in graphs]
        self.steps += [self._sparse(mixing.receivers, mixing.senders, mixing.weights) for mixing in mixings]
        """For each graph, the rows of W - I."""
        self.period = len(self.steps) // (self.fragments.count if self.fragments else 1)
        self.pulls = [
            self._step(ends, factor / self.flows.of_edges(ends), np.ones(self.nodes))
            for ends, factor in graphs
            if self.flows is not None
        ]

    def run(self, rounds: int, closing: int, *, first: int = 0) -> Iterator[int]:
        """Yield the number of each round that is done; the last `closing` ones only mix. `first` have been before."""
        for number in range(first, rounds + closing):
            if number < rounds:
                self._train(number)
            self._mix(number)
            yield number + 1

    def _train(self, number: int) -> None:
        for first in range(0, self.nodes, self.chunk):
            nodes = np.arange(first, min(first + self.chunk, self.nodes))
            part = slice(first, first + len(nodes))
            done, models, given = np.full(len(nodes), number), self.x[part], self.memory.given(nodes)
            before = models.clone() if self.memory.changes else models
            self.train(nodes, done, models, given)
            if self.memory.changes:
                models.copy_(before + self.memory.commit(nodes, done, before, models - before))

    def _mix(self, number: int) -> None:
        if self.compressor is not None:
            self._show(self.compressor, number)
        else:
            self.shown = self.x
        if self.by_rule is not None:
            self.by_rule.mix(self.x, self.shown, number)
            return
        for place, part in self._parts(number):
            shown = self.shown[:, part]
            if self.flows is not None:
                self.flows.sums[:, part] += _product(self.pulls[place], shown)
            self.x[:, part] += _product(self.steps[place], shown)

    def _parts(self, number: int) -> Iterator[tuple[int, slice]]:
        """Yield which of `steps` moves which values in a round."""
        phase = number % self.period
        if self.fragments is None:
            yield phase, slice(None)
            return
        count, seq = self.fragments.count, 1 + number // self.period
        for kind in range(count):
            (part,) = self.fragments.slices(turn_of(count, kind, 0, seq), self.x.shape[1])
            yield phase * count + kind, part

    def _show(self, compressor: Compressor, number: int) -> None:
        for first in range(0, self.nodes, self.chunk):
            part = slice(first, min(first + self.chunk, self.nodes))
            change = (self.x[part] - self.shown[part]).cpu().numpy()
            senders = range(part.start, part.stop)
            chances = [chance_of(node, node, 0, number) for node in senders] if compressor.random else None
            compressor.quantize_rows(change, chances=chances, out=change)
            self.shown[part] += torch.from_numpy(change).to(self.x.device)

    def _step(self, ends: Integers, factor: NDArray[np.float64], weight: NDArray[np.float64]) -> Sparse:
        """Return the matrix (n, n) whose row i sums factor (h_j - h_i) over its edges, times weight_i."""
        to = np.concatenate([ends[:, 0], ends[:, 1]])
        return self._sparse(to, np.concatenate([ends[:, 1], ends[:, 0]]), np.tile(factor, 2) * weight[to])

    def _sparse(self, to: Integers, of: Integers, share: NDArray[np.float64]) -> Sparse:
        """Return the matrix (n, n) whose row `to` sums share (h_of - h_to) over its links."""
        diagonal = np.arange(self.nodes)
        rows, columns = np.concatenate([to, diagonal]), np.concatenate([of, diagonal])
        values = np.concatenate([share, -np.bincount(to, share, self.nodes)])
        order = np.argsort(rows, kind="stable")
        starts = np.searchsorted(rows[order], diagonal)
        made = [torch.from_numpy(part).to(self.x.device) for part in (columns[order], starts, values[order])]
        return made[0], made[1], made[2].to(self.x.dtype)


def _product(matrix: Sparse, rows: Tensor) -> Tensor:
    """Return matrix @ rows: twice as fast as torch's sparse matrices."""
    columns, starts, values = matrix
    return embedding_bag(columns, rows, starts, per_sample_weights=values, mode="sum")
