"""The findings of `p2pfl check` and `launch` about discovery: whether its library is installed."""

from __future__ import annotations

from p2pfl.errors import UserError
from p2pfl.features.lan.discovery import require_zeroconf
from p2pfl.node.findings import Findings, Inspected


class LanFindings(Findings):
    def of_files(self, inspected: Inspected) -> None:
        for node in inspected.here.values():
            if node.discovery:
                try:
                    require_zeroconf(node.path if node.path.exists() else inspected.federation.path)
                except UserError as error:
                    inspected.mistakes.append(error)

    before_launch = of_files
