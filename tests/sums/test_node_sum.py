"""`Node.sum`: nodes that each ask for themselves get the sum of those who are named, or one clear refusal."""

from __future__ import annotations

import asyncio
import os

import numpy as np
import pytest

from p2pfl import Federation, Node, UserError
from p2pfl.config.load import load_config, load_node, node_file
from p2pfl.crypto.identity import Identity
from p2pfl.features.sums import asking, talk
from p2pfl.features.sums.asking import sum_at_node
from p2pfl.features.sums.messages import Post, Reveal, Total, decode_statement
from p2pfl.features.sums.sessions import KeptSums, next_life
from p2pfl.features.sums.talk import SumTalk
from p2pfl.storage.disk import lock_folder

NAMES = ["north", "east", "south", "west"]


@pytest.fixture
def ward(tmp_path, monkeypatch):
    monkeypatch.setattr(talk, "LAST_S", 0.05)
    return Federation(nodes=NAMES, topology="ring").save(tmp_path / "ward")


@pytest.fixture
def hasty(monkeypatch):
    """Nobody waits long for others."""
    monkeypatch.setattr(asking, "FIRST_WAIT_S", 0.3)
    monkeypatch.setattr("p2pfl.features.sums.setup.LEAST_S", 0.1)


async def ask(folder, name, arrays, **terms):
    federation = load_config(folder)
    node = load_node(node_file(federation, name), federation, name)
    terms = {"within": (0, 1000)} | terms
    return await sum_at_node(federation, node, Identity.load(node.key_file), arrays, **terms)


async def all_ask(folder, given):
    """`given` has arrays and other keywords by name; returns what each got."""
    asked = (ask(folder, name, arrays, **terms) for name, (arrays, terms) in given.items())
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    return dict(zip(given, outcomes, strict=True))


def rows(names=NAMES, **terms):
    return {name: ({"rows": 100 + NAMES.index(name)}, terms) for name in names}


async def test_each_gets_the_sum_and_asks_again_with_what_it_has_signed_on_its_disk(ward):
    for life in (1, 2):
        found = await all_ask(ward, rows())
        assert all(total.sums["rows"] == 406 and total.members == tuple(NAMES) for total in found.values())
        for name in NAMES:
            assert (ward / name / "state" / "sums.life").read_text() == str(life)
            assert [members for _, members in KeptSums(ward / name / "state").past] == [frozenset(range(4))]


async def test_arrays_are_summed_exactly_each_in_its_shape(ward):
    ages = np.arange(6).reshape(2, 3)
    given = {name: ({"rows": 100 + n, "by age": ages * (n + 1)}, {}) for n, name in enumerate(NAMES)}
    found = (await all_ask(ward, given))["south"]
    assert found.sums["by age"].dtype == np.int64
    assert np.array_equal(found.sums["by age"], ages * 10)
    assert found.mean()["rows"] == 101.5


async def test_who_does_not_come_is_left_out_and_the_same_rows_without_another_are_refused(ward, hasty):
    found = await all_ask(ward, rows(NAMES[:3]))
    assert {total.members for total in found.values()} == {("north", "east", "south")}
    again = await all_ask(ward, rows(NAMES[1:]))
    assert all(isinstance(error, UserError) for error in again.values())
    text = "Node.sum: the sum was refused: too near to an earlier sum of these data; north did not come"
    assert str(again["east"]) == text


@pytest.mark.long
async def test_whoever_does_not_come_is_named_if_the_others_are_too_few(ward, hasty):
    found = await all_ask(ward, rows(NAMES[:2]))
    for error in found.values():
        assert isinstance(error, UserError)
        text = "Node.sum: the sum was refused: no set-up with 3 of 4 members came about; south, west did not come"
        assert str(error) == text


@pytest.mark.parametrize(
    "other", [({"row": 1}, {}), ({"rows": [1, 2]}, {}), ({"rows": 1}, {"within": (0, 9)}), ({"rows": 0.5}, {})]
)
async def test_a_node_that_sums_other_things_is_named(ward, other):
    found = await all_ask(ward, rows() | {"south": other})
    assert str(found["south"]).startswith(
        "Node.sum: the sum was refused: north, east, west did not give the same names, shapes, within and resolution"
    )
    for name in ("north", "east", "west"):
        assert found[name].members == ("north", "east", "west")
        assert found[name].sums["rows"] == 304


@pytest.mark.long
async def test_nodes_that_want_other_safety_do_not_sum_together(ward, hasty):
    found = await all_ask(ward, rows() | {"south": ({"rows": 1}, {"least": 4, "colluders": 2})})
    assert "north, east, west did not come" in str(found["south"])
    assert "sums with another least or colluders" in str(found["south"])
    assert found["north"].members == ("north", "east", "west")


async def test_while_the_node_runs_there_is_no_sum(ward):
    held = lock_folder(ward / "north" / "state")
    with pytest.raises(UserError, match=r"Node\.sum: north runs, or sums, at this moment"):
        await ask(ward, "north", {"rows": 1})
    os.close(held)


