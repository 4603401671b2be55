"""The cost of each robust rule: CPU-milliseconds on one thread, and multiples of reading the vectors once.

--count vectors of --size float32 values, of which --liars are far off; the best of --repeats interleaved rounds.
Reading once is `numpy.max` of every vector. With --byzfl PYTHON the same vectors go through byzfl's rules in that
interpreter, as a tensor and as an array, whichever is faster, and the results are compared: the largest difference,
relative to the largest value of the result, must be at most 1e-5.

byzfl needs an environment of its own, for it would replace a CPU torch; torchvision, which it imports and no rule
needs, is stubbed here:
    python -m venv /tmp/byzfl && /tmp/byzfl/bin/pip install torch==2.13.0 numpy scipy
    /tmp/byzfl/bin/pip install --no-deps byzfl==0.0.11

Usage: python benchmarks/robust/rules.py [--size 1000000] [--byzfl /tmp/byzfl/bin/python] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np

STUBBED = ("torchvision", "sklearn", "matplotlib", "seaborn")
AGREED = 1e-5
Rule = Callable[[Any], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--liars", type=int, default=4)
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--byzfl", type=Path, metavar="PYTHON")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--theirs", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.theirs:
        measure_theirs(options.theirs, options.liars, options.repeats)
        return
    with tempfile.TemporaryDirectory() as folder:
        vectors = drawn(options.count, options.liars, options.size)
        report = measure_ours(vectors, options.liars, options.repeats, Path(folder))
        if options.byzfl:
            compare(report, vectors, options, Path(folder))
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))
    if any(row.get("difference", 0) > AGREED for row in report["rules"]):
        sys.exit("a rule differs from byzfl's")


def drawn(count: int, liars: int, size: int) -> np.ndarray[Any, Any]:
    """Draw models: the common part is ten times as large as the differences; the last ones are lies, ten times as far
    away.
    """
    chance = np.random.default_rng(0)
    vectors = chance.standard_normal((count, size), dtype=np.float32)
    vectors[count - liars :] *= 10
    vectors += 10 * chance.standard_normal(size, dtype=np.float32)
    return vectors


def ours(f: int) -> Mapping[str, Rule]:
    from p2pfl import aggregate  # noqa: PLC0415 - byzfl's environment has none of it

    plain: dict[str, Any] = {
        "Mean": aggregate.TrimmedMean(0),
        "Median": aggregate.Median(),
        "TrMean": aggregate.TrimmedMean(f),
        "GeometricMedian": aggregate.GeometricMedian(),
        "MoNNA": aggregate.MoNNA(f),
        "SelfCenteredClipping": aggregate.SelfCenteredClipping(f),
        "ClippedSum": aggregate.ClippedSum(f),
        "Hampel": aggregate.Hampel(f),
    }
    for name in ("TrMean", "Median", "GeometricMedian"):
        plain[f"NNM, {name}"] = aggregate.NNM(plain[name], f)
    return plain


def theirs(f: int) -> Mapping[str, Rule]:
    sys.meta_path.insert(0, Stubs())
    byzfl = importlib.import_module("byzfl")  # only in its own environment

    plain: dict[str, Any] = {
        "Mean": byzfl.Average(),
        "Median": byzfl.Median(),
        "TrMean": byzfl.TrMean(f=f),
        "MoNNA": byzfl.MoNNA(f=f),
    }
    mixed = byzfl.NNM(f=f)
    for name in ("TrMean", "Median"):
        plain[f"NNM, {name}"] = lambda vectors, rule=plain[name]: rule(mixed(vectors))
    return plain


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stubs for modules that byzfl imports and its rules do not use."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002 - import's
        known = fullname.partition(".")[0] in STUBBED
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if known else None

    def create_module(self, spec: Any) -> Any:  # noqa: ARG002 - import's
        return MagicMock(__path__=[], __spec__=None)

    def exec_module(self, module: Any) -> None:
        pass


def measure_ours(vectors: Any, liars: int, repeats: int, folder: Path) -> dict[str, Any]:
    rules = ours(liars)
    calls: dict[str, Callable[[], Any]] = {"read": lambda: [row.max() for row in vectors]}
    calls |= {name: lambda rule=rule: rule(vectors) for name, rule in rules.items()}
    best = interleaved(calls, repeats)
    rows: list[dict[str, Any]] = []
    for number, (name, rule) in enumerate(rules.items()):
        np.save(folder / f"ours-{number}.npy", rule(vectors))
        rows.append({"rule": name, "ms": best[name], "reads": best[name] / best["read"]})
    return {"vectors": list(vectors.shape), "liars": liars, "read_ms": best["read"], "rules": rows}


def interleaved(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the smallest CPU-milliseconds for each call."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            begun = time.process_time()
            call()
            best[name] = min(best[name], 1000 * (time.process_time() - begun))
    return best


def measure_theirs(folder: Path, liars: int, repeats: int) -> None:
    """Run in byzfl's environment: write results and costs to the folder."""
    import torch  # noqa: PLC0415 - only there

    torch.set_num_threads(1)
    array = np.load(folder / "vectors.npy")
    kinds = {"array": array, "tensor": torch.from_numpy(array.copy())}
    results = {}
    for number, (name, rule) in enumerate(theirs(liars).items()):
        calls = {kind: lambda vectors=vectors, rule=rule: rule(vectors) for kind, vectors in kinds.items()}
        results[name] = {"number": number, **interleaved(calls, repeats)}
        for kind, vectors in kinds.items():
            np.save(folder / f"{kind}-{number}.npy", np.asarray(rule(vectors)))
    (folder / "theirs.json").write_text(json.dumps(results))


def compare(report: dict[str, Any], vectors: Any, options: argparse.Namespace, folder: Path) -> None:
    np.save(folder / "vectors.npy", vectors)
    command = [options.byzfl, __file__, "--theirs", folder, "--liars", options.liars, "--repeats", options.repeats]
    subprocess.run(list(map(str, command)), check=True)
    results = json.loads((folder / "theirs.json").read_text())
    for number, row in enumerate(report["rules"]):
        if row["rule"] in results:
            other = results[row["rule"]]
            mine = np.load(folder / f"ours-{number}.npy").astype(np.float64)
            yours = [np.load(folder / f"{kind}-{other['number']}.npy") for kind in ("array", "tensor")]
            # Of their two answers, which differ from each other too, take the one that agrees.
            row["difference"] = min(float(np.abs(mine - your).max() / np.abs(mine).max()) for your in yours)
            row["byzfl_array_ms"], row["byzfl_tensor_ms"] = other["array"], other["tensor"]
            row["faster"] = min(other["array"], other["tensor"]) / row["ms"]


def show(report: dict[str, Any]) -> None:
    count, size = report["vectors"]
    print(f"{count} vectors of {size}, f={report['liars']}: reading once takes {report['read_ms']:.1f} ms of CPU")
    heads = ["ms", "reads", "byzfl array", "tensor", "faster", "difference"]
    print(f"{'rule':27}", *(f"{head:>11}" for head in heads))
    for row in report["rules"]:
        line = f"{row['rule']:27} {row['ms']:11.1f} {row['reads']:11.1f}"
        if "faster" in row:
            line += f" {row['byzfl_array_ms']:11.1f} {row['byzfl_tensor_ms']:11.1f} {row['faster']:11.1f}"
            line += f" {row['difference']:11.1e}"
        print(line)


if __name__ == "__main__":
    main()
