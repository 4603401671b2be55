"""Whatever is signed, restarted and cut apart, in any order: in the end all nodes have the newest charter."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from charter_kit import STRANGER, added, after, first, key_of, sign, ward
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pfl.config import CharterError, amended, checked, successor, with_settings, without_member
from p2pfl.errors import PeerFault, StorageError, UserError
from p2pfl.features.members import CONFLICT, WAITS, CharterAsked, CharterKeeper, CharterPart, CharterTalk, CharterTold
from p2pfl.limits import CHARTER_PATIENCE_S, MOST_CHARTER_ASKS, MOST_CHARTER_PART_BYTES
from p2pfl.node import CHARTER_FILE, load_kept, newest

WARD = ward(4)


class Node:
    """A keeper on disk and what it says; `alarms` are kinds, `amended` the versions that took effect."""

    def __init__(self, folder, federation=WARD, say=None, clock=lambda: 0.0):
        self.folder, self.file_of = folder, federation
        self.alarms, self.amended, self.sent = [], [], []
        self.running, self.obstacles = None, []
        self.say, self.clock = say or self._say, clock
        folder.mkdir(exist_ok=True)
        self.start()

    def start(self):
        """As after a crash: what is not on disk is forgotten."""
        self.keeper = CharterKeeper(
            newest(self.file_of, self.folder),
            self.folder / CHARTER_FILE,
            on_charter=self.took,
            on_alarm=lambda kind, *_: self.alarms.append(kind),
        )
        self.talk = CharterTalk(self.keeper, self.say, self.clock)

    def took(self, federation):
        if self.obstacles:
            raise UserError(self.obstacles.pop())
        self.running = federation
        self.amended.append(federation.edition.version)

    def _say(self, peer, channel, message, *, if_free=False):
        self.sent.append(message)

    @property
    def edition(self):
        return self.keeper.edition


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path / "state")


THREE = after(WARD, first(WARD))
NEXT = added(THREE, 4)


# --- what is taken --------------------------------------------------------------------------------------------------


def test_a_newer_charter_is_on_disk_before_anybody_hears_of_it(node):
    seen = []
    node.start()
    node.keeper.on_taken = lambda: seen.append(load_kept(node.folder, WARD).edition == NEXT.edition)
    node.keeper.offer(NEXT.packed())
    assert seen == [True]
    assert node.edition == NEXT.edition


def test_an_older_one_and_the_same_one_change_nothing_also_after_a_restart(node):
    node.keeper.offer(NEXT.packed())
    for _ in range(2):
        for known in (first(WARD), NEXT):
            node.keeper.offer(known.packed())
            assert node.edition == NEXT.edition
        node.start()


def test_of_one_that_no_admin_has_signed_nothing_is_read_and_nothing_is_told(node):
    """Reading a long one takes a tenth of a second, and the answer to an older one tells a stranger the version."""
    node.keeper.offer(NEXT.packed())
    forged = sign(successor(WARD), STRANGER)
    assert forged.version < NEXT.version
    with pytest.raises(CharterError):
        node.keeper.offer(forged.packed())


@pytest.mark.parametrize(
    "raw",
    [
        sign(successor(THREE), STRANGER).packed(),
        NEXT.packed()[:-1],
        NEXT.packed() + b"\0",
        bytes([1]) + NEXT.packed()[1:],
        first(ward(4, name="other")).packed(),
        sign(replace(NEXT, members=(replace(NEXT.members[1], index=0), *NEXT.members[1:]))).packed(),
        b"",
        bytes(2**20 + 1),
    ],
    ids=["stranger", "cut", "longer", "another signer", "another federation", "swapped", "empty", "too large"],
)
def test_what_is_no_charter_of_ours_is_refused_and_not_kept(raw, node):
    with pytest.raises(CharterError):
        node.keeper.offer(raw)
    with pytest.raises(PeerFault):
        node.keeper.bring(raw)
    assert node.keeper.version == 0
    assert not (node.folder / CHARTER_FILE).exists()


def test_swapped_indices_of_later_members_are_refused_by_who_knows_them(node):
    four = after(THREE, NEXT)
    five = added(four, 5)
    rows = (*five.members[:4], replace(five.members[5], index=4), replace(five.members[4], index=5))
    node.keeper.offer(NEXT.packed())
    with pytest.raises(CharterError, match="another member"):
        node.keeper.offer(sign(replace(five, members=rows)).packed())


def test_one_version_signed_twice_is_an_alarm_and_the_same_one_wins(tmp_path):
    mine, theirs = added(THREE, 4), added(THREE, 5)
    winner = max(mine, theirs, key=lambda charter: charter.digest)
    for order in itertools.permutations([mine, theirs]):
        node = Node(tmp_path / order[0].digest.hex())
        for charter in order:
            node.keeper.offer(charter.packed())
        assert node.edition == winner.edition
        assert node.alarms.count(CONFLICT) >= 1
        before = list(node.alarms)
        for charter in order:
            node.keeper.offer(charter.packed())
        assert node.alarms == before, "said once"


@pytest.fixture
def torn(node):
    """Runs with a version that lost, whose newcomer has the index of the winner's; `winner` is the federation by it."""
    mine, theirs = sorted((added(THREE, 4), added(THREE, 5)), key=lambda charter: charter.digest)
    for charter in (mine, theirs):
        node.keeper.offer(charter.packed())
    node.winner = after(THREE, theirs)
    return node


