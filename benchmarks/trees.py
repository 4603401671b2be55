"""Boosted trees from sums beside XGBoost: AUC and seconds of one thread, for three seeds.

Breast cancer is scikit-learn's; the made table has 100,000 rows and 28 columns, of which ten matter, in products and
thresholds, a twentieth of the cells missing. A fifth of the rows are the test. The rows are in the hands of three
nodes, or of eight, whose parts are added by numpy. Seconds are the process's, of one node that has all rows; for the
nodes together they are the slowest node's. XGBoost (`hist`, max_bin 64, pooled rows) is left out where it is not
installed.
Usage: python benchmarks/trees.py [--rounds 100] [--rows 100000] [--seeds 3]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "learn" / "trees"))
from tree_world import schema_of, settings_of, share, site_of, sum_of

from p2pfl.learn.metrics import BUILT_IN
from p2pfl.learn.trees.bins import as_cells
from p2pfl.learn.trees.growth import TreeGrowth

try:
    import xgboost
except ImportError:
    xgboost = None

COLUMNS = 28


def breast_cancer(seed: int, _: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    from sklearn.datasets import load_breast_cancer  # noqa: PLC0415 - for this table alone

    cells, targets = load_breast_cancer(return_X_y=True)
    return cells.T, targets, np.random.default_rng(seed).random(len(targets)) < 0.2


def made_table(seed: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    cells = rng.normal(size=(COLUMNS, rows))
    a, b, c, d, e, f, g, h, i, j = cells[:10]
    score = a + b * c + (d > 0.5) * e - np.abs(f) + np.sin(2 * g) + (h > 0) * (i > 0) * j
    targets = (score + rng.logistic(size=rows) > 0).astype(np.int64)
    cells[rng.random(cells.shape) < 0.05] = np.nan
    return cells, targets, rng.random(rows) < 0.2


def ours(cells: np.ndarray, targets: np.ndarray, test: np.ndarray, nodes: int, args: argparse.Namespace) -> list:
    """Return AUC, the slowest node's seconds, and sums and megabytes of one node."""
    schema = schema_of(len(cells))
    settings = settings_of(schema, rounds=args.rounds)
    rows = cells[:, ~test], targets[~test], np.zeros((~test).sum(), np.bool_)
    owners = np.random.default_rng(0).integers(nodes, size=len(rows[1]))
    grown = [TreeGrowth.begin(schema, settings, site_of(own)) for own in share(rows, owners, nodes)]
    seconds, size = np.zeros(nodes), 0
    while not grown[0].done:
        parts = []
        for place, node in enumerate(grown):
            start = time.process_time()
            parts.append(node.next_part())
            seconds[place] += time.process_time() - start
        total = sum_of(parts)
        size += 8 * sum(array.size for array in total.values())
        for place, node in enumerate(grown):
            start = time.process_time()
            node.take(total, nodes)
            seconds[place] += time.process_time() - start
    outputs = grown[0].forest().outputs(as_cells(cells[:, test]))
    return [BUILT_IN["auc"](outputs, targets[test]), seconds.max(), grown[0].state.step, size / 1e6]


def theirs(cells: np.ndarray, targets: np.ndarray, test: np.ndarray, args: argparse.Namespace) -> list:
    start = time.process_time()
    options = {"objective": "binary:logistic", "tree_method": "hist", "max_bin": 64, "max_depth": 6, "nthread": 1}
    table = xgboost.QuantileDMatrix(cells[:, ~test].T, targets[~test], max_bin=64, nthread=1)
    model = xgboost.train(options, table, args.rounds)
    seconds = time.process_time() - start
    margins = model.predict(xgboost.DMatrix(cells[:, test].T), output_margin=True)
    return [BUILT_IN["auc"](margins[:, None], targets[test]), seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    print("| table | seed | what | AUC | seconds | sums | MB a node |\n|---|---|---|---|---|---|---|")
    for name, make, several in (("breast cancer", breast_cancer, 3), ("made", made_table, 8)):
        for seed in range(args.seeds):
            table = make(seed, args.rows)
            for nodes in (1, several):
                area, seconds, sums, size = ours(*table, nodes, args)
                what = f"ours, {nodes} node" + "s" * (nodes > 1)
                print(f"| {name} | {seed} | {what} | {area:.4f} | {seconds:.1f} | {sums} | {size:.0f} |", flush=True)
            if xgboost is not None:
                area, seconds = theirs(*table, args)
                print(
                    f"| {name} | {seed} | XGBoost {xgboost.__version__} | {area:.4f} | {seconds:.1f} | | |", flush=True
                )


if __name__ == "__main__":
    main()
