"""What each site tells all others when LightGBM sums by functions of the caller's: its own numbers, in the open.

Three sites are threads of one process, whose reduce-scatter and allgather pass on what they are given, and write it
down. Printed is what the second site's allgather hands out, read as what it is. Needs lightgbm.
Usage: python benchmarks/lightgbm_summands.py
"""

from __future__ import annotations

import ctypes
import threading

import numpy as np

try:
    import lightgbm
    from lightgbm.basic import _LIB
except ImportError:
    lightgbm = None

SITES = 3
SHOWN = 1
STARTS = (0, 500, 1400, 3000)
PLACES = ctypes.POINTER(ctypes.c_int32)
BYTES, INT = ctypes.c_void_p, ctypes.c_int32
GATHER = ctypes.CFUNCTYPE(None, BYTES, INT, PLACES, PLACES, INT, BYTES, INT)
SCATTER = ctypes.CFUNCTYPE(None, BYTES, INT, INT, PLACES, PLACES, INT, BYTES, INT, ctypes.POINTER(BYTES))
REDUCE = ctypes.CFUNCTYPE(None, BYTES, BYTES, INT, INT)
OPTIONS = {
    "objective": "binary",
    "tree_learner": "data",
    "num_machines": SITES,
    "num_threads": 1,
    "num_leaves": 7,
    "max_bin": 15,
    "verbose": -1,
    "pre_partition": True,
}


class Site:
    """One site's two functions, and what it has handed out by name of the function."""

    def __init__(self, rank: int, boxes: list[bytes], barrier: threading.Barrier) -> None:
        self.rank, self.boxes, self.barrier = rank, boxes, barrier
        self.told: list[tuple[str, bytes]] = []
        self.functions = SCATTER(self.scatter), GATHER(self.gather)

    def exchange(self, name: str, block: bytes) -> list[bytes]:
        self.told.append((name, block))
        self.boxes[self.rank] = block
        self.barrier.wait()
        found = list(self.boxes)
        self.barrier.wait()
        return found

    def gather(self, given: int, _: int, starts: PLACES, sizes: PLACES, __: int, out: int, ___: int) -> None:
        blocks = self.exchange("allgather", ctypes.string_at(given, sizes[self.rank]))
        for start, block in zip(starts[:SITES], blocks, strict=True):
            ctypes.memmove(out + start, block, len(block))

    def scatter(  # noqa: PLR0917 - the library calls it
        self, given: int, size: int, item: int, starts: PLACES, sizes: PLACES, _: int, out: int, __: int, add: PLACES
    ) -> None:
        blocks = self.exchange("reduce-scatter", ctypes.string_at(given, size))
        start, own = starts[self.rank], sizes[self.rank]
        ctypes.memmove(out, blocks[0][start : start + own], own)
        for block in blocks[1:]:
            part = ctypes.create_string_buffer(block[start : start + own], own)
            REDUCE(add[0])(ctypes.addressof(part), out, item, own)

    def train(self, cells: np.ndarray, targets: np.ndarray) -> None:
        scatter, gather = (ctypes.cast(function, BYTES) for function in self.functions)
        failed = _LIB.LGBM_NetworkInitWithFunctions(SITES, self.rank, scatter, gather)
        if failed:
            raise RuntimeError("no network")
        model = lightgbm.Booster(OPTIONS, lightgbm.Dataset(cells, targets, params=OPTIONS))
        model.update()


def meaning(block: bytes, cells: np.ndarray) -> str:
    """Say what is in a block: one number, the sums of a root, or numbers of the site's own columns."""
    if len(block) == 4:
        return f"= {np.frombuffer(block, '<i4')[0]}"
    if len(block) == 8:
        return f"= {np.frombuffer(block, '<f8')[0]:g}"
    if len(block) == 24:
        gradients, hessians = np.frombuffer(block[:16], "<f8").tolist()
        return f"= sums {gradients:g} and {hessians:g}, rows {np.frombuffer(block[16:], '<i8')[0]}"
    numbers = np.concatenate(
        [np.frombuffer(block[start:][: (len(block) - start) // 8 * 8], "<f8") for start in range(8)]
    )
    ends = middles = 0
    for column in np.sort(cells, axis=0).T:
        ends += int(np.isin(column[[0, -1]], numbers).sum())
        between = (column[1:] + column[:-1]) / 2
        middles += int(np.isin([between, np.nextafter(between, np.inf)], numbers).sum())
    return f"with {ends} least or greatest values of its columns, {middles} middles of two neighboring values"


def main() -> None:
    if lightgbm is None:
        print("lightgbm is not installed")
        return
    rng = np.random.default_rng(0)
    cells = rng.normal(size=(STARTS[-1], 5))
    targets = (cells[:, 0] + cells[:, 1] * cells[:, 2] + rng.normal(size=len(cells)) > 0).astype(float)
    barrier, boxes = threading.Barrier(SITES), [b""] * SITES
    sites = [Site(rank, boxes, barrier) for rank in range(SITES)]
    parts = [slice(*STARTS[rank : rank + 2]) for rank in range(SITES)]
    threads = [
        threading.Thread(target=site.train, args=(cells[part], targets[part]))
        for site, part in zip(sites, parts, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    own = parts[SHOWN]
    print(f"site {SHOWN} has {len(targets[own])} rows, {targets[own].sum():g} of them positive, and hands out")
    for name, block in sites[SHOWN].told:
        print(f"{name:>14} {len(block):5} bytes {meaning(block, cells[own]) if name == 'allgather' else ''}")


if __name__ == "__main__":
    main()