def test_an_index_given_to_somebody_else_takes_effect_at_the_next_start_alone(torn):
    lost, won = torn.running.members[4], torn.winner.members[4]
    assert lost.key != won.key
    assert torn.alarms == [CONFLICT, WAITS]
    assert won.key in torn.keeper.keys
    assert lost.key not in torn.keeper.keys, "cut off"
    torn.start()
    assert torn.keeper.federation.members[4].key == won.key


def test_whoever_a_charter_removes_is_gone_at_once_though_its_indices_do_not_fit(torn):
    edges = torn.running.edges
    torn.keeper.offer(sign(without_member(torn.winner, "pi1")).packed())
    assert torn.running.retired == {1}
    assert set(torn.running.edges) == {edge for edge in edges if 1 not in edge}
    assert torn.running.edition.version == 2
    assert torn.alarms == [CONFLICT, WAITS, WAITS]


def test_a_later_charter_that_fits_takes_effect_though_one_before_it_did_not(torn):
    removed = sign(without_member(torn.winner, "pi1"))
    torn.keeper.offer(removed.packed())
    rows = (*torn.keeper.federation.members[:4], torn.running.members[4])
    fits = replace(removed, version=9, previous=bytes(32), members=rows)
    torn.keeper.offer(sign(fits).packed())
    assert torn.running.edition.version == 9
    assert torn.running is torn.keeper.federation


def test_a_charter_that_the_node_cannot_go_by_removes_members_all_the_same(node):
    node.keeper.offer(NEXT.packed())
    node.obstacles = ["an existing edge has another compressor"]
    gone = sign(without_member(node.running, "pi1"))
    node.keeper.offer(gone.packed())
    assert node.alarms == [WAITS]
    assert (node.running.retired, node.running.edition.version) == ({1}, 2)
    node.keeper.offer(sign(with_settings(after(THREE, NEXT, gone), rounds=7)).packed())
    assert (node.running.edition.version, node.running.training.rounds) == (4, 7)
    assert node.alarms == [WAITS]


def test_a_full_disk_is_an_alarm_and_the_charter_holds_all_the_same(node, monkeypatch):
    def refuse(*_):
        raise StorageError("full")

    with monkeypatch.context() as full:
        full.setattr("p2pfl.features.members.charters.replace_file", refuse)
        node.keeper.offer(NEXT.packed())
    assert (node.alarms, node.amended) == (["storage"], [2])
    assert load_kept(node.folder, WARD) is None
    node.talk.look(0.0)
    assert load_kept(node.folder, WARD).edition == NEXT.edition


def test_a_damaged_file_is_no_charter_and_no_obstacle(node, caplog):
    node.keeper.offer(NEXT.packed())
    file = node.folder / CHARTER_FILE
    file.write_bytes(file.read_bytes()[:-3])
    node.start()
    assert node.keeper.version == 0
    assert "cannot be used" in caplog.text


def test_the_newer_one_of_two_files_counts(tmp_path):
    node = Node(tmp_path / "state")
    node.keeper.offer(NEXT.packed())
    later = sign(with_settings(after(THREE, NEXT), rounds=9))
    assert newest(after(WARD, first(WARD)), node.folder).edition == NEXT.edition
    assert newest(after(WARD, later), node.folder).edition == later.edition
    assert newest(replace(WARD, admin=()), node.folder).edition is None


def test_a_node_that_others_do_not_list_any_more_says_so_once_for_each_version_of_each_member(node):
    node.keeper.offer(NEXT.packed())
    for version in (1, 2, 7, 7, 5, 8):
        node.keeper.left_behind(version, 3)
    assert node.alarms == ["charter-older"] * 2
    node.keeper.left_behind(2**53 - 1, 4)
    node.keeper.left_behind(9, 3)
    assert node.alarms == ["charter-older"] * 4, "a lie covers up nothing"


