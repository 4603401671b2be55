"""The memory and the time of one real node with a large model, between neighbors that are cheap.

The node is the shipped application in a process of its own, on real links of this machine, with a perceptron of about
D parameters. Its neighbors are scripted, all in one more process: their cores and links are the shipped ones, but they
hold no model and send the same bytes in every exchange. The node has as many neighbors with a lower as with a higher
index, so half of its exchanges are requests and half are replies. Memory is counted in models (float32) beyond what
the process holds with everything imported. CPU time is the whole process without its training thread, for one
exchange; `wall_ms` is the time from a neighbor's request to its reply. A node that would take more than `--most-gb` is
not run: its row has the plan of `p2pfl check`, and says so.

Usage: python benchmarks/large.py [--parameters 25M,100M] [--degrees 2,6] [--compressors q4,fragment:8+bf16]
    [--before CHECKOUT] [--repeats 1] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from goodput_measures import memory_mb
from large_neighbors import run_neighbors
from overhead import ONE_THREAD, SUFFIXES, TASK, free_base_port

from p2pfl.config.load import load_config
from p2pfl.engine.codecs import codecs_of

Figures = dict[str, float]

ROLLUP = re.compile(r"^(Rss|Pss|Private_Dirty):\s+(\d+) kB", re.MULTILINE)
PATIENCE_S = 600.0
SHOWN = (
    "peak_models",
    "steady_models",
    "peak_pss_models",
    "steady_pss_models",
    "cpu_ms",
    "wall_ms",
    "read_mb",
    "write_mb",
    "plan_models",
)


class EndedError(Exception):
    """A run has come to no figures."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", default="25M", help="of a perceptron with one hidden layer, about")
    parser.add_argument("--degrees", default="2,6")
    parser.add_argument("--compressors", default="none,q4,fragment:8+bf16")
    parser.add_argument("--methods", default="variate", help="learning methods, such as plain")
    parser.add_argument("--exchanges", type=int, default=8, help="of each neighbor that are counted, after a first one")
    parser.add_argument("--memory", default="", help="gossip.memory in the federation file; by default none is written")
    parser.add_argument(
        "--limit-mb", type=int, default=0, help="of the node, its files included: Linux, cgroup v1, root"
    )
    parser.add_argument("--durability", default="auto", help="node.durability")
    parser.add_argument("--local-steps", type=int, default=1)
    parser.add_argument("--round-s", type=float, default=1.0, help="seconds that a round of a neighbor takes")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--before", type=Path, help="another checkout, run in turn with this one")
    parser.add_argument("--most-gb", type=float, default=9.0, help="a node with a larger plan is not run")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    here = Path(__file__).parents[1]
    sides = {"now": here} if options.before is None else {"before": options.before.resolve(), "now": here}
    rows: list[dict[str, Any]] = []
    print(f"{'parameters':>10} {'degree':>6} {'compressor':18} {'method':10} {'side':6} " + " ".join(SHOWN), flush=True)
    for text in options.parameters.split(","):
        for degree in map(int, options.degrees.split(",")):
            for spec in options.compressors.split(","):
                for method in options.methods.split(","):
                    runs: dict[str, list[Figures]] = {side: [] for side in sides}
                    for _ in range(options.repeats):
                        for side, checkout in sides.items():
                            try:
                                runs[side].append(measured(text, degree, spec, method, checkout, options))
                            except EndedError as error:
                                runs[side].append({})
                                print(f"{text} {degree} {spec} {method} {side}: {error}", flush=True)
                    for side, many in runs.items():
                        figures = {key: statistics.median(run[key] for run in many if key in run) for key in many[0]}
                        rows.append(
                            {"parameters": text, "degree": degree, "compressor": spec, "method": method, "side": side}
                            | figures
                        )
                        shown = " ".join(
                            f"{figures[key]:{len(key)}.4g}" if key in figures else " " * (len(key) - 1) + "-"
                            for key in SHOWN
                        )
                        is_planned = "plan_models" in figures and "cpu_ms" not in figures
                        planned = "  not run: counted from the plan" if is_planned else ""
                        print(f"{text:>10} {degree:6} {spec:18} {method:10} {side:6} {shown}{planned}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def measured(  # noqa: PLR0917 - what a row says, then the checkout and the options
    text: str, degree: int, spec: str, method: str, checkout: Path, options: argparse.Namespace
) -> Figures:
    """Run one node with its neighbors, and return its figures; those of the plan alone if it is too large."""
    size = int(text.rstrip("kM")) * SUFFIXES.get(text[-1], 1)
    environment = os.environ | ONE_THREAD | {"PYTHONPATH": str(checkout)}
    with tempfile.TemporaryDirectory() as place:
        ward, center = Path(place) / "ward", degree // 2
        graph = Path(place) / "star.txt"
        graph.write_text("".join(f"{center} {other}\n" for other in range(degree + 1) if other != center))
        command = [sys.executable, "-m", "p2pfl.cli.main", "new", str(ward), "--nodes", str(degree + 1)]
        command += ["--topology", str(graph), "--base-port", str(free_base_port())]
        subprocess.run(command, check=True, capture_output=True, env=environment)
        configure(ward, center, size, spec, method, options)
        words = [str(ward), f"node{center}", str(options.exchanges), str(options.most_gb), str(options.limit_mb)]
        node = begin("--node", *words, environment=environment)
        try:
            first = said(node)
            if "too_large" in first:
                node.wait()
                return {"plan_models": first["plan_models"]}
            neighbors = begin(
                "--neighbors", str(ward), str(center), first["shape"], str(first["size"]), str(options.round_s),
                environment=environment,
            )  # fmt: skip
            try:
                return watched(node, neighbors, first)
            finally:
                neighbors.kill()
                neighbors.wait()
        finally:
            node.kill()
            node.wait()


