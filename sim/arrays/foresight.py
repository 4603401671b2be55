"""What a run of arrays will take, said before it begins: CPU time, by a short measurement, and memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from p2pfl.compress import Fragments
from p2pfl.console.output import size
from sim.arrays.setting import Setting
from sim.arrays.vectors import CHUNK_FLOATS
from sim.federations import arrays_bytes, refuse_too_large
from sim.learning.rounds import Rounds
from sim.progress import duration

PER_ROUND = 1.5
"""Exchanges of an edge in a round of nodes that are apart, measured beside the exact simulator."""
PASSES = 20
"""An exchange without its compressor takes as long as so many copies of a model."""


def checked_bytes(setting: Setting, *, in_step: bool) -> int:
    """Return the bytes that a run needs. Raises UserError, with what is available, if it does not fit; on a GPU that is
    left to torch.
    """
    shape: dict[str, Any] = {"nodes": setting.nodes, "edges": len(setting.ends), "size": setting.size}
    replicas, corrected = setting.compressor is not None, len(setting.method.kept) or bool(setting.method.given)
    needed = arrays_bytes(**shape, in_step=in_step, replicas=replicas, corrected=corrected)
    if setting.device.type == "cpu":
        refuse_too_large(needed, **shape)
    return needed


def foreseen(setting: Setting, train: Rounds, needed: int, *, in_step: bool) -> str:
    """Say what the run will take, `needed` bytes of memory. Times a local round of a few nodes, and the compressor on
    their models.
    """
    nodes = np.arange(min(setting.nodes, max(1, CHUNK_FLOATS // setting.size)))
    models, compressor = setting.initial.repeat(len(nodes), 1), setting.compressor
    given = torch.zeros_like(models) if setting.method.given else None
    round_s = _took(lambda: train(nodes, 0 * nodes, models.clone(), given))
    train.losses[:] = np.nan
    moved_s, shown_s = PASSES * _took(models.clone), 0.0
    if compressor is not None and not isinstance(compressor, Fragments):
        rows = np.random.default_rng(0).normal(size=models.shape).astype(np.float32)
        chances = nodes.tolist() if compressor.random else None
        shown_s = _took(lambda: compressor.quantize_rows(rows, chances=chances))
    mixings = setting.rounds + setting.federation.training.closing_rounds
    mixed = mixings * (1 if in_step else PER_ROUND) * len(setting.ends)
    shown = mixings * setting.nodes if in_step else 2 * mixed
    cpu_s = (setting.rounds * setting.nodes * round_s + mixed * moved_s + shown * shown_s) / len(nodes)
    return f"about {duration(max(1.0, cpu_s))} of CPU for the rounds, {size(needed)} of memory"


def _took(call: Callable[[], object]) -> float:
    """Return the CPU time of a call, after one that warms up."""
    call()
    began = time.process_time()
    call()
    return time.process_time() - began
