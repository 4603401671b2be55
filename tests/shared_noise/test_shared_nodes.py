"""Whole nodes whose rounds are sums: all have the same model, whoever crashes, lies or is late."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from p2pfl.core import RoundRefused
from p2pfl.features.privacy import BudgetGuard
from p2pfl.features.shared_noise.rounds import ROWS_FILE, SumRounds
from p2pfl.features.sums import CommonState, Place, Refused, Standings, SumTalk, rounds
from p2pfl.learn.privacy import SharedRounds
from tests.rounds_kit import broken_off, crash_at
from tests.shared_noise.conftest import ROUNDS

pytestmark = pytest.mark.usefixtures("hasty")


def alike(field):
    """Check that all nodes have one model, bit by bit; return it."""
    models = [field.model(index) for index in range(len(field.names))]
    assert all((model == models[0]).all() for model in models)
    return models[0]


def pooled(node, rounds=ROUNDS, rate=0.2):
    """The model after so many steps on the mean of all nodes' quadratic functions."""
    return node.setup.learner.optimum() * (1 - (1 - rate) ** rounds)


async def finished(nodes):
    results = [await node.result() for node in nodes]
    assert all(result.finished and result.rounds == ROUNDS for result in results)
    return results


async def test_all_have_the_model_that_follows_from_the_parts_and_pay_once_for_each(shared_ward, start, seen, silent):
    """Least squares, without noise here: the model is that of the pooled functions."""
    field = shared_ward()
    nodes = start(field)
    results = await finished(nodes)
    model = alike(field)
    np.testing.assert_allclose(model, pooled(nodes[0]), atol=1e-5)
    assert [result.alarms for result in results] == [{}] * 4
    shared = SharedRounds(seen.rounds[0].shared.plan, 1, [slice(0, model.size)])
    vector = np.zeros(model.size, np.float32)
    for number in range(ROUNDS):
        dones = [seen.sums[index][number][2] for index in range(4)]
        assert len({done.members for done in dones}) == 1
        total = sum(seen.sums[member][number][1] for member in dones[0].members)
        assert all((done.total == total).all() for done in dones)
        vector = shared.next_model(vector, total, len(dones[0].members), number)
    np.testing.assert_allclose(vector, model, atol=1e-6)
    for node, made in zip(nodes, (seen.parts[index] for index in range(4)), strict=True):
        assert [(number, paid) for number, _, paid in made] == [(n, n + 1) for n in range(ROUNDS)]
        assert seen.steps(node) == ROUNDS


LEAST_SQUARES = """
import numpy as np, torch
from p2pfl import Task
rng = np.random.default_rng(1)
x = rng.standard_normal((160, 2)).astype(np.float32)
y = x @ np.array([[1.0], [-2.0]], np.float32) + 0.1 * rng.standard_normal((160, 1)).astype(np.float32)
task = Task(
    model=lambda: torch.nn.Linear(2, 1, bias=False),
    data=lambda node: ((x[node.node :: node.nodes], y[node.node :: node.nodes]), None),
    loss=torch.nn.functional.mse_loss,
)
solution = np.linalg.lstsq(x, y, rcond=None)[0].ravel()
"""


async def test_records_of_all_nodes_lead_to_the_solution_of_pooled_least_squares(shared_ward, start, seen):
    """With real noise, little of it for an epsilon of 1000."""
    privacy = {"unit": "record", "delta": 1e-3, "clip": 20.0, "rate": 1.0}
    field = shared_ward(privacy=privacy, training={"learning_rate": 0.45}, task={"name": "least_squares.py:task"})
    (field.folder / "least_squares.py").write_text(LEAST_SQUARES)
    await finished(start(field))
    known = {}
    exec(LEAST_SQUARES, known)
    np.testing.assert_allclose(alike(field), known["solution"], atol=0.1)
    assert {seen.rounds[index].shared.rows for index in range(4)} == {160}


@pytest.mark.long
async def test_the_rows_of_all_are_known_again_after_a_crash_before_they_were_written_down(
    shared_ward, start, seen, monkeypatch
):
    privacy = {"unit": "record", "delta": 1e-3, "clip": 20.0, "rate": 1.0}
    field = shared_ward(privacy=privacy, task={"name": "least_squares.py:task"})
    (field.folder / "least_squares.py").write_text(LEAST_SQUARES)
    crashed = crash_at(monkeypatch, SumRounds, "_round", 1, lambda _: True, after=False)
    nodes = start(field)
    await broken_off(nodes[1], crashed)
    file = field.folder / "node1" / "state" / ROWS_FILE
    assert file.exists()
    file.unlink()
    (nodes[1],) = start(field, 1)
    await finished(nodes)
    alike(field)
    assert seen.rounds[1].shared.rows == 160
    assert file.exists()


# -- crashes ----------------------------------------------------------------------------------------------------------


POINTS = {
    "before it pays": ("_make_part", False),
    "once its part is made": ("_make_part", True),
    "once it has the sum": ("sum", True),
    "once it has committed": ("commit", True),
}