def configure(ward: Path, center: int, size: int, spec: str, method: str, options: argparse.Namespace) -> None:  # noqa: PLR0917
    """Write the task and the keys of the files that differ from the example's."""
    (ward / "task.py").write_text(TASK.format(hidden=max(1, round((size - 10) / 795))))
    file, own = ward / "federation.toml", ward / f"node{center}" / "node.toml"
    text = file.read_text()
    for key, value in (("rounds", "1000000"), ("local_steps", str(options.local_steps)), ("batch_size", "8")):
        text = re.sub(rf"(?m)^{key} = .*", f"{key} = {value}", text, count=1)
    text = text.replace("learning_rate = 0.2", f'learning_rate = 0.001\nevaluate_every = 0\nmethod = "{method}"', 1)
    memory = f'\nmemory = "{options.memory}"' if options.memory else ""
    text = re.sub(r"(?m)^compressor = .*", f'compressor = "{spec}"{memory}', text, count=1)
    file.write_text(text)
    own.write_text(own.read_text().replace("[node]", f'[node]\ndurability = "{options.durability}"', 1))


def begin(*words: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    )


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Read the next line that a process prints, as JSON."""
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        raise EndedError(f"a process has ended with {process.wait()}")
    found: dict[str, Any] = json.loads(line)
    return found


def watched(node: subprocess.Popen[str], neighbors: subprocess.Popen[str], first: dict[str, Any]) -> Figures:
    """Sample the node's memory until it has its exchanges; return all figures."""
    said(neighbors)
    print(file=node.stdin, flush=True)
    lines: list[dict[str, Any]] = []

    def read() -> None:
        with contextlib.suppress(EndedError):
            lines.extend(said(node) for _ in range(2))

    threading.Thread(target=read, daemon=True).start()
    start, samples, counted = rollup(node.pid), [], 0
    until = time.monotonic() + PATIENCE_S
    while len(lines) < 2:
        if neighbors.poll() is not None or node.poll() is not None or time.monotonic() > until:
            raise EndedError(f"it took too long, or ended with {node.poll()}")
        samples.append(rollup(node.pid))
        counted = counted or (len(samples) if lines else 0)
        time.sleep(0.1)
    model, last = 4 * first["size"], lines[-1]
    before = first["resident"]
    steady = samples[counted:] or samples
    figures = {
        "peak_models": (last.pop("peak_bytes") - before["Rss"]) / model,
        "start_models": (start["Rss"] - before["Rss"]) / model,
        "peak_pss_models": (max(each["Pss"] for each in samples) - before["Pss"]) / model,
        "steady_models": (statistics.median(each["Rss"] for each in steady) - before["Rss"]) / model,
        "steady_pss_models": (statistics.median(each["Pss"] for each in steady) - before["Pss"]) / model,
        "plan_models": first["plan_models"],
    }
    neighbors.terminate()  # which makes them print theirs
    return figures | last | said(neighbors)


