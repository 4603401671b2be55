"""Own tables: the nodes agree on a schema before they start (`agreeing`); a running node needs nothing of it."""

from __future__ import annotations

import asyncio

from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.crypto.identity import Identity
from p2pfl.learn.table.agreed import agreed_file, is_to_agree
from p2pfl.node.feature import Attached, Feature, NodeView


class TablesFeature(Feature):
    name = "tables"

    def attach(self, node: NodeView) -> Attached | None:  # noqa: ARG002 - a running node needs nothing of it
        return None


def prepare(federation: FederationConfig, node: NodeConfig, *, launched: bool) -> bool:
    """Agree on a schema with the other nodes, if the task asks for it: before anything else, and once."""
    if not is_to_agree(federation.task) or agreed_file(node.state_dir).is_file():
        return True
    from p2pfl.features.tables.agreeing import agree  # noqa: PLC0415 - of use to such nodes alone

    return asyncio.run(agree(federation, node, Identity.load(node.key_file), launched=launched))