@pytest.mark.parametrize(
    "point", [pytest.param(one, marks=[] if one == "once it has the sum" else pytest.mark.long) for one in POINTS]
)
async def test_a_node_that_crashes_is_back_with_the_others_and_pays_for_each_part(
    point, shared_ward, start, seen, monkeypatch
):
    name, after = POINTS[point]
    owner = CommonState if name == "commit" else SumRounds
    crashed = crash_at(monkeypatch, owner, name, 1, lambda one: one.algorithm.facts.rounds == 2, after=after)
    field = shared_ward(gossip={"linger_s": 100.0})  # on a busy machine the others would leave it behind
    nodes = start(field)
    await broken_off(nodes[1], crashed)
    (nodes[1],) = start(field, 1)
    await finished(nodes)
    alike(field)
    for index, node in enumerate(nodes):
        parts = seen.parts[index]
        assert len({paid for *_, paid in parts}) == len(parts) <= seen.steps(node) <= len(parts) + 1


@pytest.mark.long
async def test_a_crash_while_a_state_is_taken_over_is_repaired_by_fetching_it_again(
    shared_ward, start, seen, monkeypatch
):
    field = shared_ward(training={"rounds": 8})
    nodes = start(field)
    await nodes[1].until(lambda: nodes[1].rounds == 2)
    await nodes[1].break_off()
    await nodes[0].until(lambda: nodes[0].rounds >= 4)
    crashed = crash_at(
        monkeypatch, CommonState, "commit", 1, lambda one: one.algorithm.phase.value == "joining", after=False
    )
    (again,) = start(field, 1)
    await broken_off(again, crashed)
    (nodes[1],) = start(field, 1)
    results = [await node.result() for node in nodes]
    assert all(result.finished and result.rounds == 8 for result in results)
    alike(field)
    assert seen.rounds[1].status()["fetched"] >= 1


@pytest.mark.long
async def test_of_three_two_crash_with_a_sum_that_the_third_has_and_it_goes_back_to_them(
    shared_ward, start, seen, monkeypatch
):
    """All three must be there: it cannot go on alone, and one member's word is not enough for the others."""
    field = shared_ward(3, privacy={"rounds": 20})
    crashes = [
        crash_at(monkeypatch, CommonState, "commit", index, lambda one: one.algorithm.facts.rounds == 2, after=False)
        for index in (1, 2)
    ]
    nodes = start(field)
    await asyncio.gather(*map(broken_off, nodes[1:], crashes))
    await nodes[0].until(lambda: nodes[0].rounds == 3)
    nodes[1:] = start(field, 1, 2)
    await finished(nodes)
    alike(field)
    assert seen.rounds[0].status()["fetched"] == 1


@pytest.mark.long
async def test_a_node_that_is_through_and_starts_again_alone_ends(shared_ward, start):
    field = shared_ward(3)
    await finished(start(field))
    (again,) = start(field, 0)
    assert (await again.result()).rounds == ROUNDS


# -- too few, or behind -----------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_with_too_few_nothing_is_learned_one_part_is_paid_for_and_the_missing_are_named(
    shared_ward, start, seen, monkeypatch, caplog
):
    field = shared_ward()
    crashes = [
        crash_at(monkeypatch, SumRounds, "_make_part", index, lambda one: one.algorithm.facts.rounds == 1, after=False)
        for index in (2, 3)
    ]
    nodes = start(field)
    await asyncio.gather(*map(broken_off, nodes[2:], crashes))
    await nodes[0].until(lambda: all(rounds.status()["refused"] for rounds in (seen.rounds[0], seen.rounds[1])))
    refused = [record.getMessage() for record in caplog.records if "sum-refused" in record.getMessage()]
    assert len(refused) >= 2
    assert all(text.endswith("missing: node2, node3") for text in refused)
    for index, node in enumerate(nodes[:2]):
        assert (node.rounds, seen.steps(node), len(seen.parts[index])) == (1, 2, 2)


async def test_until_enough_are_there_a_node_says_for_whom_it_waits(shared_ward, start, seen):
    nodes = start(shared_ward(), 0, 1)
    await nodes[0].until(lambda: 0 in seen.rounds and len(seen.rounds[0].state.standings.latest) == 2)
    await nodes[0].until(lambda: "node2, node3" in (seen.rounds[0].status()["waits_for"] or ""))
    assert 0 not in seen.parts
    assert seen.steps(nodes[0]) == 0


@pytest.mark.long
async def test_a_node_whose_budget_is_spent_follows_the_others(shared_ward, start, seen, monkeypatch):
    wrong = BudgetGuard.wrong

    def refuse(guard, ledger, spend):
        if "node1" in guard.advice and ledger.steps >= 2:
            return RoundRefused(why="its privacy budget is spent", for_good=True, planned=True)
        return wrong(guard, ledger, spend)

    monkeypatch.setattr(BudgetGuard, "wrong", refuse)
    field = shared_ward()
    nodes = start(field)
    results = await finished(nodes)
    alike(field)
    assert seen.steps(nodes[1]) == 2
    assert "budget is spent" in results[1].ended_by
    assert seen.rounds[1].status()["fetched"] >= 1


