"""Whole nodes with a privacy budget: begun by a person, spent round by round, remembered by a restart."""

from __future__ import annotations

import asyncio
import shutil
import threading
from contextlib import closing
from dataclasses import replace

import msgspec
import pytest

from p2pfl.errors import UserError
from p2pfl.features import FEATURES
from p2pfl.features.privacy import give_permission, ledger_path, permission_file
from p2pfl.features.status import StatusDisplay
from p2pfl.learn.privacy import Promise, Spend
from p2pfl.node import Application, recover
from p2pfl.storage import Store
from tests.integration.conftest import Wrapped

pytestmark = pytest.mark.usefixtures("lone")


PERMITTED = Promise("record", 99.0, 1e-5)


class RoundsPlan:
    """A budget of so many rounds, whose epsilon is a tenth of each."""

    unit, delta, clip, noise = "record", 1e-5, 1.0, 1.0

    def __init__(self, rounds):
        self.rounds, self.epsilon = rounds, rounds / 10

    def spend(self, samples):
        return Spend(1.0, 1 / samples, 1)

    def rounds_left(self, spent, samples):
        return self.rounds - sum(one.steps for one in spent)

    def allows(self, spent, cost):
        return self.rounds_left(spent, 1) >= cost.steps

    def spent(self, spent):
        return sum(one.steps for one in spent) / 10


class Private(Wrapped):
    """Trains by a plan, and counts how often it draws noise."""

    def __init__(self, learner, rounds):
        super().__init__(learner)
        self.plan = RoundsPlan(rounds)
        self.drawn = 0
        self.held = None
        """Its rounds last until this is set."""

    def train(self, start, index):
        self.drawn += 1
        if self.held is not None:
            self.held.wait()
        return self.learner.train(start, index)


@pytest.fixture
def private(ward, start):
    """A ward whose nodes have budgets of so many rounds, and how its node `index` is started."""

    def private(rounds=6, *, to_do=4, words=(0, 1), vitals=True, round_s=0.0, **training):
        field = ward(
            2,
            task={"step_s": round_s},
            training={"rounds": to_do, "closing_rounds": 1, "when_through": "mix", **training},
            gossip={"start_wait_s": 5.0, "linger_s": 1.0, "vitals": vitals},
        )
        for index in words:
            give_permission(field.folder / field.names[index] / "node.key", PERMITTED)

        def begin(index):
            (node,) = start(field, index)
            node.learn_with(Private(node.setup.learner, rounds))
            return node

        return field, begin

    return private


def drawn(node):
    return node.application.setup.learner.drawn


async def test_each_round_is_paid_for_and_status_result_and_line_say_what_is_spent(private):
    field, begin = private(rounds=6, to_do=4)
    nodes = [begin(0), begin(1)]
    results = [await node.result() for node in nodes]
    assert not permission_file(field.folder / "node0" / "node.key").exists()
    for node, result in zip(nodes, results, strict=True):
        assert drawn(node) == result.rounds == 4
        told = msgspec.json.decode(result.to_bytes())["privacy"]
        assert told == {
            "unit": "record",
            "epsilon": pytest.approx(0.4),
            "budget": pytest.approx(0.6),
            "delta": 1e-5,
            "rounds_left": 2,
            "state": "open",
        }
        assert node.lines[-1].privacy == result.privacy
        told = [result.loss, result.local_loss, result.test_loss, *(line.loss for line in node.lines)]
        assert set(told) == {None}, "the learner has all of them"
        assert [event.kind for event in node.application.driver.feed.events][:2] == ["started", "budget-begun"]


async def test_a_node_killed_again_and_again_never_trains_more_than_its_budget(private):
    """Each time in the middle of a round, which is paid for and lost."""
    _, begin = private(rounds=5, to_do=30)
    first, trained, epsilon = begin(0), 0, 0.0
    first.application.setup.learner.held = held = threading.Event()
    """Who has trained all its rounds ends the other's training."""
    for _ in range(3):
        second = begin(1)
        learner = second.application.setup.learner
        learner.held = threading.Event()
        await second.until(lambda learner=learner: learner.drawn)
        assert second.status.privacy.epsilon == pytest.approx(epsilon + 0.1), "what was spent is not forgotten"
        epsilon = second.status.privacy.epsilon
        await second.break_off()
        learner.held.set()
        trained += 1
    last = begin(1)
    await last.until(lambda: last.status is not None and last.status.through)
    assert "budget-spent" in [event.kind for event in last.application.driver.feed.events]
    assert trained + drawn(last) == 5
    assert (last.status.privacy.state, last.status.privacy.rounds_left) == ("spent", 0)
    assert last.status.through
    assert last.status.alarms == {}
    held.set()
    assert first.status.privacy.state == "open"


async def test_without_a_person_s_word_a_node_mixes_and_trains_nothing(private):
    _, begin = private(rounds=40, to_do=3, words=(0,))
    nodes = [begin(0), begin(1)]
    trained, mixed = [await node.result() for node in nodes]
    assert (drawn(nodes[0]), drawn(nodes[1]), mixed.rounds) == (trained.rounds, 0, 0)
    assert trained.rounds
    assert mixed.exchanges
    assert mixed.neighbor_distance < 0.5
    assert mixed.alarms == {"no-budget": 1}
    assert (mixed.privacy.state, mixed.privacy.epsilon, mixed.privacy.rounds_left) == ("missing", None, 0)
    assert "p2pfl privacy begin" in nodes[1].application.driver.feed.standing()[0].text


def told_of(node, index):
    """The steps that a node's rows say another one has paid for."""
    attached = getattr(node.application, "attached", None)
    row = attached and attached.of(StatusDisplay).display.spread.rows.get(index)
    return row.vitals.paid if row else 0


