"""The cost and accuracy of each compressor: bytes per parameter, speed on one thread, guaranteed and measured delta.

GB/s are 10^9 bytes of float32 vector per CPU-second, the best of several interleaved repeats: `encode`; `decode` into
existing memory; `both`, encoding that also returns the decoded payload (as for every message sent); and `quantize`,
only the decoded payload. The yardstick is `np.copyto` of the same vector. Delta is 1 - |v - Q(v)|^2 / |v|^2, measured
on a million values, Gaussian, Laplace and heavy-tailed (a Gaussian times a log-normal of sigma 1.5), and on the update
from one pass over the digits in a 64-512-512-10 network. One vector of --size values, and --rows of 2,410 values at
once.

Usage: python benchmarks/codecs.py [--size 25000000] [--rows 64] [--seconds 90] [--specs q4,top-k:0.05+q8] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from p2pfl.compress import EXAMPLES, Compressor, make_compressor
from p2pfl.learn.digits import load_digits

MORE = ("rotate+q8", "top-k:0.05+q4", "top-k:0.01+float16", "random-k:0.1+rotate+q4", "q4+zstd")
ROW, MILLION = 2410, 1_000_000
OPERATIONS = ("encode", "both", "decode", "quantize")
Rows = NDArray[np.float32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=25_000_000, help="values of the large vector")
    parser.add_argument("--rows", type=int, default=64, help=f"vectors of {ROW} values at once")
    parser.add_argument("--specs", help="default: one of every kind, and chains")
    parser.add_argument("--repeats", type=int, default=3, help="at most")
    parser.add_argument("--seconds", type=float, default=90, help="no repeat begins later, except the first of each")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    specs = options.specs.split(",") if options.specs else [*EXAMPLES, *MORE]
    codecs = {spec: make_compressor(spec) for spec in specs}
    chance = np.random.default_rng(0)
    vector = chance.standard_normal((1, options.size), dtype=np.float32)
    rows = chance.standard_normal((options.rows, ROW), dtype=np.float32)
    until = time.monotonic() + options.seconds
    fast = {"rows": Speeds(codecs, rows), "vector": Speeds(codecs, vector)}
    for speeds in fast.values():
        speeds.measure(options.repeats, until)
    chance = np.random.default_rng(1)
    vectors = {
        "gaussian": chance.standard_normal(MILLION).astype(np.float32),
        "laplace": chance.laplace(size=MILLION).astype(np.float32),
        "heavy": (chance.standard_normal(MILLION) * chance.lognormal(sigma=1.5, size=MILLION)).astype(np.float32),
        "update": an_update(),
    }
    report = {
        "size": options.size,
        "rows": [options.rows, ROW],
        "copy_gb_s": {name: speeds.gb_s("copy", "copy") for name, speeds in fast.items()},
        "codecs": [described(codec, options.size, vectors, fast) for codec in codecs.values()],
    }
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))


class Speeds:
    """The smallest CPU-seconds for each operation of each codec on the same rows."""

    def __init__(self, codecs: dict[str, Compressor], rows: Rows) -> None:
        self.codecs = codecs
        self.rows = rows
        self.out = rows.copy()  # existing memory
        self.best: dict[tuple[str, str], float] = {}

    def measure(self, repeats: int, until: float) -> None:
        """Measure; a small input is repeated more often, for long enough that the clock can resolve it."""
        times = max(1, 2_000_000 // max(1, self.rows.size))
        for repeat in range(repeats):
            for codec in (None, *self.codecs.values()):
                if repeat and time.monotonic() > until:
                    return
                for _ in range(times):
                    self._once(codec)

    def gb_s(self, spec: str, operation: str) -> float | None:
        taken = self.best.get((spec, operation))
        return None if taken is None else self.rows.nbytes / max(taken, 1e-9) / 1e9

    def _once(self, codec: Compressor | None) -> None:
        if codec is None:
            self._timed("copy", "copy", lambda: np.copyto(self.out, self.rows))
        elif len(self.rows) == 1:
            self._vector(codec)
        else:
            self._many(codec)

    def _vector(self, codec: Compressor) -> None:
        vector, out = self.rows[0], self.out[0]
        payload = self._timed(codec.spec, "encode", lambda: codec.encode(vector, chance=1))
        self._timed(codec.spec, "decode", lambda: codec.decode(payload, vector.size, out))
        self._timed(codec.spec, "both", lambda: codec.encode(vector, chance=1, decoded=out))
        self._timed(codec.spec, "quantize", lambda: codec.quantize_rows(self.rows, chances=[1], out=self.out))

    def _many(self, codec: Any) -> None:
        rows, out, chances = self.rows, self.out, range(len(self.rows))
        if codec.fixed:
            payloads = self._timed(codec.spec, "encode", lambda: codec.encode_rows(rows, chances=chances))
            self._timed(codec.spec, "decode", lambda: codec.decode_rows(payloads, rows.shape[1], out))
            self._timed(codec.spec, "both", lambda: codec.encode_rows(rows, chances=chances, decoded=out))
        self._timed(codec.spec, "quantize", lambda: codec.quantize_rows(rows, chances=chances, out=out))

    def _timed(self, spec: str, operation: str, do: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = do()
        taken = time.process_time() - began
        self.best[spec, operation] = min(taken, self.best.get((spec, operation), taken))
        return result


def an_update() -> Rows:
    """Return the change of all parameters in the second pass over the digits."""
    torch.manual_seed(1)
    (inputs, labels), _ = load_digits()
    layers = [torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU()]
    network = torch.nn.Sequential(torch.nn.Flatten(), *layers, torch.nn.Linear(512, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    vectors = []
    for _ in range(2):
        for part in torch.randperm(len(inputs)).split(32):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(inputs[part]), labels[part]).backward()
            optimizer.step()
        vectors.append(torch.nn.utils.parameters_to_vector(network.parameters()).detach().clone())
    return (vectors[1] - vectors[0]).numpy().astype(np.float32)


def described(codec: Compressor, size: int, vectors: dict[str, Rows], fast: dict[str, Speeds]) -> dict[str, Any]:
    payload = codec.encode(vectors["update"], chance=1)
    return {
        "spec": codec.spec,
        "fixed": codec.fixed,
        "bytes_a_parameter": codec.size_bytes(size) / size,
        "bytes_a_parameter_update": len(payload) / vectors["update"].size,
        "delta": codec.delta(size),
        "delta_measured": {name: delta_of(codec, vector) for name, vector in vectors.items()},
        "gb_s": {name: {each: speeds.gb_s(codec.spec, each) for each in OPERATIONS} for name, speeds in fast.items()},
    }


def delta_of(codec: Compressor, vector: Rows) -> float:
    """Measure the delta of one encoding; with so many values its randomness hardly matters."""
    error = vector - codec.decode(codec.encode(vector, chance=1), vector.size)
    return 1 - float(np.square(error, dtype=np.float64).sum() / np.square(vector, dtype=np.float64).sum())


def show(report: dict[str, Any]) -> None:
    copies = ", ".join(f"{name} {value:.1f}" for name, value in report["copy_gb_s"].items())
    print(f"np.copyto, GB/s: {copies}\n")
    shapes = f"one vector of {report['size']:,}", f"{report['rows'][0]} rows of {report['rows'][1]:,}"
    print(f"{'':24}{'bytes a value':>15}{'delta':>45}" + "".join(f"{'GB/s: ' + shape:>32}" for shape in shapes))
    heads = "".join(f"{each:>8}" for each in ("encode", "both", "decode", "quant."))
    deltas = "".join(f"{each:>9}" for each in ("at least", "Gaussian", "Laplace", "heavy", "update"))
    print(f"{'spec':24}{'at most':>8}{'update':>7}{deltas}{heads}{heads}")
    for row in report["codecs"]:
        line = (
            f"{row['spec']:24}{row['bytes_a_parameter']:8.3f}{row['bytes_a_parameter_update']:7.3f}{row['delta']:9.5f}"
        )
        line += "".join(f"{value:9.5f}" for value in row["delta_measured"].values())
        for speeds in (row["gb_s"]["vector"], row["gb_s"]["rows"]):
            line += "".join(f"{'-':>8}" if value is None else f"{value:8.2f}" for value in speeds.values())
        print(line)


if __name__ == "__main__":
    main()
