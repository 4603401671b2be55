"""What nodes that agree on a schema sign, and all of it that a node has.

With `schema = "agreed"` a node signs the names of its columns and categories (`learn.table.naming`). Its figures leave
it only in a secure sum over all nodes (`learn.table.figure_sums`). With "agreed-openly" it signs its statistics
(`learn.table.proposal`), which all others see.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from p2pfl.config.charter import federation_id
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.crypto.identity import Identity
from p2pfl.errors import PeerFault, UserError
from p2pfl.features.sums.asking import refuse_few
from p2pfl.learn.table import naming, proposal
from p2pfl.learn.table.agreed import agreed_file, declared_by, is_open
from p2pfl.learn.table.figure_sums import FigureLayout
from p2pfl.learn.table.merging import Merged, merge
from p2pfl.learn.table.naming import TableNames
from p2pfl.learn.table.proposal import Proposal
from p2pfl.learn.table.proposing import own_proposal
from p2pfl.learn.table.writing import schema_text
from p2pfl.storage.disk import replace_file

notice = logging.getLogger("p2pfl.notice")

SIGNATURE_BYTES = 64
DOMAINS = {True: b"p2pfl proposal of a schema\0", False: b"p2pfl names for a schema\0"}
"""The prefix of the signed bytes, by whether figures are shown, so that no other signature can be used in their place.
"""
FILE_NAME = "proposal"
TEXT_NAME = "proposal.json"
FIGURES_NAME = "figures"
"""The node's own figures, which never leave it; kept so that they are the same at each start."""
COLLUDERS = 1
LEAST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedStatement:
    """What this node signs, in the form in which it is sent, and its statistics."""

    raw: bytes
    statistics: Proposal


class Agreement:
    """What a node has of all members' statements, by member, and the sums over all. `own` is this node's index."""

    def __init__(self, federation: FederationConfig, own: int, signed: SignedStatement) -> None:
        self.federation = federation
        self.own = own
        self.statistics = signed.statistics
        self.is_open = is_open(federation.task)
        self.expected = frozenset(member.index for member in federation.present)
        self.sums_item = len(federation.members)
        """The number under which the sums are passed on, as proposals are under their member's."""
        self.raw_items: dict[int, bytes] = {own: signed.raw}
        self._statements: dict[int, Proposal | TableNames] = {own: verify(federation, own, signed.raw)}
        self._layout: FigureLayout | None = None

    @property
    def lacking(self) -> frozenset[int]:
        """The members whose statements are not here."""
        return self.expected - self.raw_items.keys()

    @property
    def items(self) -> frozenset[int]:
        """All that nodes pass on."""
        return self.expected if self.is_open else self.expected | {self.sums_item}

    @property
    def is_complete(self) -> bool:
        return self.items == self.raw_items.keys()

    def offer(self, member: int, raw: bytes) -> None:
        """Accept a missing statement. Raises PeerFault: it was not made by its member."""
        if member not in self.lacking:
            return
        found = verify(self.federation, member, raw)
        self._statements[member], self.raw_items[member] = found, raw

    def bitmap(self) -> bytes:
        """Return one bit per item, set if it is here."""
        bits = bytearray((max(self.items) >> 3) + 1)
        for item in self.raw_items:
            bits[item >> 3] |= 1 << (item & 7)
        return bytes(bits)

    @property
    def layout(self) -> FigureLayout:
        """The layout of the sums, once all statements are here."""
        if self._layout is None:
            told = [one for one in self._statements.values() if isinstance(one, TableNames)]
            self._layout = FigureLayout(told, declared_by(self.federation.task))
        return self._layout

    def check_sums(self, raw: bytes) -> None:
        """Raises PeerFault: no tables with these names have such sums."""
        try:
            self.layout.proposals(sums_in(raw))
        except (ValueError, OverflowError) as error:
            raise PeerFault(f"sums of tables that there cannot be: {error}") from None

    def merge_all(self) -> Merged:
        """Merge the statements, with the sums. Raises UserError: they cannot be merged into a schema."""
        if self.is_open:
            proposals = [one for one in self._statements.values() if isinstance(one, Proposal)]
            return merge(proposals, declared_by(self.federation.task))
        try:
            return self.layout.merge(sums_in(self.raw_items[self.sums_item]))
        except (ValueError, OverflowError) as error:
            text = f"the sums over all nodes make no sense, so at least one of them has lied: {error}"
            raise UserError(text, file=self.federation.path, key="task.schema") from None


