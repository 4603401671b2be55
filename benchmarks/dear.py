"""The cost of a member that sends the most expensive valid requests it can: the pace of its neighbor's other edge.

Three real processes on a path: the attacker, its neighbor, an honest node. The attacker keeps to the protocol, begins
the next exchange as soon as one is over, and computes nothing itself: it shows the same two payloads in turn. For each
compressor there are three runs, in turn, `--repeats` times: beside an honest node in its place, attacked, and attacked
without the limit on engine time. Figures are medians: own rounds a second of the attacked node, exchanges a second with
its honest neighbor, and with the attacker, and how often an exchange was put off. Rounds "train" by waiting, so that
two processors are enough for three processes.

With --honest nobody attacks: real nodes of one process, as in the demo, with a large model, and with rounds of a
millisecond. It prints how near a neighbor came to the limit, as a share of it, and how often an exchange was put off.

Usage: python benchmarks/dear.py [--parameters 1000000] [--compressors q4,top-k:0.1+q8,random-k:0.1] [--time-s 30]
       python benchmarks/dear.py --honest [--parameters 25000000]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from p2pfl.core import limits
from p2pfl.core.effects import ApplyReply, Freeze, Operation
from p2pfl.core.events import ReplyApplied
from p2pfl.core.records import next_chain
from p2pfl.engine.engine import Engine, Outcome
from p2pfl.net.address import free_ports
from p2pfl.node import assembly
from p2pfl.node.application import Application

TASK = """
import time
import numpy as np
from p2pfl.learn.interface import LocalRound


class Waits:
    size = {size}
    personal = 0
    shape_digest = b"waits-and-sees.."

    def __init__(self, node):
        self.samples, self.push = 10, np.random.default_rng(node).standard_normal({size}).astype(np.float32)

    def initial(self):
        return np.zeros({size}, np.float32)

    def train(self, start, round_index):
        time.sleep({round_s})
        vector = start.model + np.float32(0.01) * (self.push - start.model)
        return LocalRound(vector=vector, steps=1, learning_rate=0.0, samples=self.samples, loss=0.0)

    def evaluate(self, vector, part):
        return None

    def local_state(self):
        return {{}}

    def load_local_state(self, state):
        pass

    def state_dict(self, vector):
        return {{"w": vector}}


class Task:
    def learner(self, context, training):
        return Waits(context.node)


