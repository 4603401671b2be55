"""hivemind 1.1.12: eight processes average models, by DecentralizedAverager or by Optimizer with local updates.

A group that is whole averages at once, otherwise after the matchmaking time, of which its guide advises 3 to 5 s for
small local runs. The search, seed 0, load 5 to 16: s after start to .9, CPU-s, rounds: 20 steps at .4, matchmaking 5 s:
16.8, 34.7, 16; 3 s: 17.3, 34.9, 17; 1 s: 15.5, 31.8, 16; 50 steps at .4: 19.5, 39.2, 15; float16: 19.4, 38.4, 18,
and at 1 s 19.7, 32.3, 15 (19 MB; MNIST 28.9, 51.8, 19, 74 MB), of the idle class.
Optimizer with local updates, 20 steps: .622 after 75 s. The group is all eight: smaller ones were not tried.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import torch
from common import CELL, begin, evaluate, make_model, own_rows, tell, train

# typed
from hivemind import DHT, DecentralizedAverager, Optimizer

# end
from hivemind.compression import Float16Compression, NoCompression

# typed
from hivemind.utils.mpfuture import MPFuture
from torch import multiprocessing as mp

# end

PINS = ["hivemind==1.1.12", "torch"]
CELLS = {"averager": {"rate": 0.4, "matchmaking": 1.0}}
SEARCH = [
    ("averager", {"rate": 0.4, "matchmaking": 3.0}),
    ("averager", {"rate": 0.4, "matchmaking": 5.0}),
    ("averager", {"rate": 0.4, "matchmaking": 5.0, "steps": 50}),
    ("averager", {"rate": 0.4, "matchmaking": 5.0, "half": True}),
    ("averager", {"rate": 0.4, "matchmaking": 1.0, "half": True}),
    ("optimizer", {"way": "optimizer", "rate": 0.4, "matchmaking": 5.0}),
]
LOCAL = {"startup_timeout": 60, "auto_nat": False, "nat_port_map": False, "use_relay": False}  # all on one machine
NEW_PROCESSES = 0x20000000  # CLONE_NEWPID


def averager(node: int, dht: Any) -> None:
    group, bits, time_s = CELL.get("group", CELL["nodes"]), CELL.get("bits", 0), CELL["matchmaking"]
    # typed for averager
    model = make_model()
    averager = DecentralizedAverager(
        [each.detach() for each in model.parameters()],
        dht,
        start=True,
        prefix="digits",
        target_group_size=group,
        initial_group_bits=f"{node % 2**bits:0{bits}b}" if bits else "",
        min_matchmaking_time=time_s,
        request_timeout=CELL.get("request", time_s / 2),
        next_chunk_timeout=CELL.get("chunk", 5.0),
        # end
        compression=Float16Compression() if CELL.get("half") else NoCompression(),
        # typed for averager
    )
    for _ in range(CELL["rounds"]):
        train(model, node)
        averager.step()
        evaluate(model, node)
    # end


def optimizer(node: int, dht: Any) -> None:
    # typed for optimizer
    model = make_model()
    optimizer = Optimizer(
        dht=dht,
        run_id="digits",
        batch_size_per_step=CELL["batch"],
        target_batch_size=CELL["batch"] * CELL["steps"] * CELL["nodes"],
        params=model.parameters(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=CELL["rate"]),
        use_local_updates=True,
        delay_state_averaging=CELL.get("delay", False),
        matchmaking_time=CELL["matchmaking"],
        averaging_timeout=CELL.get("averaging", 10.0),
        averager_opts={"target_group_size": CELL["nodes"], "request_timeout": CELL["matchmaking"] / 2},
        tracker_opts={"min_refresh_period": 0.1, "default_refresh_period": CELL.get("refresh", 0.5)},
    )
    # end
    inputs, targets = own_rows(node)
    begin(node)
    order, epoch = torch.empty(0, dtype=torch.int64), 0
    # typed for optimizer
    while epoch < CELL["rounds"]:
        if len(order) < CELL["batch"]:
            order = torch.randperm(len(inputs))
        rows, order = order[: CELL["batch"]], order[CELL["batch"] :]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
        if optimizer.local_epoch > epoch:
            epoch = optimizer.local_epoch
            evaluate(model, node)
    # end


def peer(node: int, addresses: Path) -> None:
    if "kill" in CELL:  # in a namespace, so that all of the node's processes die with it
        ctypes.CDLL(None).unshare(NEW_PROCESSES)
        if pid := os.fork():
            tell(node=node, pid=pid)
            os.waitpid(pid, 0)
            return
    # typed
    MPFuture.reset_backend()  # else all nodes would share its locks
    if node:
        while not (known := addresses.read_text().split()):
            time.sleep(0.05)
        dht = DHT(initial_peers=known, start=True, **LOCAL)
    else:
        dht = DHT(start=True, **LOCAL)
        addresses.write_text(" ".join(map(str, dht.get_visible_maddrs())))
    # end
    (optimizer if CELL.get("way") == "optimizer" else averager)(node, dht)


def main() -> None:
    # typed
    (addresses := Path("addresses")).touch()
    processes = [mp.Process(target=peer, args=(node, addresses)) for node in range(CELL["nodes"])]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    # end


if __name__ == "__main__":
    main()
