"""`Federation.sum`: real nodes with real sessions get the sum of those who are named, or one clear refusal."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from p2pfl import Federation, UserError
from p2pfl.config.charter import federation_id
from p2pfl.errors import PeerFault, StorageError
from p2pfl.features.sums.messages import Post, SumDone, SumSettings, decode_statement
from p2pfl.features.sums.sessions import KeptSums, open_sums
from p2pfl.features.sums.talk import CHANNEL, Piece, SumTalk
from p2pfl.fleet.one_process import TRANSPORTS, _with_keys

NAMES = ["north", "east", "south", "west"]


def ring(nodes=4, **changes):
    return Federation(nodes=NAMES[:nodes] if nodes <= 4 else nodes, topology="ring", **changes)


def total(make, count, name):
    contexts = [type("Node", (), {"node": n, "nodes": count, "name": NAMES[n]}) for n in range(count)]
    return sum(np.asarray(make(each)[name]) for each in contexts)


def counts(node):
    return {"rows": 100 + node.node, "by age": np.arange(6).reshape(2, 3) * (node.node + 1)}


@pytest.mark.parametrize("transport", ["memory", "sockets"])
def test_counts_are_summed_exactly(transport):
    found = ring().sum(counts, within=(0, 1000), transport=transport)
    assert found.members == tuple(NAMES)
    assert found.sums["rows"] == 406
    assert found.sums["by age"].dtype == np.int64
    assert np.array_equal(found.sums["by age"], total(counts, 4, "by age"))
    assert repr(found) == "SecureSum(of north, east, south, west; 'by age': int64 (2, 3), 'rows': 406)"
    assert found.mean()["rows"] == 101.5


def test_floats_are_within_the_resolution_and_whole_numbers_beside_them_stay_whole():
    def make(node):
        return {"x": np.linspace(-1, 1, 1000) / (node.node + 1), "n": node.node}

    found = ring(3).sum(make, within=(-1.0, 4.0), transport="memory")
    assert np.allclose(found.sums["x"], total(make, 3, "x"), atol=3 * 5 / 2**33)
    assert (found.sums["n"], found.sums["n"].dtype) == (3, np.int64)
    coarse = ring(3).sum(make, within=(-1.0, 4.0), resolution=0.5, transport="memory")
    assert np.allclose(coarse.sums["x"] * 2, np.rint(coarse.sums["x"] * 2))


def test_whole_numbers_below_zero_and_bounds_between_them():
    found = ring(3).sum(lambda node: {"x": [-3, node.node]}, within=(-3.5, 2.5), transport="memory")
    assert found.sums["x"].tolist() == [-9, 3]


@pytest.mark.parametrize("transport", ["memory", "sockets"])
def test_large_arrays_travel_in_pieces(transport):
    def make(node):
        return {"x": np.full(60_000, node.node, np.int32), "y": np.arange(50_000)}

    found = ring().sum(make, within=(0, 50_000), transport=transport)
    assert (found.sums["x"] == 6).all()
    assert np.array_equal(found.sums["y"], 4 * np.arange(50_000))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_sixty_four_nodes_of_one_program_have_the_sum_of_all():
    found = ring(64).sum(lambda node: {"x": node.node}, within=(0, 63), transport="memory")
    assert (found.sums["x"], len(found.members)) == (63 * 32, 64)


def test_it_works_below_a_running_event_loop_as_in_a_notebook():
    async def cell():
        return ring(3).sum(counts, within=(0, 1000), transport="memory")

    assert asyncio.run(cell()).sums["rows"] == 303


def test_a_folder_s_node_files_say_where_each_node_has_its_data(tmp_path):
    folder = ring(3).save(tmp_path / "ward")
    for number, name in enumerate(NAMES[:3]):
        (folder / name / "rows.txt").write_text("x" * (number + 1))
        with (folder / name / "node.toml").open("a") as file:
            file.write('path = "rows.txt"\n')
    found = Federation.from_file(folder).sum(
        lambda node: {"rows": len(node.local["path"].read_text())}, within=(0, 9), transport="memory"
    )
    assert found.sums["rows"] == 6


def odd(node):
    if node.name == "south":
        raise ZeroDivisionError("no rows")
    return {"x": 1}


WRONG = [
    (2, {}, "nodes: too few nodes for a secure sum: of two, each knows the other's part (found 2)"),
    (4, {"colluders": 2}, "colluders: too many (found 2); allowed: 1 to 1, as a sum may have as few as least = 3"),
    (4, {"colluders": 3, "least": 4}, "colluders: too many (found 3); allowed: 1 to 2"),
    (4, {"colluders": 0}, "colluders: impossible value (found 0)"),
    (4, {"least": 5}, "least: more than there are nodes (found 5); allowed: 3 to 4"),
    (4, {"least": 2}, "least: impossible value (found 2)"),
    (4, {"transport": "pigeons"}, "transport: impossible value (found 'pigeons')"),
    (4, {"within": 3}, "within: impossible value (found 3); allowed: (low, high)"),
    (4, {"within": (5, 5)}, "within: impossible value (found (5, 5))"),
    (4, {"within": (0, float("inf"))}, "within: impossible value"),
    (4, {"within": (0, 2**62)}, "2^52 steps"),
    (4, {"within": (0, 1e12), "resolution": 1e-9}, "within: (1000000000000.0 - 0.0) / 1e-09 is more than 2^52 steps"),
    (4, {"resolution": 0}, "resolution = 0.0: allowed is a finite number above 0"),
    (4, {"resolution": "fine"}, "resolution: impossible value (found 'fine')"),
    (4, {"within": (2**53, 2**53 + 8)}, "within: bounds of 9.0072e+15 in steps of 1"),
    (4, {"make": odd}, "make: south raised ZeroDivisionError: no rows"),
    (4, {"make": lambda node: node.node}, "make: north gave a int; allowed: a dictionary of arrays by name"),
    (4, {"make": lambda _: {}}, "make: north gave a dict"),
    (4, {"make": lambda _: {"x": []}}, "make: north gave 0 entries; allowed: 1 to 1048576"),
    (4, {"make": lambda _: {"x": np.zeros(2**20 + 1)}}, "make: north gave 1048577 entries"),
    (4, {"make": lambda _: {"x": "many"}}, "make: 'x' of north is an array of <U4"),
    (4, {"make": lambda _: {"x": [[1], [2, 3]]}}, "make: 'x' of north is no array"),
    (4, {"make": lambda n: {"x": [1] * (n.node + 1)}}, "make: 'x' differs: shape (2,) at east, shape (1,) at north"),
    (4, {"make": lambda n: {"x": 1} | ({"y": 2} if n.node else {})}, "make: 'y' differs: shape () at east, missing at"),
    (4, {"make": lambda _: {"x": [1.0, float("nan")]}}, "within: north: entry 1 of 'x' is nan: allowed is"),
    (4, {"make": lambda n: {"x": 700 + 200 * n.node}}, "within: south: entry 0 of 'x' is 1100.0: allowed is 0 to 1000"),
]


@pytest.mark.parametrize(("nodes", "changes", "text"), WRONG)
def test_bad_input_is_one_clear_error(nodes, changes, text):
    terms = {"make": counts, "within": (0, 1000), "transport": "memory"} | changes
    with pytest.raises(UserError) as error:
        ring(nodes).sum(terms.pop("make"), **terms)
    assert text in str(error.value)
    assert str(error.value).startswith("Federation")


def test_more_nodes_than_one_process_bears_are_refused():
    with pytest.raises(UserError, match="too many nodes for one process"):
        Federation(nodes=65).sum(counts, within=(0, 1))


class Sites:
    """Nodes that sum in one event loop, each in a task of its own, so that each may die alone."""

    def __init__(self, count, topology="complete", entries=10, transport="memory"):
        self.federation, self.identities = _with_keys(Federation(nodes=count, topology=topology).config)
        self.vectors = [np.arange(entries, dtype="<u8") + 1000 * n for n in range(count)]
        self.transport, self.over, self.outcomes = TRANSPORTS[transport](), asyncio.Event(), {}
        self.first_wait_s = 4.0
        self.talks, self.folders, self.changed = {}, {}, asyncio.Event()

    async def one(self, index, terms=bytes(32)):
        settings = SumSettings(
            federation=federation_id(self.federation),
            members=tuple(member.key for member in self.federation.members),
            index=index,
            life=1,
            sums=2,
        )
        listen = self.federation.members[index].address
        async with open_sums(
            self.federation,
            settings,
            self.identities[index],
            listen=listen,
            folder=self.folders.get(index),
            transport=self.transport,
            first_wait_s=self.first_wait_s,
        ) as self.talks[index]:
            self.changed.set()
            self.outcomes[index] = await self.talks[index].sum("x", self.vectors[index], terms)
            self.changed.set()
            await self.over.wait()

    async def until(self, is_so):
        async with asyncio.timeout(100):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()

    async def run(self, count):
        """Until all have an outcome that are still there."""
        self.tasks = [asyncio.create_task(self.one(index)) for index in range(count)]
        for task in self.tasks:
            task.add_done_callback(lambda _: self.changed.set())
        await self.until(lambda: all(task.done() or n in self.outcomes for n, task in enumerate(self.tasks)))
        self.over.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def check(self, alive):
        for index in alive:
            outcome = self.outcomes[index]
            if isinstance(outcome, SumDone):
                assert np.array_equal(outcome.total, sum(self.vectors[member] for member in outcome.members))


@pytest.mark.parametrize(
    ("step", "transport"),
    [("Ack", "memory"), ("Wave", "memory"), ("Wave", "sockets"), ("SlotVote", "memory"), ("Reveal", "memory")],
)
async def test_a_node_that_dies_in_the_middle_is_in_the_sum_or_left_out_and_the_others_get_it(
    step, transport, monkeypatch
):
    sites, victim = Sites(5, transport=transport), 2
    hear = SumTalk._take

    def look(talk, peer, message):
        is_step = isinstance(message, Post) and type(decode_statement(message.body)).__name__ == step
        if is_step and talk is sites.talks.get(victim):
            sites.tasks[victim].cancel()
        hear(talk, peer, message)

    monkeypatch.setattr(SumTalk, "_take", look)
    await sites.run(5)
    assert sites.tasks[victim].cancelled()
    others = [0, 1, 3, 4]
    sites.check(others)
    assert all(isinstance(sites.outcomes[index], SumDone) for index in others)
    assert len({sites.outcomes[index].members for index in others}) == 1


async def test_what_is_signed_is_on_the_disk_and_a_disk_that_refuses_ends_the_sum_there(tmp_path, monkeypatch):
    sites = Sites(4)
    sites.folders = {0: tmp_path / "zero", 1: tmp_path / "one"}
    add = KeptSums.add

    def refuse(kept, data, members):
        if kept._path is not None and kept._path.parent.name == "one":
            raise StorageError("the disk is full")
        add(kept, data, members)

    monkeypatch.setattr(KeptSums, "add", refuse)
    await sites.run(4)
    assert [members for _, members in KeptSums(tmp_path / "zero").past] == [frozenset(range(4))]
    with pytest.raises(StorageError, match="the disk is full"):
        sites.tasks[1].result()
    sites.check([0, 2, 3])


async def test_a_neighbor_that_talks_nonsense_is_hung_up_on_and_the_sum_goes_on(monkeypatch):
    sites, faults = Sites(4), []
    hear, opened = SumTalk.hear, SumTalk.opened

    def listen(talk, peer, message):
        try:
            hear(talk, peer, message)
        except PeerFault as fault:
            faults.append((peer, str(fault)))
            raise

    def lie(talk, peer):
        opened(talk, peer)
        if talk is sites.talks[1] and peer == 0:
            talk._say(0, CHANNEL, Piece(size=10**6, offset=777, part=b"?"))

    monkeypatch.setattr(SumTalk, "hear", listen)
    monkeypatch.setattr(SumTalk, "opened", lie)
    await sites.run(4)
    assert faults == [(1, "a piece without those before it")]
    sites.check(range(4))
    assert all(isinstance(outcome, SumDone) for outcome in sites.outcomes.values())
