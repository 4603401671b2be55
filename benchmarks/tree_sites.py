"""Trees over several sites, as real processes, beside what else one may do with the same tables.

    python benchmarks/tree_sites.py breast-cancer [--kill] [--rounds 100] [--seed 0]
    python benchmarks/tree_sites.py made [--rows 100000]

`breast-cancer` is scikit-learn's table, in equal shares at three sites; `made` has 28 columns at eight sites (that of
`benchmarks/trees.py`). A fifth of the rows is a test table that no site has; the AUC on it comes with its 95% interval,
as `p2pfl score` prints it. Rows of the result: trees that all sites grow together, by secure sums; the linear model and
the mlp by gossip; XGBoost of all rows in one place (`hist`, max_bin 64), where it is installed; trees of each site
alone, their mean. With `--kill`, the second site is killed (kill -9) in the middle of the trees and started again,
and its model is compared with the others' and with that of a run without that. Seconds are of the slowest node from
start to end, on this machine with all nodes on it; bytes of the node that sent most; memory the largest resident size.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from trees import breast_cancer, made_table, xgboost

from p2pfl.learn.metrics import BUILT_IN
from p2pfl.learn.trees.bins import as_cells

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "learn" / "trees"))
from tree_world import grow, schema_of, settings_of

SITES = {"breast-cancer": 3, "made": 8}
P2PFL = [sys.executable, "-m", "p2pfl"]
KEYS = {
    "trees": 'model = "trees"',
    "linear": 'model = "linear"',
    "mlp": 'model = "mlp"\nhidden = [32]\n',
}


def run(*arguments: str | Path, **options: Any) -> str:
    done = subprocess.run([*P2PFL, *map(str, arguments)], capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, arguments))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def write(file: Path, cells: np.ndarray, targets: np.ndarray) -> None:
    head = ",".join([*(f"x{place}" for place in range(len(cells))), "outcome"])
    rows = [
        ",".join(["" if np.isnan(one) else f"{one:.6g}" for one in row] + [str(int(target))])
        for row, target in zip(cells.T, targets, strict=True)
    ]
    file.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")


def founded(folder: Path, tables: list[Path], way: str, rounds: int) -> Path:
    folder.mkdir(exist_ok=True)
    ward = folder / way
    ports = str(20_000 + os.getpid() % 20_000)
    run("new", ward, "--task", "csv", *tables, "--target", "outcome", "--positive", "1", "--base-port", ports)
    text = (ward / "federation.toml").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith(("# model", "holdout")):
            text = text.replace(line, KEYS[way] if line.startswith("# model") else "holdout = 0.0")
    if way == "trees":
        text = text.replace("rounds = 40", f"rounds = {rounds}")
    (ward / "federation.toml").write_text(text.replace("# evaluate_every = 1 ", "evaluate_every = 0 "), "utf-8")
    return ward


def grown(ward: Path, names: list[str], kill_at: int | None) -> dict[str, Any]:
    """Run one process for each node; kill and start the second one again at that round."""
    began = time.perf_counter()
    nodes = {name: start(ward, name) for name in names}
    memory = 0
    if kill_at is not None:
        while rounds_done(ward, names[0]) < kill_at and nodes[names[1]].poll() is None:
            time.sleep(0.05)
        nodes[names[1]].send_signal(signal.SIGKILL)
        nodes[names[1]].wait()
        time.sleep(3.0)
        nodes[names[1]] = start(ward, names[1])
    name_of = {node.pid: name for name, node in nodes.items()}
    while name_of:
        pid, status, usage = os.wait4(-1, 0)
        memory = max(memory, usage.ru_maxrss)
        if status and (name := name_of.get(pid)):
            for node in nodes.values():
                node.kill()
            raise SystemExit(f"{name} ended with {status}: {(ward / name / 'out').read_text(encoding='utf-8')[-2000:]}")
        name_of.pop(pid, None)
    results = [json.loads((ward / name / "state" / "result.json").read_text(encoding="utf-8")) for name in names]
    return {
        "seconds": round(time.perf_counter() - began, 1),
        "MB": round(max(result["bytes_sent"] for result in results) / 1e6, 1),
        "MB_resident": round(memory / 1024),
        "sums": results[0]["features"]["trees"]["sums"],
    }


def start(ward: Path, name: str) -> subprocess.Popen[bytes]:
    with (ward / name / "out").open("ab") as out:
        return subprocess.Popen([*P2PFL, "run", str(ward), "--node", name], stdout=out, stderr=out)


def rounds_done(ward: Path, name: str) -> int:
    """Return the rounds behind a node, from the file that it writes after each sum."""
    try:
        return int(msgspec.msgpack.decode((ward / name / "state" / "growing").read_bytes())[0])
    except FileNotFoundError:
        return 0


def score(model: Path, test: Path) -> dict[str, Any]:
    figures = json.loads(run("score", model, test, "--format", "json"))["metrics"]
    auc = next(one for one in figures if one["metric"] == "auc")
    return {"AUC": round(auc["value"], 4), "interval": [round(auc["low"], 4), round(auc["high"], 4)]}


def digest(ward: Path, name: str) -> str:
    model = ward / name / "model.json"
    run("export", ward / name, "-o", model, "--force")
    return hashlib.sha256(model.read_bytes()).hexdigest()[:16]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=tuple(SITES))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--only-trees", action="store_true")
    args = parser.parse_args()
    make = breast_cancer if args.table == "breast-cancer" else made_table
    cells, targets, is_test = make(args.seed, args.rows)
    sites = SITES[args.table]
    owners = np.random.default_rng(args.seed).permutation(np.arange((~is_test).sum()) % sites)
    own = [(cells[:, ~is_test][:, owners == site], targets[~is_test][owners == site]) for site in range(sites)]
    with tempfile.TemporaryDirectory(prefix="tree-sites-") as kept:
        folder = Path(kept)
        tables = [folder / f"site{site}.csv" for site in range(sites)]
        for table, rows in zip(tables, own, strict=True):
            write(table, *rows)
        test = folder / "test.csv"
        write(test, cells[:, is_test], targets[is_test])
        names = [table.stem for table in tables]
        ward = founded(folder, tables, "trees", args.rounds)
        show("trees, all sites", grown(ward, names, None) | score(ward / names[0], test))
        if args.kill:
            whole = digest(ward, names[0])
            again = founded(folder / "killed", tables, "trees", args.rounds)
            found = grown(again, names, args.rounds // 2) | score(again / names[1], test)
            alike = {digest(again, name) for name in names} == {whole}
            show("trees, one site killed and back", found | {"the same model at all, and as without": alike})
        if args.only_trees:
            return 0
        for way in ("linear", "mlp"):
            ward = founded(folder, tables, way, args.rounds)
            run("launch", ward)
            report = json.loads((ward / "report.json").read_text(encoding="utf-8"))
            sent = max(node["bytes_sent"] for node in report["nodes"])
            figures = {"seconds": round(report["wall_time_s"], 1), "MB": round(sent / 1e6, 1)}
            show(f"{way}, gossip", figures | score(ward / names[0], test))
        _references(cells, targets, is_test, own, args)
    return 0


def _references(cells: Any, targets: Any, is_test: Any, own: Any, args: argparse.Namespace) -> None:
    held, truth = cells[:, is_test], targets[is_test]
    auc = BUILT_IN["auc"]
    if xgboost is not None:
        options = {"objective": "binary:logistic", "tree_method": "hist", "max_bin": 64, "max_depth": 6, "nthread": 1}
        table = xgboost.QuantileDMatrix(cells[:, ~is_test].T, targets[~is_test], max_bin=64, nthread=1)
        margins = xgboost.train(options, table, args.rounds).predict(xgboost.DMatrix(held.T), output_margin=True)
        found = auc(margins[:, None], truth)
        low, high = auc.interval(margins[:, None], truth)
        show(
            f"XGBoost {xgboost.__version__}, pooled",
            {"AUC": round(found, 4), "interval": [round(low, 4), round(high, 4)]},
        )
    schema = schema_of(len(cells))
    alone = []
    for rows, labels in own:
        nodes = grow(schema, settings_of(schema, rounds=args.rounds), [(rows, labels, np.zeros(len(labels), np.bool_))])
        alone.append(auc(nodes[0].forest().outputs(as_cells(held)), truth))
    show("trees, each site alone: mean, least", {"AUC": round(float(np.mean(alone)), 4), "least": round(min(alone), 4)})


def show(what: str, found: dict[str, Any]) -> None:
    print(json.dumps({"what": what} | found), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