async def test_a_node_behind_that_has_no_neighbor_waits_and_does_not_spin(shared_ward, start, seen):
    field = shared_ward()
    (node,) = start(field, 0)
    await node.until(lambda: 0 in seen.rounds and seen.rounds[0].state.standings.latest)
    for standing in foreign(node, Place(7, bytes(32)), (1, 2, 3), field):
        seen.rounds[0].state.standings.hear(standing)
    async with asyncio.timeout(10):
        await node.until(lambda: node.phase == "joining")
        await asyncio.sleep(0.5)
    assert (await node.stop()).rounds == 0


def foreign(node, place, members, field):
    """Make standings of members that do not run."""
    federation = node.setup.federation
    rounds = node.application.attached.find_attached("shared_noise")
    for member in members:
        identity = type(node.setup.identity).load(field.folder / field.names[member] / "node.key")
        yield Standings(federation, rounds._id, identity, member, 2).state(place, 2**51)


async def test_a_state_that_is_gone_with_all_who_had_it_is_done_without(shared_ward, start, seen, monkeypatch):
    monkeypatch.setattr(rounds, "PAUSE_S", 0.01)
    field = shared_ward(6, privacy={"least": 4})
    nodes = start(field, 0, 1, 2, 3)
    await nodes[0].until(lambda: 0 in seen.rounds and seen.rounds[0].state.standings.latest)
    for standing in foreign(nodes[0], Place(3, bytes(32)), (4, 5), field):
        seen.rounds[0].state.talk.hear(1, standing)
    await nodes[0].until(lambda: nodes[0].rounds >= 2, 60)


# -- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_out", [False, True])
async def test_a_part_is_given_again_unless_others_may_have_it_in_a_sum(is_out, shared_ward, start, seen, monkeypatch):
    total, given, refused = SumTalk.sum, [], []

    async def refuse_once(talk, label, values, terms):
        is_it = label == "round 3" and talk is seen.rounds[1].talk
        if is_it:
            given.append(values.tobytes())
        if is_it and not refused:
            refused.append(1)
            return Refused(label=label, reason="as the test wants it", is_out=is_out)
        return await total(talk, label, values, terms)

    monkeypatch.setattr(SumTalk, "sum", refuse_once)
    field = shared_ward()
    nodes = start(field)
    await finished(nodes)
    alike(field)
    assert len(given) == 2
    assert (given[0] != given[1]) == is_out
    assert seen.steps(nodes[1]) == ROUNDS + is_out


@pytest.mark.long
async def test_a_signed_part_of_a_refused_sum_is_not_given_again(shared_ward, start, seen, monkeypatch):
    """A sum whose list was signed and that fails after that is paid for anew."""
    end, failed = SumTalk._end, []

    def fail(talk, outcome):
        if outcome.label == "round 3" and len(failed) < 4 and not isinstance(outcome, Refused):
            failed.append(talk)
            outcome = Refused(label=outcome.label, reason="lost")
        end(talk, outcome)

    monkeypatch.setattr(SumTalk, "_end", fail)
    field = shared_ward()
    nodes = start(field)
    await finished(nodes)
    alike(field)
    assert len(set(map(id, failed))) == 4
    for index, node in enumerate(nodes):
        third = [given.words.tobytes() for number, given, _ in seen.parts[index] if number == 2]
        assert len(third) == len(set(third)) == 2
        assert seen.steps(node) == ROUNDS + 1


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(np.full(16, 2**61, np.uint64), id="garbage"),
        pytest.param(np.zeros(1, np.uint64), id="short", marks=pytest.mark.long),
    ],
)
async def test_a_wrong_part_spoils_a_sum_at_most(wrong, shared_ward, start, seen, monkeypatch):
    total, lies = SumTalk.sum, []

    async def lie(talk, label, values, terms):
        is_lie = label == "round 3" and talk is seen.rounds[3].talk and not lies
        lies.extend([1] * is_lie)
        return await total(talk, label, wrong if is_lie else values, terms)

    monkeypatch.setattr(SumTalk, "sum", lie)
    field = shared_ward()
    results = await finished(start(field))
    model = alike(field)
    assert lies
    assert np.abs(model).max() < 10
    if wrong.size == 16:
        assert all(result.alarms.get("sum-spoiled") == 1 for result in results)


async def test_another_initial_model_of_one_node_gives_way_to_that_of_most(shared_ward, start, seen, silent):
    field = shared_ward()
    nodes = start(field)
    learner = nodes[3].setup.learner
    learner.initial = lambda: np.ones(learner.size, np.float32)
    await finished(nodes)
    np.testing.assert_allclose(alike(field), pooled(nodes[0]), atol=1e-5)
