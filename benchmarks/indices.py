"""Bytes and time of the places of k of d values, coded in several ways, with and without zstd.

Places are drawn uniformly, or are those of the largest values of an update: the change by a round of training on the
digits in a network of 64-512-512-10. Prints a table of bits an index, and nanoseconds of CPU an index to code and to
decode; `entropy` is log2(d over k) / k.

Usage: python benchmarks/indices.py [--level 1] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from p2pfl.compress import entropy
from p2pfl.compress.indices import GAPS, PACKED, largest
from p2pfl.learn.digits import load_digits

DENSITIES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", type=int, default=entropy.LEVEL)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    update = an_update()
    print("bits an index: alone / with zstd; then nanoseconds to code / to decode, without zstd / and what zstd adds\n")
    print(f"{'places':9}{'density':>8}{'entropy':>9}" + "".join(f"{name:>34}" for name in CODES))
    rows = []
    for what in ("uniform", "update"):
        for density in DENSITIES:
            rows.append(one(what, density, update, options.level))
            show(rows[-1])
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def one(what: str, density: float, update: np.ndarray, level: int) -> dict[str, Any]:
    size = update.size
    count = round(density * size)
    if what == "update":
        places = largest(update[None], count)[0]
    else:
        places = np.sort(np.random.default_rng(1).choice(size, count, replace=False))
    entropy = (math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)) / math.log(2) / count
    return {
        "places": what,
        "density": density,
        "size": size,
        "entropy": entropy,
        **{name: measure(code, places, size, level) for name, code in CODES.items()},
    }


def measure(code: Code, places: np.ndarray, size: int, level: int) -> dict[str, float]:
    write, read = code
    plain = write(places, size)
    if not np.array_equal(read(plain, places.size, size), places):
        raise AssertionError("the places are not what was coded")
    frame = np.empty(plain.size + 64, np.uint8)
    used = entropy.compress_frame(plain, frame, level)
    packed = plain.size if used is None else min(used, plain.size)
    bits, scale = 8 / places.size, 1e9 / places.size
    return {
        "bits": plain.size * bits,
        "bits_zstd": packed * bits,
        "ns_code": cpu(lambda: write(places, size)) * scale,
        "ns_decode": cpu(lambda: read(plain, places.size, size)) * scale,
        "ns_zstd": cpu(lambda: entropy.compress_frame(plain, frame, level)) * scale,
        "ns_unzstd": cpu(lambda: entropy.decompress_frame(frame[:used], plain.size)) * scale,
    }


def cpu(do: Callable[[], object]) -> float:
    """Measure seconds of CPU, the least of several."""
    best = math.inf
    for _ in range(REPEATS):
        start = time.process_time()
        do()
        best = min(best, time.process_time() - start)
    return best


def show(row: dict[str, Any]) -> None:
    cells = (
        f"{c['bits']:.2f}/{c['bits_zstd']:.2f} {c['ns_code']:.0f}/{c['ns_decode']:.0f}"
        f"+{c['ns_zstd']:.0f}/{c['ns_unzstd']:.0f}"
        for c in (row[name] for name in CODES)
    )
    print(f"{row['places']:9}{row['density']:>8}{row['entropy']:>9.2f}" + "".join(f"{cell:>34}" for cell in cells))


def an_update() -> np.ndarray:
    """Return the change of all parameters in the second pass over the digits."""
    torch.manual_seed(1)
    (inputs, labels), _ = load_digits()
    layers = [torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU()]
    network = torch.nn.Sequential(torch.nn.Flatten(), *layers, torch.nn.Linear(512, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    before = after = torch.nn.utils.parameters_to_vector(network.parameters()).detach().clone()
    for _ in range(2):
        before = after
        for part in torch.randperm(len(inputs)).split(32):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(inputs[part]), labels[part]).backward()
            optimizer.step()
        after = torch.nn.utils.parameters_to_vector(network.parameters()).detach().clone()
    return (after - before).numpy()


# --- codes ---------------------------------------------------------------------------------------------------------

Code = tuple[Callable[[np.ndarray, int], np.ndarray], Callable[[np.ndarray, int, int], np.ndarray]]


def seam(code: Any) -> Code:
    def write(places: np.ndarray, size: int) -> np.ndarray:
        out = np.empty((1, code.size_bytes(places.size, size)), np.uint8)
        code.write(places[None], size, out)
        return out[0]

    return write, lambda plain, count, size: code.read(plain[None], count, size)[0]


def write_varints(places: np.ndarray, size: int) -> np.ndarray:  # noqa: ARG001
    """Write gaps in groups of seven bits, the lowest first; all but the last have the high bit set."""
    gaps = np.diff(places, prepend=-1) - 1
    lengths = np.ones(gaps.size, np.int64)
    for bits in (7, 14, 21, 28):
        lengths += gaps >> bits > 0
    ends = np.cumsum(lengths)
    out = np.empty(ends[-1], np.uint8)
    starts = ends - lengths
    for place in range(lengths.max()):
        here = lengths > place
        more = np.where(lengths[here] > place + 1, 0x80, 0)
        out[starts[here] + place] = (gaps[here] >> 7 * place & 0x7F) | more
    return out


def read_varints(plain: np.ndarray, count: int, size: int) -> np.ndarray:  # noqa: ARG001
    last = plain < 0x80
    ends = np.flatnonzero(last)
    starts = np.concatenate([[0], ends[:-1] + 1])
    shifts = 7 * (np.arange(plain.size) - np.repeat(starts, ends - starts + 1))
    return np.cumsum(np.add.reduceat((plain & 0x7F).astype(np.int64) << shifts, starts) + 1) - 1


def write_bitmap(places: np.ndarray, size: int) -> np.ndarray:
    bits = np.zeros(size, np.uint8)
    bits[places] = 1
    return np.packbits(bits, bitorder="little")


def read_bitmap(plain: np.ndarray, count: int, size: int) -> np.ndarray:  # noqa: ARG001
    return np.flatnonzero(np.unpackbits(plain, bitorder="little", count=size))


CODES: dict[str, Code] = {
    "varint": (write_varints, read_varints),
    "bitmap": (write_bitmap, read_bitmap),
    "packed": seam(PACKED),
    "gaps": seam(GAPS),
}


if __name__ == "__main__":
    main()