def test_what_many_neighbors_say_alike_is_told_a_few_times_with_their_number(node, monkeypatch):
    told = []
    monkeypatch.setattr(node.keeper, "alarm", lambda _kind, peer, text: told.append((peer, text)))
    for peer in range(50):
        node.keeper.left_behind(3, peer)
    assert [peer for peer, _ in told] == [0, 3, 15]
    assert "does not list this node" in told[0][1]
    assert ["16 members say so" in text for _, text in told] == [False, False, True]


# --- what sessions say ----------------------------------------------------------------------------------------------


def test_a_neighbor_is_told_at_the_start_and_asked_for_what_is_newer(node):
    node.talk.opened(7)
    assert node.sent == [CharterTold(version=0, fingerprint=b"")]
    node.talk.hear(7, CharterTold(version=2, fingerprint=NEXT.digest))
    assert node.sent[1:] == [CharterAsked(version=0)]
    node.talk.hear(7, CharterTold(version=0, fingerprint=b""))
    assert len(node.sent) == 2


def large():
    """A charter of several pieces."""
    rows = list(NEXT.members)
    rows += [replace(rows[-1], index=i, name=f"pi{i}", key=key_of(i).public) for i in range(5, 1000)]
    return sign(replace(NEXT, members=tuple(rows)))


def test_a_charter_comes_in_pieces(tmp_path):
    one, other = Node(tmp_path / "one"), Node(tmp_path / "other")
    one.keeper.offer(large().packed())
    one.talk.opened(0)
    one.talk.hear(0, CharterAsked(version=0))
    pieces = [message for message in one.sent if isinstance(message, CharterPart)]
    assert len(pieces) > 1
    assert max(len(piece.part) for piece in pieces) <= MOST_CHARTER_PART_BYTES
    other.talk.opened(0)
    other.talk.hear(0, CharterTold(version=2, fingerprint=large().digest))
    for piece in pieces:
        assert other.keeper.version == 0
        other.talk.hear(0, piece)
    assert other.edition == large().edition
    assert other.sent[-1] == CharterTold(version=2, fingerprint=large().digest)


@pytest.mark.parametrize(
    "piece",
    [
        CharterPart(size=2, offset=0, part=b"abc"),
        CharterPart(size=2**20 + 1, offset=0, part=b"abc"),
        CharterPart(size=2**50, offset=0, part=b"abc"),
    ],
)
def test_a_piece_beyond_the_end_ends_the_session(piece, node):
    node.talk.opened(7)
    node.talk.hear(7, CharterTold(version=2, fingerprint=NEXT.digest))
    with pytest.raises(PeerFault, match="beyond its end"):
        node.talk.hear(7, piece)


def test_a_piece_that_nobody_asked_for_ends_the_session(node):
    node.talk.opened(7)
    with pytest.raises(PeerFault, match="not asked for"):
        node.talk.hear(7, CharterPart(size=3, offset=0, part=b"abc"))


def test_a_neighbor_that_only_boasts_is_an_alarm(node):
    node.talk.opened(7)
    node.talk.hear(7, CharterTold(version=2**52, fingerprint=bytes(32)))
    for step in range(1, 3 * MOST_CHARTER_ASKS):
        node.talk.look(step * (CHARTER_PATIENCE_S + 1))
    assert node.sent.count(CharterAsked(version=0)) == MOST_CHARTER_ASKS
    assert node.alarms == ["charter-older"]


def test_a_forged_charter_is_an_alarm_and_not_asked_for_again(node):
    forged = sign(successor(THREE), STRANGER).packed()
    node.talk.opened(7)
    node.talk.hear(7, CharterTold(version=9, fingerprint=bytes(32)))
    node.talk.hear(7, CharterPart(size=len(forged), offset=0, part=forged))
    node.talk.look(1000.0)
    assert node.alarms == ["charter-older"]
    assert node.sent.count(CharterAsked(version=0)) == 1
    assert node.keeper.version == 0


def test_a_neighbor_gets_so_many_charters_and_asks_so_often(node):
    node.keeper.offer(NEXT.packed())
    node.talk.opened(7)
    for _ in range(100):
        node.talk.hear(7, CharterAsked(version=0))
        node.talk.closed(7)
        node.talk.opened(7)
    assert 1 <= sum(isinstance(message, CharterPart) for message in node.sent) <= 10
    for version in range(3, 103):
        node.talk.hear(7, CharterTold(version=version, fingerprint=bytes(32)))
        with suppress(PeerFault):  # not asked for any more
            node.talk.hear(7, CharterPart(size=1, offset=0, part=b"x"))
    assert sum(isinstance(message, CharterAsked) for message in node.sent) <= 10


