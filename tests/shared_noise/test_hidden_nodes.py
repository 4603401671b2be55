"""Whole nodes with hidden models: all have the model that follows from all changes, whoever is missing or garbles."""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner

from p2pfl.cli import cli
from p2pfl.crypto.identity import Identity
from p2pfl.errors import UserError
from p2pfl.features.shared_noise import rounds as noise_rounds
from p2pfl.features.shared_noise.rounds import SumRounds
from p2pfl.features.sums import CommonState, Place, Refused, RoundsInStep, Shorthand, Standings, SumTalk, rounds
from p2pfl.features.sums.talk import THIN, WIDE
from p2pfl.learn import AveragedRounds
from tests.rounds_kit import broken_off, crash_at
from tests.shared_noise.conftest import ROUNDS, STEPS

pytestmark = pytest.mark.usefixtures("hasty")


BACK_S = 100.0
"""The others stay until who comes back has all, however late that is."""


@pytest.fixture
def hidden_ward(ward, monkeypatch):
    """Make a federation with hidden models whose common step is the mean; `privacy` are further keys of its table.

    Its model begins with zeros, from which the range of a change would be found within some rounds only.
    """
    monkeypatch.setattr("p2pfl.learn.averaging.LEAST_RMS", 8.0)

    def make(nodes=4, *, privacy=None, training=None, linger_s=3.0, **tables):
        gossip = {"linger_s": linger_s, "compressor": None}
        field = ward(nodes, training=STEPS | (training or {}), gossip=gossip, **tables)
        field.tables["privacy"] = {"hide": "models", "bits": 16, "outer": "mean"} | (privacy or {})
        field.write()
        return field

    return make


def alike(field, indices=None):
    models = [field.model(index) for index in indices or range(len(field.names))]
    assert all((model == models[0]).all() for model in models)
    return models[0]


async def finished(nodes):
    results = [await node.result() for node in nodes]
    assert all(result.finished and result.rounds == ROUNDS for result in results)
    return results


async def test_all_have_the_model_of_pooled_steps_and_no_message_of_gossip_leaves(hidden_ward, start):
    """Quadratic functions, one step a round: the mean change is that of the pooled function, but for rounding."""
    field = hidden_ward()
    nodes = start(field)
    results = await finished(nodes)
    optimum = nodes[0].setup.learner.optimum() * (1 - 0.8**ROUNDS)
    np.testing.assert_allclose(alike(field), optimum, atol=2e-3)
    assert [result.alarms for result in results] == [{}] * 4
    assert all(result.staleness is None for result in results)


@pytest.mark.timeout(400)  # refused sums wait, and a busy machine lets some be refused
async def test_who_dies_takes_its_group_out_and_is_back_with_the_others(hidden_ward, start, seen, monkeypatch):
    """A node's variate moves with the sums that its part is in, and with no others."""
    move, moved = AveragedRounds.next_model, []

    def next_model(rounds, start, total, members, round_index, **how):
        before = rounds.variate.copy()
        model = move(rounds, start, total, members, round_index, **how)
        moved.append((rounds._node, round_index + 1, bool((rounds.variate != before).any())))
        return model

    monkeypatch.setattr(AveragedRounds, "next_model", next_model)
    monkeypatch.setattr("p2pfl.features.sums.rounds.FIRST_S", 4.0)  # node 1 is in the first sums on a busy machine, too
    field = hidden_ward(7, training={"method": "variate"}, linger_s=BACK_S)
    crashed = crash_at(monkeypatch, SumRounds, "_make_part", 1, lambda one: one.algorithm.facts.rounds >= 2, after=True)
    nodes = start(field)
    await broken_off(nodes[1], crashed)
    await nodes[6].until(lambda: nodes[6].rounds >= 3, 100)
    (nodes[1],) = start(field, 1)
    await nodes[6].until(lambda: nodes[6].rounds >= ROUNDS, 250)  # set-ups that fail wait ever longer
    await finished(nodes)
    alike(field)
    groups = [set(group) for group in seen.rounds[0]._groups]
    sets = [set(done.members) for *_, done in seen.sums[6]]
    assert all(any(group <= members or not group & members for group in groups) for members in sets)
    assert all(members == set().union(*(group for group in groups if group <= members)) for members in sets)
    assert {3, 4, 5, 6} in sets
    said = [event for event in nodes[1].application.driver.feed.events if event.kind == "state-fetched"]
    after = [int(re.search(r"\d+", event.text)[0]) for event in said]
    assert after, "it was behind"
    assert all(later - earlier > 1 for earlier, later in pairwise(after)), "it says so, not each round that it follows"
    taken = {(node, label): done.members for node, sums in seen.sums.items() for label, _, done in sums}
    assert all(is_moved == (node in taken[node, f"round {number}"]) for node, number, is_moved in moved)
    assert {is_moved for *_, is_moved in moved} == {True, False}