def preview(federation: FederationConfig, proposals: Sequence[Proposal]) -> Merged:
    """Return what nodes with these statistics would agree on. Raises UserError: they make no schema."""
    declared = declared_by(federation.task)
    if is_open(federation.task) or len(proposals) < len(federation.present):
        return merge(proposals, declared)
    layout = FigureLayout(map(naming.names_in, proposals), declared)
    return layout.merge(sum((layout.figures(one) for one in proposals), np.zeros(layout.size, np.int64)))


def sums_in(raw: bytes) -> np.ndarray:
    """Raises ValueError: these are no whole numbers of 8 bytes."""
    return np.frombuffer(raw, "<i8")


def refuse_few_members(federation: FederationConfig) -> None:
    """Raises UserError: the members are too few to agree on a schema by secure sums."""
    if is_open(federation.task):
        return
    try:
        refuse_few(federation, least=max(LEAST, len(federation.present)), colluders=COLLUDERS)
    except UserError as error:
        text = f"the nodes agree by sums, in which nobody sees another's figures, and cannot: {error.message}"
        allowed = (
            '"agreed-openly", with which each node shows all others its counts, sums and sums of squares; '
            "or a schema file: `p2pfl schema --help`"
        )
        value = federation.task.options.get("schema")
        raise UserError(text, file=federation.path, key="task.schema", value=value, allowed=allowed) from None


def sign_proposal(federation: FederationConfig, packed: bytes, identity: Identity) -> bytes:
    """Return a statement with its signature, in the form in which it is sent."""
    return packed + identity.sign(_domain(federation) + packed)


def verify(federation: FederationConfig, member: int, raw: bytes) -> Proposal | TableNames:
    """Verify and return a statement. Raises PeerFault: that member has not signed it, or it is not that member's."""
    packed, signature = raw[:-SIGNATURE_BYTES], raw[-SIGNATURE_BYTES:]
    by = federation.members[member]
    try:
        VerifyKey(by.key).verify(_domain(federation) + packed, signature)
        found = proposal.unpack(packed) if is_open(federation.task) else naming.unpack(packed)
    except (BadSignatureError, ValueError) as error:
        raise PeerFault(f"a proposal that {by.name} did not sign: {error}") from None
    if (found.node, found.federation) != (by.name, federation.name):
        raise PeerFault(f"a proposal of {found.node[:40]!r} that {by.name} has signed")
    return found


def _domain(federation: FederationConfig) -> bytes:
    return DOMAINS[is_open(federation.task)] + federation_id(federation)


def signed_statement(federation: FederationConfig, node: NodeConfig, identity: Identity) -> SignedStatement:
    """Return this node's statement. It is stored with the state, with a readable text, so that it is the same at each
    start.

    Raises UserError: its table cannot be read; StorageError: writing fails.
    """
    file, figures, opened = node.state_dir / FILE_NAME, node.state_dir / FIGURES_NAME, is_open(federation.task)
    try:
        raw = file.read_bytes()
        found = verify(federation, federation.member(node.name).index, raw)
        statistics = found if isinstance(found, Proposal) else proposal.unpack(figures.read_bytes())
        signed = SignedStatement(raw=raw, statistics=statistics)
    except (OSError, PeerFault, ValueError):
        signed = _sign_anew(federation, node, identity)
    if opened:
        text = "this node sends these statistics, and nothing else of its table: %s"
    else:
        text = "this node sends these names, and figures only in sums over all nodes: %s"
    notice.info(text, node.state_dir / TEXT_NAME)
    return signed


def _sign_anew(federation: FederationConfig, node: NodeConfig, identity: Identity) -> SignedStatement:
    made, packed = own_proposal(federation, node)
    node.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = proposal.text_of(made)
    if not is_open(federation.task):
        replace_file(node.state_dir / FIGURES_NAME, [packed])
        names = naming.names_in(made)
        packed, text = naming.pack(names), naming.text_of(names)
    raw = sign_proposal(federation, packed, identity)
    replace_file(node.state_dir / TEXT_NAME, [text.encode()])
    replace_file(node.state_dir / FILE_NAME, [raw])
    return SignedStatement(raw=raw, statistics=made)


def keep(federation: FederationConfig, node: NodeConfig, merged: Merged) -> bytes:
    """Store the schema with the node's state; return its digest."""
    origin = f"Agreed on by {len(federation.present)} nodes of {federation.name}."
    replace_file(agreed_file(node.state_dir), [schema_text(merged, origin=origin).encode()])
    for warning in merged.warnings:
        notice.warning("schema: %s", warning)
    notice.info("the nodes have agreed on a schema: %s", agreed_file(node.state_dir))
    return merged.schema.digest()
