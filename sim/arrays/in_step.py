"""D-PSGD in step, as mathematics: all nodes train a round, then each edge of the graph exchanges once.

x <- x + (W - I) h with W_ij = k_ij / n_i (Lian et al. 2017, arXiv 1705.09056); with a compressor h += Q(x - h) first
(CHOCO-SGD: Koloskova et al. 2019, arXiv 1902.00340). A schedule uses the edges of one of its graphs in each round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2pfl.compress import Compressor
from p2pfl.engine.codecs import chance_of
from sim.arrays.vectors import CHUNK_FLOATS, Integers, Train


class InStep:
    """Models `x` (n, d), moved round by round. `graphs` has the edges of each round of a period, with their factors."""

    def __init__(
        self,
        initial: Tensor,
        samples: NDArray[np.float64],
        graphs: Sequence[tuple[Integers, NDArray[np.float64]]],
        train: Train,
        *,
        compressor: Compressor | None,
        drift: NDArray[np.float64] | None,
        beta: float,
    ) -> None:
        self.nodes = len(samples)
        self.x = initial.repeat(self.nodes, 1)
        self.train, self.compressor, self.beta = train, compressor, beta
        self.chunk = max(1, CHUNK_FLOATS // len(initial))
        self.weight = torch.as_tensor(1.0 / samples, dtype=self.x.dtype, device=self.x.device)
        self.shown = self.x.clone() if compressor else self.x
        self.flow = torch.zeros_like(self.x) if drift is not None else None
        self.steps = [self._step(*graph, 1.0 / samples) for graph in graphs]
        """For each graph, the rows of W - I."""
        self.pulls = [
            self._step(ends, factor / np.maximum(drift[ends[:, 0]], drift[ends[:, 1]]), np.ones(self.nodes))
            for ends, factor in graphs
            if drift is not None
        ]

    def run(self, rounds: int, closing: int) -> Iterator[int]:
        """Yield the number of each round that is done; the last `closing` ones only mix."""
        for number in range(rounds + closing):
            if number < rounds:
                self._train(number)
            self._mix(number % len(self.steps), number)
            yield number + 1

    def _train(self, number: int) -> None:
        for first in range(0, self.nodes, self.chunk):
            nodes = np.arange(first, min(first + self.chunk, self.nodes))
            part = slice(first, first + len(nodes))
            given = None if self.flow is None else self.flow[part] * (self.weight[part, None] * -self.beta)
            gained = self.x[part].clone()
            self.train(nodes, np.full(len(nodes), number), gained, given)
            self.x[part] += gained

    def _mix(self, phase: int, number: int) -> None:
        if self.compressor is not None:
            self._show(self.compressor, number)
        if self.flow is not None:
            self.flow += self.pulls[phase] @ self.shown
        step = self.steps[phase] @ self.shown
        self.x += step
        if self.compressor is None:
            self.shown = self.x

    def _show(self, compressor: Compressor, number: int) -> None:
        for first in range(0, self.nodes, self.chunk):
            part = slice(first, min(first + self.chunk, self.nodes))
            change = (self.x[part] - self.shown[part]).cpu().numpy()
            senders = range(part.start, part.stop)
            chances = [chance_of(node, node, 0, number) for node in senders] if compressor.random else None
            compressor.quantize_rows(change, chances=chances, out=change)
            self.shown[part] += torch.from_numpy(change).to(self.x.device)

    def _step(self, ends: Integers, factor: NDArray[np.float64], weight: NDArray[np.float64]) -> Tensor:
        """Return the sparse matrix (n, n) whose row i sums factor (h_j - h_i) over its edges, times weight_i."""
        low, high = ends.T
        diagonal = np.arange(self.nodes)
        total = np.bincount(low, factor, self.nodes) + np.bincount(high, factor, self.nodes)
        rows, columns = np.concatenate([low, high, diagonal]), np.concatenate([high, low, diagonal])
        values = np.concatenate([factor, factor, -total]) * weight[rows]
        made = torch.sparse_coo_tensor(
            torch.from_numpy(np.stack([rows, columns])),
            torch.from_numpy(values).to(self.x.dtype),
            (self.nodes, self.nodes),
            device=self.x.device,
            check_invariants=False,
        )
        return made.coalesce()
