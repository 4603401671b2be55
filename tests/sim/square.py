"""Four nodes in a square that note what their network tells them."""

from __future__ import annotations

from p2pfl.core import MessageReceived, Ready
from sim import NS, Kernel, LinkSpec, Network, Trace, lay

MS = NS // 1000
LATENCY_NS = 2 * MS
READY_BYTES = 18 + 11 + 17
"""of a Ready, as it is counted: prefix, header with a version below 128, seal."""
SQUARE = ((0, 1), (0, 2), (1, 3), (2, 3))


class Square:
    """They note what reaches them: (nanosecond, node, event)."""

    def __init__(self, links=None, *, edges=SQUARE, opened=True, slow=(), seed=1):
        self.kernel = Kernel()
        self.heard = []
        self.dead = set()
        self.trace, self.entries = Trace(), []
        self.trace.add = lambda *entry: self.entries.append(entry)
        spec = links or LinkSpec()
        self.network = Network(
            kernel=self.kernel,
            spec=spec,
            links=lay(dict.fromkeys(edges, 100), spec, slow, seed),
            deliver=lambda node, event: self.heard.append((self.kernel.now_ns, node, event)),
            alive=lambda node: node not in self.dead,
            trace=self.trace,
        )
        if opened:
            for edge in edges:
                self.network.open(edge)
            self.run()
            self.heard.clear()

    def run(self, for_ns=10 * NS):
        self.kernel.run(self.kernel.now_ns + for_ns)

    def send(self, source, target, version=1, session=None):
        link = self.network.links[min(source, target), max(source, target)]
        self.network.send(source, target, session or link.session, Ready(version=version))

    def versions(self, node=None):
        return [e.message.version for _, at, e in self.heard if type(e) is MessageReceived and node in (None, at)]

    def kinds(self):
        return [(node, type(event)) for _, node, event in self.heard]

    def up(self):
        return {edge for edge, link in self.network.links.items() if link.session}
