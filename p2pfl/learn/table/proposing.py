"""A node's own proposal: from its table, or from a file beside its node file that a person has reviewed."""

from __future__ import annotations

import logging
from pathlib import Path

from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.errors import UserError
from p2pfl.learn.table.agreed import declared_by
from p2pfl.learn.table.layout import make_layout
from p2pfl.learn.table.profile import look_at
from p2pfl.learn.table.proposal import LEAST_COUNT, Proposal, pack, propose, read_proposal

log = logging.getLogger("p2pfl")

FILE_NAME = "proposal.json"


def own_proposal(federation: FederationConfig, node: NodeConfig) -> tuple[Proposal, bytes]:
    """The proposal and its bytes. A `proposal.json` beside the node file replaces that of the table.

    Raises UserError: the table, its layout or that file is wrong.
    """
    file = node.path.parent / FILE_NAME
    made = read_proposal(file) if file.exists() else proposal_of(federation, node)
    if (made.node, made.federation) != (node.name, federation.name):
        found, wanted = f"{made.node} of {made.federation}", f"{node.name} of {federation.name}"
        raise UserError("this is the proposal of another node", file=file, value=found, allowed=wanted)
    return made, pack(made)


def proposal_of(federation: FederationConfig, node: NodeConfig, least_count: int = LEAST_COUNT) -> Proposal:
    """The proposal of a node's table. Raises UserError: it cannot be read, or `[task]` is wrong."""
    options = federation.task.options
    declared = declared_by(federation.task, federation.path.parent)
    target = declared.get("target")
    if not isinstance(target, str):
        raise UserError("the task needs this option", file=federation.path, key="task.target", allowed="a column")
    chosen = [*declared.get("numeric", ()), *declared.get("categories", {})]
    profile = look_at(
        _path(federation, node),
        make_layout(options, node.data),
        fold=bool(declared.get("ignore_case", False)),
        only=[*chosen, target] if chosen else None,
        target=target,
    )
    if profile.dropped.count:
        log.warning("%s: %s", profile.path, profile.dropped.as_sentence(profile.rows))
    if target not in profile.columns:
        allowed = ", ".join(profile.columns)
        raise UserError(
            "the table lacks this column", file=profile.path, key="task.target", value=target, allowed=allowed
        )
    left_out = [str(name) for name in (*options.get("leave_out", ()), *node.data.get("leave_out", ()))]
    return propose(profile, node=node.name, federation=federation.name, least_count=least_count, leave_out=left_out)


def _path(federation: FederationConfig, node: NodeConfig) -> Path:
    given = node.data.get("path")
    if isinstance(given, str):
        return (node.path.parent / Path(given).expanduser()).absolute()
    common = federation.task.options.get("path")
    if isinstance(common, str):
        return federation.path.parent / common
    raise UserError("this node has no table", file=node.path, key="data.path", allowed='path = "..." in [data]')