async def test_a_node_of_the_version_before_sums_with_the_others(hidden_ward, start, monkeypatch):
    """It has no channel for posts in short, and takes what is not signed for a fault."""
    channels, settings, whole, said = RoundsInStep.channels, rounds.settings_of, Shorthand.whole, []

    def without(federation, index, **how):
        return settings(federation, index, **how | {"is_plain": index != 1})

    def offered(one):
        is_older = one.state.algorithm.index == 1
        return tuple(each for each in channels(one) if not (is_older and each.channel in {THIN, WIDE}))

    monkeypatch.setattr(rounds, "settings_of", without)
    monkeypatch.setattr(RoundsInStep, "channels", offered)
    monkeypatch.setattr(Shorthand, "whole", lambda short, thin: said.append(thin) or whole(short, thin))
    field = hidden_ward()
    results = await finished(start(field))
    alike(field)
    assert [result.alarms for result in results] == [{}] * 4
    assert said
    assert all(thin.signature for thin in said)


async def test_a_node_that_crashes_with_a_sum_in_hand_is_back_with_the_others(hidden_ward, start, seen, monkeypatch):
    field = hidden_ward(training={"method": "variate"}, linger_s=BACK_S)
    crashed = crash_at(monkeypatch, CommonState, "commit", 1, lambda one: one.algorithm.facts.rounds == 2, after=False)
    nodes = start(field)
    await broken_off(nodes[1], crashed)
    kept = seen.rounds[1].shared.variate
    (nodes[1],) = start(field, 1)
    await finished(nodes)
    alike(field)
    assert [rounds.shared.variate is None for rounds in seen.rounds.values()] == [False] * 4
    assert kept.any()


async def test_who_became_a_member_since_the_start_is_neither_heard_nor_told(hidden_ward, start, seen):
    nodes = start(hidden_ward())
    await nodes[0].until(lambda: nodes[0].rounds >= 1)
    said, newcomer = [], Standings(nodes[0].setup.federation, b"", Identity.generate(), 4, 2)
    for talk in (seen.rounds[0].talk, seen.rounds[0].state.talk):
        talk._say = lambda peer, *given, say=talk._say: said.append(peer) or say(peer, *given)
    for channel in seen.rounds[0].channels():
        channel.handler.opened(4)
        channel.handler.hear(4, newcomer.state(Place(0, bytes(32)), 1))
        channel.handler.closed(4)
    assert 4 not in said
    await finished(nodes)


