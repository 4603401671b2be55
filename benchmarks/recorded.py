"""Check that a refactoring changes nothing else: thirty random federations, and the bytes of one session.

    python benchmarks/recorded.py --write FILE       before the change
    python benchmarks/recorded.py --compare FILE     after it, on the same machine with the same libraries

Twenty are random worlds with the quadratic (static and scheduled graphs, both profiles, crashes, lost disks); ten learn
digits, with personal parts, liars, or both. For each, the event digest and the value digest are recorded, which cover
every decision of a node and every bit that it learned; for a session between two nodes, the bytes of every message.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from p2pfl.config.model import FederationConfig
from p2pfl.wire import encode
from sim import simulate
from sim.federations import describe
from sim.network import Network
from sim.worlds.model import ChurnSpec, ComputeSpec, LiarSpec, LinkSpec, Spread, WorldSpec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import faces  # noqa: F401 - what the drawn worlds import from packages
from drawn_worlds import draw

DRAWN = range(20)
LEARNING = range(10)
GRAPHS = ("ring", "random-regular:degree=4", "base:k=1", "one-peer-hypercube")
RULES = ("mean", "mean", "hampel:b=1", "nnm+geometric-median:b=1")
COMPRESSORS = ("none", "q4", "top-k:0.1+q8", "rotate+sign")
LIARS = (None, "noise:0.5", None, "sign-flip", None)
SHARED = ("1.*",)


def learning(number: int) -> tuple[FederationConfig, WorldSpec]:
    """Make a digits federation of eight nodes; every world has speeds, losses, and crashes with and without a disk."""
    graph, rule = GRAPHS[number % 4], RULES[number // 2 % 4]
    federation = describe(
        nodes=8,
        topology="random-regular:degree=4" if rule != "mean" else graph,
        rounds=4,
        rule=rule,
        compressor=COMPRESSORS[number % 3],
        partition="dirichlet:1",
        seed=number,
    )
    gossip = replace(federation.gossip, start_wait_s=0.2, linger_s=1.0)
    if number % 3 == 0:
        gossip = replace(gossip, share=SHARED)
    federation = replace(federation, training=replace(federation.training, local_steps=3), gossip=gossip)
    lie = LIARS[number % 5]
    world = WorldSpec(
        compute=ComputeSpec(speed=Spread(kind="log-uniform", low=0.2, high=1.0), jitter=0.2),
        links=LinkSpec(drop=0.05, duplication=0.1, jitter_s=0.02),
        churn=ChurnSpec(up_s=0.2, down_s=0.03, until_s=0.4, amnesia=0.3, count=3),
        liars=LiarSpec(attack=lie, count=1) if lie else None,
    )
    return federation, world


def digests() -> dict[str, list[str]]:
    worlds = {f"drawn {seed}": draw(seed) for seed in DRAWN}
    worlds |= {f"digits {number}": learning(number) for number in LEARNING}
    result = {}
    for name, (federation, world) in worlds.items():
        report = simulate(federation, world=world, references=False)
        result[name] = [report.digest, report.value_digest]
        print(name, *(digest[:12] for digest in result[name]), flush=True)
    return result


def session() -> dict[str, list[str]]:
    """Record all messages between two nodes on an edge in three rounds, exactly as they would be on the wire."""
    said: list[str] = []
    send = Network.send

    def listen(self: Network, source: int, target: int, session: int, message: object) -> None:
        head, body = encode(message)
        unversioned = bytes(head[:2] + head[3:]).hex()  # the protocol's version may change while nothing else does
        said.append(f"{source}{target} {unversioned} {hashlib.sha256(body).hexdigest()[:16]} {len(body)}")
        send(self, source, target, session, message)

    federation = describe(nodes=2, topology="path", rounds=3, compressor="q4", partition="iid", seed=1)
    Network.send = listen  # type: ignore[method-assign]
    try:
        simulate(federation, world=WorldSpec(), references=False)
    finally:
        Network.send = send  # type: ignore[method-assign]
    print(f"session: {len(said)} messages", flush=True)
    return {"session": said}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--write", type=Path)
    which.add_argument("--compare", type=Path)
    given = parser.parse_args()
    now = digests() | session()
    if given.write:
        given.write.write_text(json.dumps(now, indent=1))
        return 0
    recorded = json.loads(given.compare.read_text())
    changed = [name for name in recorded if now.get(name) != recorded[name]]
    print("changed:", ", ".join(changed) or "nothing")
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
