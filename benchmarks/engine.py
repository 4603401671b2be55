"""The cost of the engine's operations: CPU-nanoseconds for each parameter, and memory beyond what the node always
holds.

Two engines with one edge exchange and train; no disk, no network. `codec` is the compressor's share of an exchange: a
request and a reply are encoded once each, and each is decoded at both ends. `peak` is the most memory that tracemalloc
saw above the start, in multiples of the model, payloads included.

Usage: python benchmarks/engine.py [--parameters 10k,1M] [--compressors q4,none] [--repeats 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from p2pfl.compress import make_compressor
from p2pfl.core.effects import ApplyReply, ApplyRequest, CommitRound, Freeze, Operation
from p2pfl.engine.codecs import Codecs
from p2pfl.engine.engine import Engine, Outcome
from p2pfl.engine.state import NodeState
from p2pfl.learn.interface import LocalRound
from p2pfl.methods.variate import Variate

SUFFIXES = {"k": 1_000, "M": 1_000_000}
Costs = dict[str, float]


class Pair:
    """Initiator 0 and responder 1, whose models differ by the training of a round."""

    def __init__(self, spec: str, size: int) -> None:
        chance = np.random.default_rng(0)
        self.codec, self.size = make_compressor(spec), size
        start = chance.standard_normal(size, dtype=np.float32)
        self.step = chance.standard_normal(size, dtype=np.float32) * np.float32(0.01)
        self.engines = []
        for index in (0, 1):
            state = NodeState.new(start, 100, (1 - index,), method=Variate())
            self.engines.append(Engine(index=index, state=state, codecs=Codecs(self.codec), method=Variate()))
        self.seq = 0

    def exchange(self, clock: Callable[[str, Callable[[], Outcome]], Outcome]) -> None:
        """One transaction, after a round at each end; `clock` runs each operation under its name."""
        self.seq += 1
        for index in (0, 1):
            start = self.engines[index].begin_round(accompanied=True).model
            local = LocalRound(vector=start + self.step, steps=5, learning_rate=0.1, samples=100, loss=0.0)
            self.engines[index].outcomes.put((start, local))
            commit = CommitRound(version=self.seq, trained=True, rho=1.0, elapsed_s=1.0, least_samples=0.0)
            clock("CommitRound", self._run(index, commit))
        freeze = Freeze(
            peer=1,
            incarnation=0,
            seq=self.seq,
            version=self.seq,
            echo=None,
            weight=50.0,
            staleness=1.0,
            pace_s=0.0,
            audit=False,
        )
        request = clock("Freeze", self._run(0, freeze)).event.request  # type: ignore[union-attr]
        apply = ApplyRequest(peer=0, request=request, factor=25.0, weight=50.0, version=self.seq, pace_s=0.0)
        reply = clock("ApplyRequest", self._run(1, apply)).event.reply  # type: ignore[union-attr]
        clock("ApplyReply", self._run(0, ApplyReply(peer=1, reply=reply)))

    def _run(self, index: int, operation: Operation) -> Callable[[], Outcome]:
        return lambda: self.engines[index].run(operation)

    def codec_ns(self) -> float:
        out = np.empty(self.size, np.float32)
        began = time.process_time_ns()
        payload = self.codec.encode(self.step)
        middle = time.process_time_ns()
        self.codec.decode(payload, self.size, out)
        return (2 * (middle - began) + 4 * (time.process_time_ns() - middle)) / self.size


def measured(spec: str, size: int, repeats: int) -> Costs:
    """Return the least of some exchanges, in ns for each parameter; `peak` in models."""
    pair, best = Pair(spec, size), {}
    inner = max(1, 200_000 // size)

    def clock(name: str, run: Callable[[], Outcome]) -> Outcome:
        began = time.process_time_ns()
        outcome = run()
        spent[name] = spent.get(name, 0.0) + (time.process_time_ns() - began) / size
        return outcome

    for _ in range(repeats + 1):
        spent: Costs = {}
        for _ in range(inner):
            pair.exchange(clock)
        spent["CommitRound"] /= 2
        for name, cost in spent.items():
            best[name] = min(best.get(name, float("inf")), cost / inner)
    best["exchange"] = best["Freeze"] + best["ApplyRequest"] + best["ApplyReply"]
    best["codec"] = min(pair.codec_ns() for _ in range(repeats * inner))
    return best | {"peak": peak(pair)}


def peak(pair: Pair) -> float:
    """Return the most memory that one operation of an exchange took, beyond that at its start."""
    worst = 0

    def watch(name: str, run: Callable[[], Outcome]) -> Outcome:
        nonlocal worst
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        outcome = run()
        if name != "CommitRound":
            worst = max(worst, tracemalloc.get_traced_memory()[1] - before)
        return outcome

    tracemalloc.start()
    pair.exchange(watch)
    tracemalloc.stop()
    return worst / (4 * pair.size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", default="10k,100k,1M,25M")
    parser.add_argument("--compressors", default="q4,none")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = ("CommitRound", "Freeze", "ApplyRequest", "ApplyReply", "exchange", "codec", "peak")
    print(f"{'compressor':12} {'parameters':>10} " + " ".join(f"{name:>12}" for name in names))
    rows = []
    for spec in options.compressors.split(","):
        for text in options.parameters.split(","):
            size = int(text.rstrip("kM")) * SUFFIXES.get(text[-1], 1)
            costs = measured(spec, size, options.repeats)
            rows.append({"compressor": spec, "parameters": size, **costs})
            print(f"{spec:12} {text:>10} " + " ".join(f"{costs[name]:12.2f}" for name in names), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