# --- all of it together ---------------------------------------------------------------------------------------------


class World:
    """Nodes on a ring; links go down and up, nodes restart and are wiped, admins sign from what some node has."""

    def __init__(self, folder, count):
        self.wires = deque()
        self.now = 0.0
        self.nodes = [
            Node(folder / str(index), say=self.wire_of(index), clock=lambda: self.now) for index in range(count)
        ]
        self.up = {}
        self.numbers = itertools.count(1)
        self.newcomers = itertools.count(10)
        for edge in self.edges:
            self.connect(edge)

    def wire_of(self, index):
        def say(peer, channel, message, *, if_free=False):
            number = self.up.get((index, peer)) or self.up.get((peer, index))
            self.wires.append((index, peer, number, channel.unpack(channel.pack(message).body)))

        return say

    @property
    def edges(self):
        return [(i, (i + 1) % len(self.nodes)) for i in range(len(self.nodes))]

    def connect(self, edge):
        if edge not in self.up:
            self.up[edge] = next(self.numbers)
            for one, other in (edge, edge[::-1]):
                self.nodes[one].talk.opened(other)

    def cut(self, edge):
        number = self.up.pop(edge, None)
        if number is not None:
            for one, other in (edge, edge[::-1]):
                self.nodes[one].talk.closed(other)

    def restart(self, index, *, wipe=False):
        touching = [edge for edge in self.up if index in edge]
        for edge in touching:
            self.cut(edge)
        node = self.nodes[index]
        if wipe:
            shutil.rmtree(node.folder)
            node.folder.mkdir()
        node.start()
        for edge in touching:
            self.connect(edge)

    def sign(self, index, what):
        """An admin takes what this node has for the newest, changes it and hands it to that node."""
        federation = self.nodes[index].keeper.federation
        if what == "add":
            charter = added(federation, next(self.newcomers))
        elif what == "remove" and len(federation.present) > 3:
            charter = sign(without_member(federation, federation.present[-1].name))
        else:
            charter = sign(with_settings(federation, rounds=next(self.newcomers)))
        self.nodes[index].keeper.offer(charter.packed())

    def deliver(self, most=10**6):
        for _ in range(most):
            if not self.wires:
                return
            source, target, number, message = self.wires.popleft()
            if any(self.up.get(edge) == number for edge in ((source, target), (target, source))):
                self.nodes[target].talk.hear(source, message)

    def settle(self):
        for edge in self.edges:
            self.connect(edge)
        for _ in range(40):
            self.deliver()
            self.now += 20.0
            for node in self.nodes:
                node.talk.look(self.now)


INDEX = st.integers(0, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("sign"), INDEX, st.sampled_from(["add", "remove", "set"])),
        st.tuples(st.just("cut"), INDEX),
        st.tuples(st.just("connect"), INDEX),
        st.tuples(st.just("restart"), INDEX),
        st.tuples(st.just("deliver"), st.integers(1, 10)),
    ),
    max_size=25,
)


@pytest.mark.long
@given(STEPS)
@settings(max_examples=60)
def test_all_end_with_the_newest_whatever_the_order_of_versions_restarts_and_partitions(steps):
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), 4)
        best = world.nodes[0].edition
        for what, *arguments in steps:
            before = [node.edition for node in world.nodes]
            match what:
                case "cut" | "connect":
                    getattr(world, what)(world.edges[arguments[0]])
                case _:
                    getattr(world, what)(*arguments)
            after_all = [node.edition for node in world.nodes]
            assert all(now >= then for now, then in zip(after_all, before, strict=True)), "nobody goes back"
            best = max(best, *after_all)
        world.settle()
        assert [node.edition for node in world.nodes] == [best] * 4
        if best.version:
            newest_of_all = checked(world.nodes[0].keeper.packed, WARD)
            for node in world.nodes:
                assert amended(WARD, newest_of_all).edges == node.keeper.federation.edges
                assert load_kept(node.folder, WARD).edition == best


@given(STEPS, st.lists(INDEX, max_size=3))
def test_a_wiped_node_gets_the_newest_from_those_who_have_it(steps, wiped):
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), 4)
        for what, *arguments in steps:
            if what in {"sign", "restart", "deliver"}:
                getattr(world, what)(*arguments)
        world.settle()
        best = world.nodes[0].edition
        for index in set(wiped) - {0}:
            world.restart(index, wipe=True)
        world.settle()
        assert [node.edition for node in world.nodes] == [best] * 4
