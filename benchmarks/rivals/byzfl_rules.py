"""Robust rules of p2pfl beside byzfl 0.0.11's: milliseconds of CPU on one thread, and what NaN does to them.

20 vectors of a million float32, a common part ten times as large as the differences, the last four ten times as far
away. A rule's calls take turns in one process; its figure is the best of three. byzfl gets an array and a tensor, and
the faster counts; p2pfl an array. The results may differ by rounding. byzfl's geometric median takes three steps, its
default, p2pfl's goes on until float64 is exhausted. Krum and Multi-Krum are byzfl's alone: p2pfl takes them from there
(`rule = "byzfl:Krum,b=1"`). byzfl clips around a center that it keeps from call to call: here it is the first vector,
which is p2pfl's own model, and both get the same radius. What NaN do is tried on a thousand values.

`import byzfl` needs torchvision, which cannot be loaded beside a CPU build of torch from elsewhere; no rule needs it.
So byzfl's `__init__` is left out: an empty package of its name lends its folder to `byzfl.aggregators`.

run.py prints what this prints, and keeps it as bench-out/rivals/byzfl_rules.md.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch

from p2pfl import aggregate

PINS = ["byzfl==0.0.11", "-e ROOT[torch]"]
COUNT, LIARS, SIZE, REPEATS, RADIUS = 20, 4, 1_000_000, 3, 1_000.0
Rule = Callable[[Any], Any]


def main() -> None:
    torch.set_num_threads(1)
    vectors = drawn()
    spoilt = vectors[:, :1_000].copy()
    spoilt[-LIARS:] = np.nan
    read = measured({"read": lambda: [row.max() for row in vectors]})[0]["read"]
    print(
        f"n {COUNT}, d {SIZE}, f {LIARS}, CPU-ms on one thread; to read once: {read:.1f}; load {os.getloadavg()[0]:.0f}"
    )
    print("| rule | p2pfl | byzfl, array | byzfl, tensor | its faster / p2pfl | difference | byzfl with four NaN |")
    print("| --- " * 7 + "|", flush=True)
    refused = set()
    for name, (our, their) in pairs().items():
        calls = {"p2pfl": partial(our, vectors)} | {
            form: partial(their, given) for form, given in forms(vectors).items()
        }
        ms, (mine, *others) = measured(calls)
        apart = min(float(np.abs(mine - other).max() / np.abs(mine).max()) for other in others)
        after = ", ".join(f"{form} {outcome(their, given)}" for form, given in forms(spoilt).items())
        shown = [f"{each:.1f}" for each in (*ms.values(), min(ms["array"], ms["tensor"]) / ms["p2pfl"])]
        print(f"| {' | '.join((name, *shown, f'{apart:.0e}', after))} |", flush=True)
        refused.add(outcome(our, spoilt))
    print(f"p2pfl's rules with four NaN: {', '.join(sorted(refused))}; a node refuses such a model before they see it")


def pairs() -> Mapping[str, tuple[Rule, Rule]]:
    """Return what both have, by name: p2pfl's and byzfl's."""
    package = ModuleType("byzfl")
    spec = find_spec("byzfl")
    package.__path__ = list(spec.submodule_search_locations or []) if spec else []
    sys.modules["byzfl"] = package
    from byzfl import aggregators as byzfl  # noqa: PLC0415 - once its parent is there

    mixed, clipping = byzfl.NNM(f=LIARS), byzfl.CenteredClipping(L=1, tau=RADIUS)

    def clipped(vectors: Any) -> Any:
        clipping.m = vectors[0]
        return clipping(vectors)

    plain: dict[str, tuple[Any, Any]] = {
        "mean": (aggregate.TrimmedMean(0), byzfl.Average()),
        "median": (aggregate.Median(), byzfl.Median()),
        "trimmed mean": (aggregate.TrimmedMean(LIARS), byzfl.TrMean(f=LIARS)),
        "geometric median": (aggregate.GeometricMedian(), byzfl.GeometricMedian()),
        "MoNNA": (aggregate.MoNNA(LIARS), byzfl.MoNNA(f=LIARS)),
        "clipping": (aggregate.SelfCenteredClipping(tau=RADIUS), clipped),
    }
    for name in ("median", "trimmed mean", "geometric median"):
        our, their = plain[name]
        plain[f"NNM, {name}"] = (aggregate.NNM(our, LIARS), lambda vectors, rule=their: rule(mixed(vectors)))
    return plain


def drawn() -> np.ndarray[Any, Any]:
    chance = np.random.default_rng(0)
    vectors = chance.standard_normal((COUNT, SIZE), dtype=np.float32)
    vectors[-LIARS:] *= 10
    vectors += 10 * chance.standard_normal(SIZE, dtype=np.float32)
    return vectors


def forms(vectors: np.ndarray[Any, Any]) -> Mapping[str, Any]:
    return {"array": vectors, "tensor": torch.from_numpy(vectors)}


def measured(calls: Mapping[str, Callable[[], Any]]) -> tuple[dict[str, float], list[Any]]:
    """Return the fewest CPU-milliseconds of each call, taken in turn, and their results."""
    fewest, results = dict.fromkeys(calls, float("inf")), dict[str, Any]()
    for _ in range(REPEATS):
        for name, call in calls.items():
            began = time.process_time()
            results[name] = call()
            fewest[name] = min(fewest[name], 1_000 * (time.process_time() - began))
    return fewest, [np.asarray(each, np.float64) for each in results.values()]


def outcome(rule: Rule, vectors: Any) -> str:
    """Return whether a rule's result is finite, or that it raises."""
    with warnings.catch_warnings(action="ignore"):
        try:
            result = np.asarray(rule(vectors))
        except ValueError as error:
            return f"refused ({error})"
    return "finite" if np.isfinite(result).all() else "not finite"


if __name__ == "__main__":
    main()
