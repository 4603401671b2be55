"""What speaks against a round, in words; and a person's word, which is taken once and for all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from p2pfl.engine.durable import image
from p2pfl.engine.ledger import Ledger
from p2pfl.engine.state import NodeState
from p2pfl.errors import UserError
from p2pfl.learn.privacy import Spend
from p2pfl.runtime import budget
from p2pfl.runtime.budget import Budget
from p2pfl.runtime.parts import durability_of
from p2pfl.runtime.word import give_word, take_word, word_file

COST = Spend(1.0, 0.1, 2)


class TwoRounds:
    """Two rounds of two steps, of which each is an epsilon of 1."""

    unit, epsilon, delta = "record", 4.0, 1e-5

    def spend(self, samples):
        return COST

    def rounds_left(self, spent, samples):
        return 2 - sum(one.steps for one in spent) // 2

    def allows(self, spent, cost):
        return self.rounds_left(spent, 10) > 0

    def spent(self, spent):
        return float(sum(one.steps for one in spent))


def ledger(rounds=0, **changes):
    spent = (COST._replace(steps=2 * rounds),) if rounds else ()
    return Ledger(**({"unit": "record", "word": "w", "spent": spent} | changes))


@pytest.mark.parametrize(
    ("found", "state", "epsilon", "left", "planned"),
    [
        (ledger(), "open", 0.0, 2, None),
        (ledger(1), "open", 2.0, 1, None),
        (ledger(2), "spent", 4.0, 0, True),
        (ledger(1, is_whole=False), "unsure", 2.0, 0, False),
        (ledger(1, unit="member"), "missing", None, 0, False),
        (None, "missing", None, 0, False),
    ],
)
def test_only_a_whole_ledger_of_the_same_unit_with_room_pays_for_a_round(found, state, epsilon, left, planned):
    purse = Budget(TwoRounds(), "p2pfl privacy begin ward --node pi1")
    purse.look(found, 10)
    assert (purse.told.state, purse.told.epsilon, purse.told.rounds_left) == (state, epsilon, left)
    refused = purse.wrong(found, COST)
    assert (None if refused is None else refused.planned) == planned
    if refused is not None:
        assert refused.for_good
        assert ("p2pfl privacy begin ward --node pi1" in refused.why) != planned


def test_steps_of_one_kind_in_a_row_are_one_entry_and_their_order_is_kept():
    other = Spend(2.0, 0.1, 5)
    found = ledger()
    for spend in (COST, COST, other, COST):
        found = found.plus(spend)
    assert found.spent == (COST._replace(steps=4), other, COST)
    assert Ledger.of(found.plain()) == found


def test_after_rounds_without_a_plan_a_ledger_is_worth_nothing():
    assert ledger(1).recovered(private=False, complete=True) is None
    assert ledger(1).recovered(private=True, complete=True) == ledger(1)
    assert not ledger(1).recovered(private=True, complete=False).is_whole


def test_a_state_without_a_budget_is_written_as_before_there_was_any():
    state = NodeState.new(np.zeros(2, np.float32), 1, ())
    assert "ledger" not in image(state, with_replicas=True).header
    state.ledger = ledger(1)
    assert image(state, with_replicas=True).header["ledger"] == ledger(1).plain()


@pytest.mark.parametrize("durability", ["snapshot", "exchange", "auto"])
def test_a_private_node_has_a_log_however_large_its_model_is(durability):
    node = SimpleNamespace(durability=durability, path=Path("node.toml"))
    learner = SimpleNamespace(size=10**9, local_state=dict)
    if durability == "snapshot":
        with pytest.raises(UserError, match=r"node\.durability: .*exchange, auto"):
            durability_of(node, learner, private=True)
    else:
        assert durability_of(node, learner, private=True) == "exchange"
    assert durability_of(node, learner) == ("exchange" if durability == "exchange" else "snapshot")


def setup_at(folder):
    node = SimpleNamespace(key_file=folder / "node.key")
    return SimpleNamespace(learner=SimpleNamespace(plan=TwoRounds()), node=node)


def state_with(found=None):
    state = NodeState(channels=None, samples=1, ended="40 rounds")
    state.ledger = found
    return state


def test_a_word_begins_one_ledger_and_never_another(tmp_path):
    setup = setup_at(tmp_path)
    give_word(setup.node.key_file)
    assert word_file(setup.node.key_file).stat().st_mode & 0o777 == 0o600
    copy = word_file(setup.node.key_file).read_bytes()
    state = state_with()
    assert "epsilon 4" in budget.begin(setup, state)
    assert state.ledger == Ledger(unit="record", word=state.ledger.word)
    assert state.ended is None, "there may be something to train again"
    assert budget.begin(setup, state) is None
    used = state.ledger.plus(COST)
    word_file(setup.node.key_file).write_bytes(copy)  # from a backup
    state = state_with(used)
    assert budget.begin(setup, state) is None
    assert state.ledger == used
    give_word(setup.node.key_file)
    assert "adds to it: epsilon 2" in budget.begin(setup, state)
    assert state.ledger.spent == ()


def test_a_word_that_root_gives_is_the_node_s_to_take(tmp_path, monkeypatch):
    (tmp_path / "node.key").touch()
    owners = []
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("os.chown", lambda path, user, group, **_: owners.append((path, user, group)))
    give_word(tmp_path / "node.key")
    key = (tmp_path / "node.key").stat()
    assert owners == [(word_file(tmp_path / "node.key"), key.st_uid, key.st_gid)]


def test_without_privacy_a_word_is_left_where_it_is(tmp_path):
    setup = setup_at(tmp_path)
    give_word(setup.node.key_file)
    setup.learner = SimpleNamespace()
    assert budget.begin(setup, state_with()) is None
    assert word_file(setup.node.key_file).exists()


def test_a_word_that_stays_is_no_word(tmp_path, monkeypatch):
    give_word(tmp_path / "node.key")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(UserError, match="would count again"):
        take_word(tmp_path / "node.key")


def test_a_word_is_gone_from_the_disk_before_it_counts(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("p2pfl.runtime.word.sync_folder", lambda folder: synced.append(list(folder.iterdir())))
    give_word(tmp_path / "node.key")
    synced.clear()
    assert len(take_word(tmp_path / "node.key")) == 32
    assert synced == [[]]
