"""The cost of lambda_2 for a hundred to a million nodes, without any closed form.

Each case runs in a separate process. A row shows CPU seconds for building and for the eigenvalues, peak memory, the
method chosen by the ladder, the error against the closed form if the family has one (else the residual), whether it is
certified, how the time compares with its products alone (their number times one product with the sparse matrix), and
`networkx.algebraic_connectivity` (default method) until it is killed; sizes above one that was killed are omitted. Rows
are also stored in --out, so that an interrupted run continues where it stopped.

Usage: python benchmarks/spectral.py [--nodes 100,10000] [--families ring,torus] [--limit-s 20] [--certify] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from topologies import Topology, TopologyError, build
from topologies.eigen import extremes
from topologies.eigen.laplacian import Laplacian

FAMILIES = {
    "ring": "ring",
    "torus": "torus",
    "hypercube": "hypercube",
    "exponential": "exponential",
    "random-regular": "random-regular:degree=4",
    "watts-strogatz": "watts-strogatz:k=4,p=0.1",
    "geometric": "geometric",
    "barabasi-albert": "barabasi-albert",
}
NODES = (100, 1_000, 10_000, 100_000, 1_000_000)
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
HEAD = f"{'family':16}{'nodes':>9}{'edges':>10} {'method':10}{'CPU s':>9}{'build':>8}{'MB':>7}{'error':>10}"
HEAD += f"{'residual':>10}{'certified':>10}{'products':>9}{'x matvec':>9}{'networkx s (off)':>17}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default=",".join(map(str, NODES)))
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--limit-s", type=float, default=20.0, help="for networkx; 0 leaves it out")
    parser.add_argument("--certify", action="store_true")
    parser.add_argument("--out", type=Path, help="JSON, written after every case and read at the start")
    parser.add_argument("--case", nargs=2, metavar=("SPEC", "NODES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measured(options.case[0], int(options.case[1]), certify=options.certify)))
        return
    rows = json.loads(options.out.read_text()) if options.out and options.out.exists() else []
    print(HEAD)
    for nodes in map(int, options.nodes.split(",")):
        for family in options.families.split(","):
            row = next((row for row in rows if (row["family"], row["asked"]) == (family, nodes)), None)
            if row is None:
                row = case(family, nodes, rows, options)
                rows.append(row)
                if options.out:
                    options.out.write_text(json.dumps(rows, indent=1))
            show(row)
    growth(rows)


def case(family: str, nodes: int, rows: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", FAMILIES[family], str(nodes)]
    command += ["--certify"] if options.certify else []
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | ONE_THREAD)
    row = {"family": family, "asked": nodes}
    if done.returncode:
        return row | {"failed": done.stderr.strip().splitlines()[-1:]}
    row |= json.loads(done.stdout)
    hopeless = any(r["family"] == family and r.get("networkx") == "killed" for r in rows)
    if options.limit_s > 0 and not hopeless:
        row |= networkx_beside(row, options.limit_s)
    return row


def nearest(spec: str, nodes: int) -> Topology:
    """Build the graph of the nearest possible size: a power of two for the hypercube, a square for the torus."""
    if spec == "hypercube":
        nodes = 1 << round(math.log2(nodes))
    elif spec == "torus":
        nodes = round(math.sqrt(nodes)) ** 2
    return build(spec, nodes)


def connected(topology: Topology) -> Topology:
    """Return the largest component, without its formula."""
    labels = topology.labels
    names, counts = np.unique(labels, return_counts=True)
    inside = labels == names[np.argmax(counts)]
    place = np.cumsum(inside) - 1
    ends = topology.ends[inside[topology.ends[:, 0]]]
    return Topology(topology.spec, int(inside.sum()), place[ends])


def measured(spec: str, nodes: int, *, certify: bool) -> dict[str, Any]:
    began = time.process_time()
    topology = nearest(spec, nodes)
    built = time.process_time() - began
    graph = connected(topology)
    laplacian = Laplacian.plain(graph)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    eigen = extremes(laplacian, certify=certify)
    cpu = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    whole = topology.formula is not None and graph.nodes == topology.nodes
    product = product_seconds(laplacian)
    return {
        "spec": spec,
        "nodes": graph.nodes,
        "edges": graph.edge_count,
        "cpu_s": cpu,
        "build_cpu_s": built,
        "peak_mb": peak / 1024,
        "before_mb": before / 1024,
        "method": eigen.method,
        "low": eigen.low,
        "high": eigen.high,
        "error": abs(eigen.low / topology.formula.low - 1.0) if whole else None,
        "high_error": abs(eigen.high / topology.formula.high - 1.0) if whole else None,
        "relative_residual": eigen.residual / eigen.low,
        "high_residual": eigen.high_residual / eigen.high,
        "lower": eigen.lower,
        "probable": eigen.probable,
        "certified": eigen.certified,
        "converged": eigen.converged,
        "products": eigen.products,
        "product_s": product,
        "times_products": cpu / (eigen.products * product) if eigen.products else None,
    }


def product_seconds(laplacian: Laplacian) -> float:
    matrix = laplacian.sparse()
    vector = np.ones(laplacian.nodes)
    turns = max(3, 2_000_000 // laplacian.nodes)
    began = time.process_time()
    for _ in range(turns):
        matrix @ vector
    return (time.process_time() - began) / turns


NETWORKX = """
import sys, time, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {folder!r})
import networkx as nx
from spectral import connected, nearest
graph = connected(nearest({spec!r}, {nodes})).to_networkx()
print(flush=True)
began = time.process_time()
low = nx.algebraic_connectivity(graph, seed=0)
print(time.process_time() - began, low)
"""


def networkx_beside(row: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """Return CPU seconds, "killed", or the name of the error; and the relative distance of its value from ours.

    The limit is on wall time, not counting the building.
    """
    code = NETWORKX.format(folder=str(Path(__file__).parent), spec=row["spec"], nodes=row["nodes"])
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=os.environ | ONE_THREAD) as process:
        if process.stdout:
            process.stdout.readline()
        try:
            out, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return {"networkx": "killed"}
    if process.returncode:
        return {"networkx": errors.strip().splitlines()[-1].partition(":")[0]}
    seconds, low = map(float, out.split())
    return {"networkx": seconds, "networkx_off": abs(low / row["low"] - 1.0)}


def show(row: dict[str, Any]) -> None:
    if "failed" in row:
        print(f"{row['family']:16}{row['asked']:>9} failed: {row['failed']}", flush=True)
        return
    error = "-" if row["error"] is None else f"{row['error']:.0e}"
    times = "-" if row["times_products"] is None else f"{row['times_products']:.1f}"
    beside = row.get("networkx", "-")
    beside = f"{beside:.2f} ({row['networkx_off']:.0e})" if isinstance(beside, float) else beside
    certified = "yes" if row["certified"] else "no" if row["converged"] else "NOT CONV."
    line = f"{row['family']:16}{row['nodes']:>9}{row['edges']:>10} {row['method']:10}{row['cpu_s']:>9.2f}"
    line += f"{row['build_cpu_s']:>8.2f}{row['peak_mb']:>7.0f}{error:>10}{row['relative_residual']:>10.0e}"
    print(line + f"{certified:>10}{row['products']:>9}{times:>9}{beside:>17}", flush=True)


def growth(rows: list[dict[str, Any]]) -> None:
    """Fit the exponent p of CPU time ~ nodes^p to sizes that take more than a twentieth of a second."""
    for family in dict.fromkeys(row["family"] for row in rows):
        points = [(r["nodes"], r["cpu_s"]) for r in rows if r["family"] == family and r.get("cpu_s", 0) > 0.05]
        points = [point for point in points if point[0] > 1_000]
        if len(points) > 1:
            slope = np.polyfit(*np.log(np.array(points)).T, 1)[0]
            print(f"{family}: CPU time grows as nodes^{slope:.2f} ({points[0][0]} to {points[-1][0]} nodes)")


if __name__ == "__main__":
    try:
        main()
    except TopologyError as error:
        sys.exit(f"error: {error}")