@pytest.mark.parametrize("method", ["plain", "variate"])
async def test_a_part_of_a_refused_sum_is_never_rounded_anew(hidden_ward, start, seen, monkeypatch, method):
    total, given = SumTalk.sum, []

    async def refuse_once(talk, label, values, terms, **asked):
        is_it = label == "round 3" and talk is seen.rounds[1].talk
        if is_it:
            given.append(values.tobytes())
        if is_it and len(given) == 1:
            return Refused(label=label, reason="as the test wants it", is_out=True)
        return await total(talk, label, values, terms, **asked)

    monkeypatch.setattr(SumTalk, "sum", refuse_once)
    field = hidden_ward(training={"method": method})
    await finished(start(field))
    alike(field)
    assert given[0] == given[1]
    if method == "variate":  # that round moved each node's once: all have as many rows
        assert np.abs(sum(rounds.shared.variate for rounds in seen.rounds.values())).max() < 1e-5
        assert all(np.abs(rounds.shared.variate).max() > 1e-3 for rounds in seen.rounds.values())


async def test_a_garbled_part_is_noticed_by_its_check_and_the_round_is_made_again(
    hidden_ward, start, seen, monkeypatch
):
    total, lies, given = SumTalk.sum, [], []

    async def garble(talk, label, values, terms, **asked):
        if label == "round 3" and talk is seen.rounds[0].talk:
            given.append((values, values.tobytes()))
        if label == "round 3" and talk is seen.rounds[3].talk and not lies:
            lies.append(1)
            values = values.copy()
            values[2] ^= np.uint64(1)  # a number that is possible, with the check of another one
        return await total(talk, label, values, terms, **asked)

    monkeypatch.setattr(SumTalk, "sum", garble)
    field = hidden_ward()
    nodes = start(field)
    results = await finished(nodes)
    assert lies
    np.testing.assert_allclose(alike(field), nodes[0].setup.learner.optimum() * (1 - 0.8**ROUNDS), atol=2e-3)
    assert all(result.alarms.get("sum-spoiled") == 1 for result in results)
    assert np.shares_memory(
        given[0][0], given[1][0]
    )  # of a part made anew, as with a kept optimizer, a difference could tell
    assert given[0][1] == given[1][1]


async def test_a_large_model_goes_in_slices_of_the_same_members(hidden_ward, start, seen, monkeypatch):
    monkeypatch.setattr(noise_rounds, "MOST_ENTRIES", 4)
    field = hidden_ward()
    nodes = start(field)
    await finished(nodes)
    np.testing.assert_allclose(alike(field), nodes[0].setup.learner.optimum() * (1 - 0.8**ROUNDS), atol=2e-3)
    slices = [done.members for label, _, done in seen.sums[0] if label == "round 1"]
    assert len(slices) > 1
    assert len(set(slices)) == 1


@pytest.mark.parametrize("first", ["gossip", "hide"])
async def test_a_state_of_gossip_is_not_hidden_afterwards_nor_the_other_way_as_check_says(first, hidden_ward, start):
    field = hidden_ward()
    tables = {"hide": field.tables.pop("privacy"), "gossip": None}
    for kind in (first, *(tables.keys() - {first})):
        field.tables |= {"privacy": tables[kind]} if tables[kind] else {}
        field.tables = {name: table for name, table in field.tables.items() if name != "privacy" or tables[kind]}
        field.write()
        if kind == first:
            nodes = start(field)
            await asyncio.gather(*(node.task for node in nodes))
    (node,) = start(field, 0)
    text = "has learned by gossip" if first == "gossip" else "was learned with hide"
    with pytest.raises(UserError, match=text):
        await node.result()
    checked = await asyncio.to_thread(CliRunner().invoke, cli, ["check", str(field.folder)])
    assert text in checked.output


async def test_nodes_of_which_one_does_not_hide_refuse_each_other_by_the_key(hidden_ward, start, caplog):
    field = hidden_ward()
    text = (field.folder / "federation.toml").read_text()
    (field.folder / "open.toml").write_text(re.sub(r"\[privacy\]\n[^\[]*", "", text))
    nodes = [*start(field, 0, 1, 2), *start(field, 3, file="open.toml")]
    await nodes[0].until(lambda: any("privacy.hide" in record.getMessage() for record in caplog.records), 30)
