"""What `p2pfl check` says about the bounds of the nodes here."""

from __future__ import annotations

from p2pfl.config.model import NeighborBounds, OwnNetwork
from p2pfl.node.findings import Findings, Inspected


class BoundsFindings(Findings):
    def of_files(self, inspected: Inspected) -> None:
        """Say each node's bounds in words, and warn of those for a member that is no neighbor of it."""
        told = []
        for index, node in inspected.here.items():
            parts = [_in_words(node.network)] if _in_words(node.network) else []
            parts += [f"with {name} {_in_words(each) or 'no bound'}" for name, each in node.network.neighbors.items()]
            if parts:
                told.append(f"{node.name}: {'; '.join(parts)}")
            around = {inspected.federation.members[peer].name for peer in inspected.federation.neighbors(index)}
            for name in sorted(node.network.neighbors.keys() - around):
                inspected.warnings.append(f"{node.name} has bounds for {name}, which is no neighbor of it: {node.path}")
        if told:
            inspected.brief["bounds"] = "; ".join(told)


def _in_words(bounds: OwnNetwork | NeighborBounds) -> str:
    parts = []
    if bounds.max_kbit_s is not None:
        parts.append(f"sends at most {bounds.max_kbit_s:g} kbit/s")
    if bounds.month_gb is not None:
        parts.append(f"pauses after {bounds.month_gb:g} GB in a month")
    if isinstance(bounds, OwnNetwork) and bounds.hours is not None:
        parts.append(f"takes part {bounds.hours} by the clock of its machine")
    return ", ".join(parts)