async def has_trained(first, node, rounds):
    """Until `first` knows that `node` has paid for so many rounds in this process and the ones before; then it dies."""
    await first.until(lambda: told_of(first, 1) >= rounds)
    await node.break_off()


def wipe(folder, *, beside):
    shutil.rmtree(folder / "state")
    if beside:
        ledger_path(folder / "node.key").unlink()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a session is broken off on purpose
async def test_a_wiped_node_goes_on_by_the_file_beside_its_key_or_is_unsure_until_a_person_begins_another(private):
    field, begin = private(rounds=900, to_do=800, round_s=0.02)
    first, folder = begin(0), field.folder / "node1"
    await has_trained(first, begin(1), 3)
    paid = told_of(first, 1)
    wipe(folder, beside=False)
    second = begin(1)
    await second.until(lambda: drawn(second))
    assert second.status.privacy.epsilon > paid / 10
    assert second.status.privacy.state == "open"
    await has_trained(first, second, paid + 2)
    wipe(folder, beside=True)
    third = begin(1)
    await third.until(lambda: third.status is not None and third.status.through)
    assert (third.status.privacy.state, drawn(third)) == ("unsure", 0)
    (alarm,) = [one for one in third.application.driver.feed.standing() if one.kind == "no-budget"]
    assert f"the node has signed for {told_of(first, 1)} steps (epsilon " in alarm.text
    await third.break_off()
    give_permission(folder / "node.key", PERMITTED)
    fourth = begin(1)
    await fourth.until(lambda: drawn(fourth))
    assert fourth.status.privacy.state == "open"
    assert fourth.application.thread.engine.state.ledger.order == 2, "it is later than the one that was lost"


@pytest.mark.long
@pytest.mark.parametrize("vitals", [True, False])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # as above
async def test_an_old_copy_of_a_node_trains_nothing_once_a_neighbor_tells_what_it_has_signed(private, vitals):
    """With its key, and what stands beside that."""
    field, begin = private(rounds=900, to_do=800, vitals=vitals, round_s=0.02)
    first, folder, copy = begin(0), field.folder / "node1", field.folder / "copy"
    await has_trained(first, begin(1), 2)
    shutil.copytree(folder, copy)
    second = begin(1)
    await has_trained(first, second, told_of(first, 1) + 3)
    assert second.status.privacy.state == "open", "a crash alone is no evidence"
    for _ in range(2):
        paid = told_of(first, 1)
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)
        old = begin(1)
        await old.until(lambda old=old: old.status is not None and old.status.through)
        assert (old.status.privacy.state, drawn(old)) == ("unsure", 0)
        assert told_of(first, 1) >= paid, "the others keep the evidence"
        await old.break_off()
    assert first.status.privacy.state == "open", "who has heard of it goes on"
    if not vitals:
        assert first.application.attached.of(StatusDisplay).display.spread.rows[1].vitals.rounds == 0, (
            "nothing but the account is told"
        )


async def test_a_word_that_cannot_be_taken_away_keeps_the_node_from_starting(private):
    field, begin = private(words=())
    word = permission_file(field.folder / "node0" / "node.key")
    for content in ("what is this", 'word = "12"'):
        word.write_text(content)
        with pytest.raises(UserError, match="has no word"):
            await begin(0).result()
        assert word.read_text() == content
    word.unlink()
    word.symlink_to(field.folder / "elsewhere")
    with pytest.raises(UserError, match="cannot be read"):
        await begin(0).result()
    assert not (field.folder / "node0" / "state").exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a session is broken off on purpose
async def test_an_older_snapshot_does_not_bring_back_what_a_node_knew_before_its_budget_began(private):
    """The newer one is damaged, in which the budget begins: what was paid since is in the log alone."""
    field, begin = private(rounds=5, to_do=30, words=(0,))
    _, node = begin(0), begin(1)
    await node.until(lambda: node.application.begun)
    await node.break_off()
    give_permission(field.folder / "node1" / "node.key", PERMITTED)
    second = begin(1)
    learner = second.application.setup.learner
    learner.held = threading.Event()
    await second.until(lambda: learner.drawn)
    await second.break_off()
    learner.held.set()
    newest = max((field.folder / "node1" / "state").glob("snapshot-*"))
    content = bytearray(newest.read_bytes())
    content[100] ^= 1
    newest.write_bytes(content)
    with closing(Store.open(field.folder / "node1" / "state", durability="exchange")) as store:
        assert recover(second.application.setup, store).ledger is None


@pytest.mark.long
async def test_a_second_process_with_the_same_key_and_a_state_folder_of_its_own_spends_nothing(private):
    """Each would spend all that is left: neither knows of the other, and the file beside the key keeps the larger."""
    field, begin = private(rounds=900, to_do=800, round_s=0.02)
    first, second = begin(0), begin(1)
    await first.until(lambda: told_of(first, 1) >= 2)
    node = replace(second.setup.node, state_dir=field.folder / "elsewhere", listen="127.0.0.1:0", status_listen=None)
    twins = [Private(second.setup.learner, 900), second.setup.learner]  # and one whose rounds no ledger would know of
    for learner in twins:
        twin = Application(replace(second.setup, node=node, learner=learner), on_line=lambda _: None, features=FEATURES)
        with pytest.raises(UserError, match="another process") as caught:
            async with asyncio.timeout(10.0):
                await twin.run()
        assert caught.value.file == str(node.key_file)
        assert not node.state_dir.exists()
    assert twins[0].drawn == 0
    await second.break_off()
    again = begin(1)  # the lock went with the process
    await again.until(lambda: drawn(again) > 0)