WRONG = [
    (3, {}, "arrays: north gave a int; allowed: a dictionary of arrays by name"),
    ({}, {}, "arrays: north gave a dict"),
    ({"x": []}, {}, "arrays: north gave 0 entries; allowed: 1 to 1048576"),
    ({"x": np.zeros(2**20 + 1)}, {}, "arrays: north gave 1048577 entries"),
    ({"x": "many"}, {}, "arrays: 'x' of north is an array of <U4"),
    ({"x": [[1], [2, 3]]}, {}, "arrays: 'x' of north is no array"),
    ({"x": 2000}, {}, "within: north: entry 0 of 'x' is 2000.0: allowed is 0 to 1000"),
    ({"x": [1.0, float("nan")]}, {}, "within: north: entry 1 of 'x' is nan: allowed is"),
    ({"x": 1}, {"within": 3}, "within: impossible value (found 3); allowed: (low, high)"),
    ({"x": 1}, {"within": (5, 5)}, "within: impossible value (found (5, 5))"),
    ({"x": 1}, {"within": (0, float("inf"))}, "within: impossible value"),
    ({"x": 1}, {"within": (0, 1e12), "resolution": 1e-9}, "within: (1000000000000.0 - 0.0) / 1e-09 is more than 2^52"),
    ({"x": 1}, {"within": (2**53, 2**53 + 8)}, "within: bounds of 9.0072e+15 in steps of 1"),
    ({"x": 1}, {"resolution": 0}, "within: resolution = 0.0: allowed is a finite number above 0"),
    ({"x": 1}, {"resolution": "fine"}, "resolution: impossible value (found 'fine')"),
    ({"x": 1}, {"least": "three"}, "least: impossible value (found 'three')"),
    ({"x": 1}, {"least": 2}, "least: impossible value (found 2)"),
    ({"x": 1}, {"least": 5}, "least: more than there are nodes (found 5); allowed: 3 to 4"),
    ({"x": 1}, {"colluders": 0}, "colluders: impossible value (found 0)"),
    (
        {"x": 1},
        {"colluders": 2},
        "colluders: too many (found 2); allowed: 1 to 1, as a sum may have as few as",
    ),
    ({"x": 1}, {"colluders": 3, "least": 4}, "colluders: too many (found 3); allowed: 1 to 2"),
]


@pytest.mark.parametrize(("arrays", "terms", "text"), WRONG)
async def test_bad_input_is_one_clear_error_and_leaves_nothing(ward, arrays, terms, text):
    with pytest.raises(UserError) as error:
        await ask(ward, "north", arrays, **terms)
    assert str(error.value).startswith(f"Node.sum: {text}")
    assert not (ward / "north" / "state").exists()


async def test_two_nodes_have_no_sum(tmp_path):
    pair = Federation(nodes=NAMES[:2], topology="ring").save(tmp_path / "pair")
    text = r"Node.sum: nodes: too few nodes for a secure sum: of two, each knows the other's part \(found 2\)"
    with pytest.raises(UserError, match=text):
        await ask(pair, "north", {"x": 1})


@pytest.mark.parametrize("left", [b"7", b"", b"\xff", b"a", b"9" * 40])
def test_a_life_grows_or_begins_anew(tmp_path, left):
    (tmp_path / "sums.life").write_bytes(left)
    assert [next_life(tmp_path), next_life(tmp_path)] == ([8, 9] if left == b"7" else [1, 2])


async def test_who_has_lost_its_folder_takes_a_later_life_from_the_others(ward):
    """Its first keys are older than those the others have, so it draws new ones."""
    await all_ask(ward, rows())
    await all_ask(ward, rows())
    (ward / "north" / "state" / "sums.life").unlink()
    found = await all_ask(ward, rows())
    assert all(total.sums["rows"] == 406 for total in found.values())


async def test_those_who_have_the_sum_stay_until_a_slow_neighbor_has_it(ward, monkeypatch):
    """West hears neither the total nor any secret before the others have theirs."""
    hear, farewell, through, held, stays = SumTalk._take, SumTalk.farewell, set(), [], {}

    def late(talk, peer, message):
        is_last = isinstance(message, Total) or (
            isinstance(message, Post) and isinstance(decode_statement(message.body), Reveal)
        )
        if is_last and talk._sums.settings.index == 3 and len(through) < 3:
            held.append((talk, peer, message))
        else:
            hear(talk, peer, message)

    async def stay(talk, members):
        through.add(talk._sums.settings.index)
        if len(through) == 3:
            for each in held:
                hear(*each)
        await farewell(talk, members)
        stays[talk._sums.settings.index] = set(talk._gone)

    monkeypatch.setattr(SumTalk, "_take", late)
    monkeypatch.setattr(SumTalk, "farewell", stay)
    found = await all_ask(ward, rows())
    assert {(total.members, int(total.sums["rows"])) for total in found.values()} == {(tuple(NAMES), 406)}
    assert stays == {0: {1, 3}, 1: {0, 2}, 2: {1, 3}, 3: {0, 2}}


async def test_a_neighbor_that_dies_after_the_sum_is_not_waited_for_long(ward, monkeypatch):
    farewell = SumTalk.farewell

    async def die(talk, members):
        if talk._sums.settings.index == 3:
            tasks["west"].cancel()
        await farewell(talk, members)

    monkeypatch.setattr(SumTalk, "farewell", die)
    monkeypatch.setattr(talk, "GONE_S", 0.2)
    tasks = {name: asyncio.create_task(ask(ward, name, *given[:1])) for name, given in rows().items()}
    async with asyncio.timeout(20):
        outcomes = await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes] == [False] * 3 + [True]
    assert outcomes[0].sums["rows"] == 406


async def test_a_sum_that_is_cancelled_leaves_the_node_free(ward):
    task = asyncio.create_task(ask(ward, "north", {"rows": 1}))
    while not (ward / "north" / "state" / "sums").exists():  # noqa: ASYNC110 - a file
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    os.close(lock_folder(ward / "north" / "state"))


def test_a_node_object_has_it_too(ward):
    with pytest.raises(UserError, match=r"Node\.sum: within: impossible value"):
        asyncio.run(Node(ward, "north").sum({"x": 1}, within=(1, 0)))