def rollup(pid: int) -> dict[str, int]:
    """Return the bytes of a process in memory: resident, and its share of what several processes map."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        text = ""
    return {"Rss": 0, "Pss": 0, "Private_Dirty": 0} | {name: 1024 * int(kb) for name, kb in ROLLUP.findall(text)}


# -- the node ----------------------------------------------------------------------------------------------------


def run_node(folder: str, name: str, exchanges: int, most_gb: float, limit_mb: int) -> None:
    """Run the node; print its plan, then a line when the count begins, then its figures."""
    confine(limit_mb)
    import torch  # noqa: F401, PLC0415 - imports do not count as memory of the node

    from p2pfl.config.load import load_node, node_file  # noqa: PLC0415 - as above
    from p2pfl.engine.state import NodeState  # noqa: PLC0415 - as above
    from p2pfl.features import FEATURES  # noqa: PLC0415 - as above
    from p2pfl.node.application import Application  # noqa: PLC0415 - as above
    from p2pfl.node.assembly import read_setup  # noqa: PLC0415 - as above
    from p2pfl.node.memory_needs import memory_needs  # noqa: PLC0415 - as above

    described = load_config(Path(folder))
    before = rollup(os.getpid())
    setup = read_setup(described, load_node(node_file(described, name), described, name))
    codecs, index = codecs_of(described, setup.member.index), setup.member.index
    state = NodeState.new(
        np.zeros(setup.learner.size, np.float32), setup.learner.samples, setup.peers, method=setup.method
    )
    state.fit_replicas(codecs.need_replicas)
    mapped = {"mapped": True} if getattr(described.gossip, "memory", "") == "mapped" else {}
    plan = memory_needs(state, codecs, setup.method, setup.learner, None, **mapped).total
    del state
    model = 4 * setup.learner.size
    line = {"size": setup.learner.size, "shape": setup.learner.shape_digest.hex(), "plan_models": plan / model}
    if plan > most_gb * 1e9:
        print(json.dumps(line | {"too_large": True}), flush=True)
        return
    print(json.dumps(line | {"resident": before, "index": index}), flush=True)
    sys.stdin.readline()  # until the neighbors listen

    async def run() -> Figures:
        node = Application(setup, on_line=lambda _line: None, features=FEATURES)
        running = asyncio.create_task(node.run())
        degree, count = len(setup.peers), 0
        marks = []
        for more in (2 * degree, exchanges * degree):
            target = count + more
            while count < target:
                await asyncio.sleep(0.02)
                if running.done():
                    raise SystemExit(f"the node has ended: {running}")
                count = node.thread.engine.exchanges if hasattr(node, "thread") else 0
            marks.append((count, threads_cpu_s(), time.process_time(), disk_mb()))
            if len(marks) == 1:
                print("{}", flush=True)
        (first, then, began, disk_then), (last, now, ended, disk_now) = marks
        apart = {key: 1e3 * (cpu_s - then.get(key, 0.0)) / (last - first) for key, cpu_s in now.items()}
        whole = 1e3 * (ended - began) / (last - first)
        found = {"cpu_ms": whole - apart.get("train", 0.0), "exchanges": last - first}
        found |= {f"cpu_ms_{key}": value for key, value in apart.items()}
        found |= {key: (value - disk_then[key]) / (last - first) for key, value in disk_now.items()}
        print(json.dumps(found | {"peak_bytes": 1e6 * memory_mb("VmHWM")}), flush=True)
        os._exit(0)

    asyncio.run(run())


def confine(limit_mb: int) -> None:
    """Let the system take from this process what is above a limit: what is in files goes to the disk, and where that is
    not enough, the process is killed. The pages of its files count.
    """
    if not limit_mb:
        return
    group = Path("/sys/fs/cgroup/memory/p2pfl-large")
    group.mkdir(exist_ok=True)
    (group / "memory.limit_in_bytes").write_text(str(limit_mb * 1_000_000))
    (group / "cgroup.procs").write_text(str(os.getpid()))


def disk_mb() -> Figures:
    """Return the megabytes that this process has moved from and to disks, and its page faults that waited for one."""
    found = dict(re.findall(r"(\w+_bytes): (\d+)", Path("/proc/self/io").read_text()))
    faults = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[9])
    return {"read_mb": int(found["read_bytes"]) / 1e6, "write_mb": int(found["write_bytes"]) / 1e6, "faults": faults}


def threads_cpu_s() -> Figures:
    """Return the CPU seconds of this process's threads, summed by the beginning of their names."""
    found: Figures = {}
    for thread in threading.enumerate():
        name = re.split(r"[-_ ]", thread.name.lower().removeprefix("p2pfl-"))[0]
        name = "loop" if thread is threading.main_thread() else name
        try:
            text = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text()
        except OSError:
            continue
        found[name] = found.get(name, 0.0) + int(text.split()[0]) / 1e9
    return found


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--node", place, who, count, most, limit]:
            run_node(place, who, int(count), float(most), int(limit))
        case ["--neighbors", place, middle, digest, values, seconds]:
            run_neighbors(place, int(middle), bytes.fromhex(digest), int(values), float(seconds))
        case _:
            main()
