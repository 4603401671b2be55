"""One node announces itself on its LAN and finds the others."""

from __future__ import annotations

from contextlib import AsyncExitStack

from p2pfl.features.lan.announcing import discovery_of
from p2pfl.features.lan.discovery import require_zeroconf
from p2pfl.node.assembly import Setup
from p2pfl.node.feature import Attached, Feature, NodeView


class LanFeature(Feature):
    name = "lan"

    def check(self, setup: Setup) -> None:
        """Check that the library is installed. Raises UserError: it is not."""
        if setup.node.discovery:
            require_zeroconf(setup.node.path if setup.node.path.exists() else setup.federation.path)

    def attach(self, node: NodeView) -> Attached | None:
        return Lan(node) if node.setup().node.discovery else None


class Lan(Attached):
    def __init__(self, node: NodeView) -> None:
        self._node = node

    async def opened(self, until_closed: AsyncExitStack) -> None:
        setup = self._node.setup()
        found = discovery_of(setup.member, setup.node, lambda: self._node.setup().federation, self._node.network)
        await until_closed.enter_async_context(found)
