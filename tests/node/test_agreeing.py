"""Nodes agree on a schema over a network in memory: whatever the graph and the order of messages, all get the same."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

import pytest

from p2pfl.config import NewMember, federation_text, load_config
from p2pfl.crypto.identity import Identity, public_text
from p2pfl.errors import PeerFault
from p2pfl.features.tables.agreeing import (
    LEARNING,
    Agreement,
    ProposalPart,
    SchemaTalk,
    sign_proposal,
    verify,
)
from p2pfl.learn.table import ColumnProposal, Proposal, declared_by, merge, names_in, pack
from p2pfl.net import DIFFERS

NODES = 5
KEYS = [Identity(bytes([n]) * 32) for n in range(NODES)]


def make(folder):
    members = [
        NewMember(name=f"n{n}", key=public_text(key.public), address=f"127.0.0.1:{9000 + n}")
        for n, key in enumerate(KEYS)
    ]
    keys = 'schema = "agreed"\ntarget = "y"\n'
    text = federation_text(name="f", topology="path", task="csv", members=members, task_keys=keys)
    (folder / "federation.toml").write_text(text, encoding="utf-8")
    return load_config(folder)


@pytest.fixture
def federation(tmp_path):
    return make(tmp_path)


def proposal(federation, node, *, of=None, total=10.0, values=0):
    many = {f"v{n:05}": 1 for n in range(values)}
    columns = {
        "x": ColumnProposal(kind="number", count=10, total=total + node, squares=100.0 + 20 * node),
        "y": ColumnProposal(kind="number", count=10, total=5.0, squares=5.0, values={"0": 5, "1": 5}),
        "z": ColumnProposal(kind="category" if many else "empty", count=values, values=many),
    }
    made = Proposal(node=of or f"n{node}", federation="f", columns=columns)
    packed = pack(names_in(made))
    return sign_proposal(federation, packed, KEYS[node]), made


class Network:
    """One talk for each node; messages arrive in order on each edge, edges in any order."""

    def __init__(self, federation, **told):
        self.federation, self.queues = federation, {}
        self.digests = {}
        self.talks = [self._talk(n, proposal(federation, n, **told)) for n in range(NODES)]
        self.without_sum = set()
        """Those that get no sum of their own."""

    def _talk(self, n, signed):
        agreement = Agreement(self.federation, n, *signed)

        def conclude():
            self.digests[n] = agreement.merge_all().schema.digest()
            return self.digests[n]

        return SchemaTalk(
            agreement,
            self.federation.neighbors(n),
            lambda peer, channel, message: self.queues[n, peer].append(channel.unpack(channel.pack(message).body)),
            conclude,
        )

    def connect(self, a, b):
        self.queues[a, b], self.queues[b, a] = deque(), deque()
        self.talks[a].opened(b)
        self.talks[b].opened(a)

    def run(self, seed):
        rng = random.Random(seed)
        while waiting := [edge for edge, queue in self.queues.items() if queue]:
            sender, receiver = rng.choice(waiting)
            self.talks[receiver].hear(sender, self.queues[sender, receiver].popleft())
            self.sum_up(receiver)

    def run_all(self, seed):
        for a, b in self.federation.edges:
            self.connect(a, b)
        self.run(seed)

    def sum_up(self, n):
        """Give a node that has all names the sums, as the protocol does."""
        talk = self.talks[n]
        if talk.named.is_set() and not talk.digest and n not in self.without_sum:
            layout = talk.agreement.layout
            talk.take_sums(sum(layout.figures(one.agreement.statistics) for one in self.talks).astype("<i8").tobytes())


@pytest.mark.parametrize("seed", range(5))
def test_everybody_keeps_the_same_schema_whatever_the_order_of_messages(federation, seed):
    network = Network(federation, values=9000 if seed == 0 else 0)
    network.run_all(seed)
    assert len(network.digests) == NODES
    assert len(set(network.digests.values())) == 1
    assert all(talk.is_through for talk in network.talks)


def test_a_session_that_breaks_in_the_middle_is_no_harm(federation):
    network = Network(federation)
    for a, b in federation.edges:
        network.connect(a, b)
    for a, b in federation.edges:
        network.talks[a].closed(b)
        network.talks[b].closed(a)
        network.connect(a, b)
    network.run(0)
    assert all(talk.is_through for talk in network.talks)


def test_nobody_is_through_before_its_neighbors_are(federation):
    network = Network(federation)
    for a, b in federation.edges[:-1]:
        network.connect(a, b)
    network.run(0)
    assert network.digests == {}
    assert "n4" in network.talks[0].missing_text()


def test_a_neighbor_that_learns_has_what_it_needs(federation):
    network = Network(federation)
    network.run_all(0)
    talk = network.talks[0]
    talk.neighbors[1].is_through = False
    talk.alarm(DIFFERS, 1, "its federation file differs from ours in: task.options")
    assert not talk.is_through
    talk.alarm(DIFFERS, 1, LEARNING)
    assert talk.is_through


def test_a_proposal_that_its_node_has_not_signed_is_refused(federation):
    raw = proposal(federation, 1)[0]
    assert verify(federation, 1, raw).node == "n1"
    changed = raw.replace(b'"x"', b'"q"')
    other = replace(federation, name="g")
    for given, member in ((federation, 2), (other, 1)):
        with pytest.raises(PeerFault):
            verify(given, member, raw)
    for wrong in (changed, raw[:-1], b"", proposal(federation, 1, of="n2")[0]):
        with pytest.raises(PeerFault):
            verify(federation, 1, wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        ProposalPart(member=1, size=10, offset=5, part=b"later"),
        ProposalPart(member=1, size=3, offset=0, part=b"more than three"),
        ProposalPart(member=1, size=2**40, offset=0, part=b"a"),
        ProposalPart(member=99, size=3, offset=0, part=b"abc"),
        ProposalPart(member=1, size=3, offset=0, part=b"abc"),
    ],
)
def test_who_sends_what_no_honest_node_sends_is_hung_up_on(federation, wrong):
    network = Network(federation)
    network.connect(0, 1)
    with pytest.raises(PeerFault):
        network.talks[0].hear(1, wrong)


def test_who_missed_the_sum_gets_it_from_all_its_neighbors(federation):
    network = Network(federation)
    network.without_sum = {2}
    network.run_all(0)
    assert len(set(network.digests.values())) == 1
    assert all(talk.is_through for talk in network.talks)


@pytest.mark.parametrize("is_refused", [True, False])
def test_sums_of_one_neighbor_alone_are_taken_only_after_the_own_part_has_failed(federation, is_refused):
    network = Network(federation)
    network.without_sum = {1, 2, 3, 4}
    network.run_all(0)
    assert network.digests.keys() == {0}
    assert network.talks[1].missing_text() == "the sum of all nodes' figures"
    if is_refused:
        network.talks[1].refused()
    assert (1 in network.digests) == is_refused


@pytest.mark.parametrize("wrong", [b"", bytes(7), bytes(8), b"\xff" * 8])
def test_sums_that_no_tables_have_are_not_taken(federation, wrong, caplog):
    network = Network(federation)
    network.without_sum = set(range(NODES))
    network.run_all(0)
    talk, item = network.talks[0], network.talks[0].agreement.sums_item
    wrong = wrong * (talk.agreement.layout.size if wrong == b"\xff" * 8 else 1) or bytes(1)
    talk.hear(1, ProposalPart(member=item, size=len(wrong), offset=0, part=wrong))
    assert not talk.digest
    assert "neighbors pass on sums of tables that there cannot be" in caplog.text


def test_names_and_sums_give_the_schema_that_statistics_give(federation):
    network = Network(federation)
    network.run_all(0)
    shown = merge([talk.agreement.statistics for talk in network.talks], declared_by(federation.task))
    assert set(network.digests.values()) == {shown.schema.digest()}
