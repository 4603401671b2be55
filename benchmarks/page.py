"""The cost of vitals and of the page: bytes of vitals on an edge, and a node's processor for open pages.

    python benchmarks/page.py --nodes 5,50,200 --pages 10 --seconds 30

The first table is of virtual time: real rows pass between all nodes of a graph in this process. The second is of real
time: one node that receives the rows of that many others, in this process, and its pages in another, which read
everything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import statistics
import time
from pathlib import Path
from typing import Any

import aiohttp
from page_site import Made, federation_of, identity_of

from p2pfl.config.model import FederationConfig
from p2pfl.features.status.page_server import StatusPage
from p2pfl.features.status.spread import MESSAGE_BYTES, ROW_BYTES, VitalsSpread, VitalsTold, period_s
from p2pfl.reporting.vitals import Vitals, bitmap, realm_of

PERIODS = 4


def topology_of(nodes: int) -> str:
    return "ring" if nodes < 10 else "random-regular:degree=4"


class Network:
    """All nodes of a federation in virtual time; a message arrives at once."""

    def __init__(self, federation: FederationConfig) -> None:
        self.federation = federation
        self.now = 0.0
        self.sent: dict[tuple[int, int], int] = dict.fromkeys(federation.edges, 0)
        self.nodes = [self.make(member.index) for member in federation.members]
        for a, b in federation.edges:
            self.nodes[a].opened(b, self.now)
            self.nodes[b].opened(a, self.now)

    def make(self, index: int) -> VitalsSpread:
        return VitalsSpread(
            own=index,
            identity=identity_of(index),
            realm=realm_of(self.federation),
            key_of=lambda member: self.federation.members[member].key,
            send=lambda peer, told, *, urgent=False: self.carry(index, peer, told),  # noqa: ARG005 - all are at once
        )

    def carry(self, source: int, target: int, told: VitalsTold) -> bool:
        size = MESSAGE_BYTES + sum(len(raw) + ROW_BYTES for _, raw in told.rows)
        self.sent[min(source, target), max(source, target)] += size
        self.nodes[target].hear(source, told, self.now)
        return True

    def publish(self, index: int) -> None:
        rounds = int(self.now)
        self.nodes[index].publish(
            Vitals(
                member=index,
                counter=0,
                life=2**52 + index,
                phase="training",
                rounds=rounds,
                accuracy=0.9123,
                loss=0.1234,
                distance=0.01234,
                staleness=0.5123,
                bytes_sent=10**9 + rounds,
                bytes_received=10**9 + rounds,
                exchanges=100 * rounds,
                live=bitmap(self.federation.neighbors(index)),
                alarms=2,
                standing=("neighbor-lost",) if index % 10 == 0 else (),
                charter=1,
                software="0.1.0",
            ),
            self.now,
        )


def bytes_of_vitals(nodes: int) -> dict[str, Any]:
    """Measure bytes a second on an edge, both directions together, and the age of rows, over the last periods."""
    network, period = Network(federation_of(nodes, topology_of(nodes))), period_s(nodes)
    due = [period * index / nodes for index in range(nodes)]
    ages: list[float] = []
    counted_from = 2 * period
    for second in range(1, int((2 + PERIODS) * period) + 1):
        network.now = float(second)
        for index, at in enumerate(due):
            if network.now >= at:
                due[index] += period
                network.publish(index)
        for node in network.nodes:
            node.tick(network.now)
        if network.now <= counted_from:
            network.sent = dict.fromkeys(network.sent, 0)
        elif second % 5 == 0 or period < 10:
            ages += [network.now - row.said_at for node in network.nodes for row in node.rows.values()]
    rates = [count / (network.now - counted_from) for count in network.sent.values()]
    row_bytes = statistics.mean(len(row.raw) for row in network.nodes[0].rows.values())
    return {
        "nodes": nodes,
        "topology": topology_of(nodes),
        "period_s": period,
        "row_bytes": round(row_bytes),
        "edge_bytes_per_s": round(statistics.mean(rates)),
        "edge_bytes_per_s_most": round(max(rates)),
        "age_s_median": round(statistics.median(ages), 1),
        "age_s_most": round(max(ages), 1),
        "known": round(statistics.mean(len(node.rows) for node in network.nodes) / nodes, 3),
    }


async def read_pages(port: int, pages: int, seconds: float) -> int:
    async def read_one(http: aiohttp.ClientSession) -> int:
        place, got = f"http://127.0.0.1:{port}", 0
        for path in ("/", "/page.js", "/uplot.js", "/federation", "/history"):
            async with http.get(place + path) as answer:
                got += len(await answer.read())
        async with http.get(place + "/live", timeout=aiohttp.ClientTimeout(total=None)) as answer:
            try:
                async with asyncio.timeout(seconds):
                    async for piece in answer.content.iter_any():
                        got += len(piece)
            except TimeoutError:
                return got
        raise SystemExit("a page was dropped")

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        return sum(await asyncio.gather(*(read_one(http) for _ in range(pages))))


def be_pages(port: int, pages: int, seconds: float, answer: Any) -> None:
    answer.send(asyncio.run(read_pages(port, pages, seconds)))


async def cost_of_pages(nodes: int, pages: int, seconds: float) -> dict[str, Any]:
    """Measure shares of one core over `seconds`, without and with open pages; the work of other nodes is left out."""
    made = Made(nodes)
    for _ in range(int(period_s(nodes)) + 1):
        made.pass_time(1.0)

    async def share(for_s: float) -> float:
        cpu, making, began = time.process_time(), made.making_s, time.monotonic()
        while time.monotonic() < began + for_s:
            await asyncio.sleep(1.0)
            made.pass_time(1.0)
        return (time.process_time() - cpu - (made.making_s - making)) / (time.monotonic() - began)

    async with StatusPage("127.0.0.1:0", dict, site=made.display.overview) as page:
        alone = await share(seconds / 2)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        here, there = multiprocessing.get_context("spawn").Pipe()
        reader = multiprocessing.get_context("spawn").Process(
            target=be_pages, args=(page.port, pages, seconds + 4.0, there)
        )
        reader.start()
        await asyncio.sleep(3.0)  # until the pages are open
        shown = await share(seconds)
        got = await asyncio.to_thread(here.recv)
        reader.join()
    return {
        "nodes": nodes,
        "pages": pages,
        "core_alone": round(alone, 4),
        "core_with_pages": round(shown, 4),
        "bytes_per_s_of_a_page": round(got / pages / (seconds + 4.0)),
        "memory_more_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before,
    }


def show(rows: list[dict[str, Any]]) -> None:
    for key in rows[0]:
        print(f"{key:24}", *(f"{row[key]!s:>24}" for row in rows))
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="5,50,200")
    parser.add_argument("--pages", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sizes = [int(size) for size in options.nodes.split(",")]
    vitals = [bytes_of_vitals(nodes) for nodes in sizes]
    show(vitals)
    pages = [asyncio.run(cost_of_pages(nodes, options.pages, options.seconds)) for nodes in sizes]
    show(pages)
    if options.json:
        options.json.write_text(json.dumps({"vitals": vitals, "pages": pages}, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
