"""One exchange between two nodes beside one all-reduce of hivemind between two peers: wall time, CPU time, bytes.

Both average the same number of float32 values, in fresh processes, in turn. hivemind's group has been found before the
clock starts (`require_trigger`); its CPU time is that of all its processes: peer, DHT, averager, p2pd. Ours is
`exchange` of `goodput.py`, two shipped engines over links, and `logged`, with each engine's log on disk; hivemind has
none. An all-reduce moves both ends to the mean; an exchange moves them towards each other by their weights, here half
of the way, and with `q4` by what a rounded difference says, whose rest is sent later. With --mbit-s all go through a
proxy that passes that much each way; its own time is not counted. The bytes are those that it passed for one exchange.

hivemind is not a dependency: run this with a Python that has it (pip install hivemind) beside this project. Without it
only the exchanges are measured. Linux only.

Usage: python benchmarks/hivemind_allreduce.py [--values 10000000] [--times 5] [--repeats 3] [--mbit-s 100]
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import goodput
import numpy as np
from goodput_measures import Figures, Options

SPAWN = multiprocessing.get_context("spawn")
PIECE_BYTES = 64 * 1024
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
COMPRESSIONS = {"none": "NoCompression", "float16": "Float16Compression", "8 bits": "Uniform8BitQuantization"}
PATIENCE_S = 300.0


class Proxy:
    """Passes TCP on to `target` on this machine, `mbit_s` each way, and counts what it passes."""

    def __init__(self, target: int, mbit_s: float) -> None:
        self._target, self._bytes_per_s = target, mbit_s * 125_000
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.passed_bytes = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            near, _ = self._server.accept()
            far = socket.create_connection(("127.0.0.1", self._target))
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        free_s = time.monotonic()
        try:
            while piece := source.recv(PIECE_BYTES):
                free_s = max(free_s, time.monotonic()) + len(piece) / self._bytes_per_s
                time.sleep(max(0.0, free_s - time.monotonic()))
                sink.sendall(piece)
                self.passed_bytes += len(piece)
        except OSError:
            pass
        sink.close()


# -- hivemind ----------------------------------------------------------------------------------------------------------


def tree_cpu_s() -> float:
    """Return the CPU time so far of this process and of all processes that descend from it."""
    spent, parents = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)] = int(fields[1])
        spent[int(folder.name)] = sum(map(int, fields[11:15]))
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(spent.get(pid, 0) for pid in own) / TICKS_PER_S


def peer(pipe: Connection, values: int, compression: str, number: int) -> None:
    """One peer of hivemind, which does what the pipe says."""
    multiprocessing.set_start_method("fork", force=True)  # its processes cannot be spawned
    import hivemind  # noqa: PLC0415 - only these processes need it
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    dialed = pipe.recv()
    dht = hivemind.DHT(start=True, initial_peers=dialed, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    pipe.send([str(address) for address in dht.get_visible_maddrs()])
    tensor = torch.from_numpy(np.random.default_rng(number).standard_normal(values, dtype=np.float32))
    averager: Any = hivemind.DecentralizedAverager(
        [tensor],
        dht,
        start=True,
        prefix="benchmark",
        target_group_size=2,
        compression=getattr(hivemind.compression, compression)(),
    )
    stage = sys.modules["hivemind.averaging.control"].AveragingStage
    while pipe.recv() == "step":
        step = averager.step(require_trigger=True, wait=False, timeout=PATIENCE_S)
        while step.stage is not stage.AWAITING_TRIGGER:
            time.sleep(0.01)
        pipe.send("found")
        pipe.recv()
        cpu_s, wall_s = tree_cpu_s(), time.perf_counter()
        step.allow_allreduce()
        if step.result(timeout=PATIENCE_S) is None:
            raise RuntimeError("hivemind found no group")
        pipe.send((tree_cpu_s() - cpu_s, time.perf_counter() - wall_s))
    with averager.get_tensors() as tensors:
        pipe.send(float(tensors[0][:1000].sum()))
    averager.shutdown()
    dht.shutdown()


def all_reduce(options: argparse.Namespace, compression: str, mbit_s: float) -> Figures:
    pipes, processes = [], []
    for number in range(2):
        here, there = SPAWN.Pipe()
        processes.append(SPAWN.Process(target=peer, args=(there, options.values, COMPRESSIONS[compression], number)))
        processes[-1].start()
        there.close()
        pipes.append(here)
    pipes[0].send([])
    first = pipes[0].recv()[0]
    place, proxy = first.split("/"), None
    if mbit_s:
        proxy = Proxy(int(place[4]), mbit_s)
        place[4] = str(proxy.port)
    pipes[1].send(["/".join(place)])
    pipes[1].recv()
    runs, passed = [], 0
    for turn in range(options.times + 1):
        for pipe in pipes:
            pipe.send("step")
        for pipe in pipes:
            pipe.recv()
        passed = proxy.passed_bytes if proxy is not None and turn <= 1 else passed
        for pipe in pipes:
            pipe.send("go")
        runs.append([pipe.recv() for pipe in pipes])
    after = proxy.passed_bytes if proxy is not None else 0
    for pipe in pipes:
        pipe.send("end")
    sums = [pipe.recv() for pipe in pipes]
    if compression == "none" and abs(sums[0] - sums[1]) > 1e-2:
        raise RuntimeError(f"the peers have not the same mean: {sums}")
    for process in processes:
        process.join(30)
    counted = runs[1:]
    return {
        "wall_s": statistics.median(max(wall_s for _, wall_s in ends) for ends in counted),
        "cpu_s": statistics.fmean(sum(cpu_s for cpu_s, _ in ends) for ends in counted),
        "mb": (after - passed) / len(counted) / 1e6,
    }


# -- this project ------------------------------------------------------------------------------------------------------


def exchange(options: argparse.Namespace, scene: str, mbit_s: float) -> Figures:
    sizes = Options(4 * options.values, options.times)
    ends: dict[str, tuple[Any, Connection, Connection]] = {}
    for name in ("far", "near"):
        here, there = SPAWN.Pipe()
        result, out = SPAWN.Pipe(duplex=False)
        work = (goodput.SCENES[scene], sizes, there, out)
        process = SPAWN.Process(target=goodput.enter, args=work, kwargs={"far": name == "far"})
        process.start()
        there.close()
        out.close()
        ends[name] = (process, here, result)
    (_, far, far_result), (_, near, near_result) = ends["far"], ends["near"]
    port, proxy = far.recv(), None
    if mbit_s:
        proxy = Proxy(port, mbit_s)
        port = proxy.port
    near.send(port)
    # Each says "through" to the other.
    near.send(far.recv())
    far.send(near.recv())
    figures = goodput.together({"far": far_result.recv(), "near": near_result.recv()}, sizes)
    for process, _, _ in ends.values():
        process.join()
    mb = 0.0 if proxy is None else proxy.passed_bytes / (options.times + 1) / 1e6
    return {"wall_s": figures["wall_s_per_message"], "cpu_s": figures["cpu_s_per_message"], "mb": mb}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=10_000_000)
    parser.add_argument("--times", type=int, default=5, help="how often in each run, beside once to warm up")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mbit-s", type=float, default=100.0, help="beside loopback as it is; 0 for that alone")
    parser.add_argument("--compressions", nargs="*", choices=COMPRESSIONS, default=["none", "float16"])
    options = parser.parse_args()
    goodput.EXCHANGE_BYTES = 4 * options.values
    plans: dict[str, Callable[[float], Figures]] = {}
    if importlib.util.find_spec("hivemind") is None:
        print("hivemind is not installed here: exchanges alone")
    else:
        for each in options.compressions:
            plans[f"hivemind, {each}"] = lambda mbit_s, each=each: all_reduce(options, each, mbit_s)
    for scene in ("exchange: none", "logged: none", "exchange: q4", "logged: q4"):
        plans[scene] = lambda mbit_s, scene=scene: exchange(options, scene, mbit_s)
    for mbit_s in dict.fromkeys((0.0, options.mbit_s)):
        runs: dict[str, list[Figures]] = {name: [] for name in plans}
        for _ in range(options.repeats):
            for name, plan in plans.items():
                runs[name].append(plan(mbit_s))
        print(f"{mbit_s:g} Mbit/s each way" if mbit_s else "loopback", flush=True)
        for name, many in runs.items():
            middle = {key: statistics.median(run[key] for run in many) for key in many[0]}
            walls = sorted(run["wall_s"] for run in many)
            moved = f", {middle['mb']:.1f} MB" if mbit_s else ""
            print(
                f"  {name:18} {middle['wall_s']:.2f} s ({walls[0]:.2f} to {walls[-1]:.2f}), "
                f"{middle['cpu_s']:.2f} CPU-s{moved}",
                flush=True,
            )


if __name__ == "__main__":
    main()
