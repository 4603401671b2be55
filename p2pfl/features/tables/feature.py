"""Own tables: what `p2pfl check` finds in them. The nodes agree on a schema before they are nodes (`agreeing`)."""

from __future__ import annotations

from p2pfl.node.feature import Attached, Feature, NodeView
from p2pfl.node.findings import Findings


class TablesFeature(Feature):
    name = "tables"

    def findings(self) -> Findings:
        from p2pfl.features.tables.findings import TableFindings  # noqa: PLC0415 - of use to `check` alone

        return TableFindings()

    def attach(self, node: NodeView) -> Attached | None:  # noqa: ARG002 - a running node has no use for it
        return None
