"""The findings of `p2pfl check` and `launch` about direct ways: who tells its addresses, and where that is in vain."""

from __future__ import annotations

from p2pfl.net.address import is_loopback, parse_address
from p2pfl.node.findings import Findings, Inspected


class DirectFindings(Findings):
    def of_files(self, inspected: Inspected) -> None:
        sharing = [node for node in inspected.here.values() if node.network.share_addresses]
        for node in sharing:
            key = f"{node.name}: share_addresses in [network] is of no use"
            if not node.relays:
                inspected.warnings.append(f"{key} without relays: addresses are told through them only")
            elif is_loopback(parse_address(node.listen, "listen").host):
                inspected.warnings.append(f"{key}: it listens at {node.listen}, on its own machine only")
        if sharing:
            names = ", ".join(node.name for node in sharing[:3]) + (" ..." if len(sharing) > 3 else "")
            inspected.brief["addresses"] = f"told by {names} to neighbors at a relay that tell theirs"