task = Task()
"""
RUNS = ("honest", "attacked", "without the limit")


class Attacker(Application):
    """A node that begins exchanges without end; its model is encoded once for each size of a body."""

    def _engine_of(self, recovered: Any) -> Engine:
        engine = assembly.make_engine(self.setup, recovered)
        compute, codec, size = engine.run, engine.codecs.of(1), engine.state.model.size
        push = np.random.default_rng(0).standard_normal(size).astype(np.float32) / 100
        bodies = itertools.cycle([bytes(codec.encode(push)), bytes(codec.encode(-push))])
        engine._encode = lambda *_, **__: next(bodies)  # noqa: SLF001 - an attack from within

        def run(op: Operation) -> Outcome:
            match op:
                case Freeze():
                    return compute(replace(op, audit=False))
                case ApplyReply(peer=peer, reply=reply):
                    record = engine.state.edges[peer].record
                    chain = next_chain(record.chain, record.pending, reply)
                    record.settle_reply(reply, chain)
                    return Outcome(ReplyApplied(peer=peer, reply=reply, chain=chain), None)
            return compute(op)

        engine.run = run
        return engine

    def _begin(self, driver: Any, links: Any) -> None:
        super()._begin(driver, links)
        self.flood = asyncio.create_task(self._flood(driver))

    async def _flood(self, driver: Any) -> None:
        while True:
            for edge in driver.core.edges.values():
                service = edge.service
                exchanged, service.exchanged = service.exchanged, None
                driver._run(edge.exchange.begin_if_due(driver.loop.time()))  # noqa: SLF001 - an attack from within
                service.exchanged = exchanged
            await asyncio.sleep(0.001)


def node(folder: Path, name: str, run: str) -> None:
    from p2pfl.cli.run import be_node  # noqa: PLC0415 - in the process of a node

    if run == "without the limit":
        limits.ENGINE_SHARE_OF_ALL = limits.ENGINE_SHARE_ALONE = 100.0
    attacks = name == "node0" and run != "honest"
    be_node(
        folder,
        name,
        config=None,
        launched=False,
        verbose=False,
        form="json",
        maker=lambda: Attacker if attacks else Application,
    )


def once(options: argparse.Namespace, compressor: str, run: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place:
        ward = Path(place) / "ward"
        ports = free_ports(3)
        command = [
            sys.executable,
            "-m",
            "p2pfl.cli.main",
            "new",
            str(ward),
            "--base-port",
            str(ports[0]),
            "--nodes",
            "3",
        ]
        subprocess.run(command, check=True, capture_output=True)
        (ward / "task.py").write_text(TASK.format(size=options.parameters, round_s=options.round_s))
        file = ward / "federation.toml"
        lines = file.read_text().splitlines()
        said = {
            "rounds": f"time_s = {options.time_s}",
            "topology": 'topology = "path"',
            "compressor": f'compressor = "{compressor}"',
            "local_steps": "local_steps = 1",
            "method": 'method = "plain"',
        }
        new = [next((text for key, text in said.items() if line.startswith(f"{key} =")), line) for line in lines]
        file.write_text("\n".join(new) + "\n")
        here, environment = [sys.executable, __file__, "--node", str(ward)], os.environ | {"OMP_NUM_THREADS": "1"}
        started = [
            subprocess.Popen(
                [*here, f"node{i}", run], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
            for i in range(3)
        ]
        try:
            logs = [process.communicate(timeout=options.time_s + 120)[1] for process in started[1:]]
        finally:
            for process in started:
                process.kill()
                process.wait()
        path = ward / "node1" / "state" / "result.json"
        if not path.exists():
            raise SystemExit("\n".join(logs))
        result = json.loads(path.read_text())
    edges = {one["name"]: one["exchanges"] for one in result["neighbors"]}
    return {
        "rounds/s": result["rounds"] / options.time_s,
        "with node2/s": edges["node2"] / options.time_s,
        "with node0/s": edges["node0"] / options.time_s,
        "alarms": sum(result["alarms"].values()),
    }


def honest(parameters: int) -> None:
    """Print a row for each kind of federation."""
    import math  # noqa: PLC0415 - as below

    from p2pfl import Federation  # noqa: PLC0415 - nodes in this process need torch, those of the attack do not

    def waits(size: int, round_s: float) -> Any:
        made: dict[str, Any] = {}
        exec(TASK.format(size=size, round_s=round_s), made)  # noqa: S102 - our own text
        return made["task"]

    cases = {
        "demo": {"task": "digits", "options": {"partition": "shards:2"}, "nodes": 8, "topology": "ring", "rounds": 40},
        f"{parameters:,} parameters": {"task": waits(parameters, 0.5), "topology": "complete", "rounds": 12},
        "rounds of 1 ms": {"task": waits(1_000, 0.001), "topology": "complete", "rounds": 3_000},
    }
    ask = limits.EngineTime.wait_s
    seen = {"share": 0.0, "put off": 0.0}

    def asked(budget: limits.EngineTime, peer: int, now: float) -> float:
        """Compute the share of the limit that was used, from a limit a million times lower: the wait is a logarithm of
        the share.
        """
        wait_s = ask(budget, peer, now)
        seen["put off"] += wait_s > 0.0
        known = limits.ENGINE_SHARE_OF_ALL, limits.ENGINE_SHARE_ALONE, limits.ENGINE_MULTIPLE
        limits.ENGINE_SHARE_OF_ALL, limits.ENGINE_SHARE_ALONE, limits.ENGINE_MULTIPLE = (one / 1e6 for one in known)
        lower_s = ask(budget, peer, now)
        limits.ENGINE_SHARE_OF_ALL, limits.ENGINE_SHARE_ALONE, limits.ENGINE_MULTIPLE = known
        seen["share"] = max(seen["share"], math.exp(lower_s / limits.ENGINE_WINDOW_S) / 1e6)
        return wait_s

    limits.EngineTime.wait_s = asked
    print(f"{'federation':<24} {'rounds':>8} {'seconds':>8} {'most of the limit':>18} {'times put off':>14}")
    for name, said in cases.items():
        seen |= {"share": 0.0, "put off": 0.0}
        known = {"nodes": 3, "method": "plain", "local_steps": 1} if name != "demo" else {}
        report = Federation(**known, **said).run()
        rounds = min(report.rounds.values())
        print(
            f"{name:<24} {rounds:>8} {report.wall_time_s:>8.1f} {seen['share']:>18.3f} {seen['put off']:>14.0f}",
            flush=True,
        )


def main() -> None:
    if sys.argv[1:2] == ["--node"]:
        node(Path(sys.argv[2]), *sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--compressors", default="q4,top-k:0.1+q8,random-k:0.1")
    parser.add_argument("--time-s", type=float, default=30.0)
    parser.add_argument("--round-s", type=float, default=0.05, help="how long a round waits in place of training")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--honest", action="store_true", help="nobody attacks: how near each node comes to the limit")
    options = parser.parse_args()
    if options.honest:
        honest(options.parameters)
        return
    print(f"{'compressor':<18} {'run':<20} {'rounds/s':>10} {'with node2/s':>14} {'with node0/s':>14} {'alarms':>8}")
    for compressor in options.compressors.split(","):
        found: dict[str, list[dict[str, float]]] = {run: [] for run in RUNS}
        for _ in range(options.repeats):
            for run in RUNS:
                found[run].append(once(options, compressor, run))
        for run, figures in found.items():
            middle = {key: statistics.median(one[key] for one in figures) for key in figures[0]}
            print(
                f"{compressor:<18} {run:<20} {middle['rounds/s']:>10.2f} {middle['with node2/s']:>14.2f}"
                f" {middle['with node0/s']:>14.2f} {middle['alarms']:>8.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
