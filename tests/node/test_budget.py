"""What speaks against a round, in words; and a person's word, which is taken once and for all."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from p2pfl.config import PrivacyConfig, TrainingConfig
from p2pfl.engine import NodeState, image
from p2pfl.errors import UserError
from p2pfl.features.privacy import (
    WAIT_S,
    BudgetGuard,
    Evidence,
    LedgerFile,
    LostAccount,
    discard_permission,
    give_permission,
    ledger_path,
    opening,
    permission_file,
    read_permission,
)
from p2pfl.learn.privacy import Ledger, Promise, Signed, Spend, planned_in_words, reconcile
from p2pfl.node import durability_of

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


PERMITTED = Promise("record", 4.0, 1e-5)


def ledger(rounds=0, **changes):
    spent = (COST._replace(steps=2 * rounds),) if rounds else ()
    return Ledger(**({"unit": "record", "word": "w", "spent": spent, "promise": PERMITTED} | changes))


@pytest.mark.parametrize(
    ("found", "state", "epsilon", "left", "planned"),
    [
        (ledger(), "open", 0.0, 2, None),
        (ledger(1), "open", 2.0, 1, None),
        (ledger(2), "spent", 4.0, 0, True),
        (ledger(1, is_whole=False), "unsure", 2.0, 0, False),
        (ledger(1, unit="member"), "missing", None, 0, False),
        (None, "missing", None, 0, False),
        (ledger(1, promise=None), "unpermitted", 2.0, 0, False),
        (ledger(1, promise=Promise("record", 3.9, 1e-5)), "unpermitted", 2.0, 0, False),
        (ledger(1, promise=Promise("record", 4.0, 1e-6)), "unpermitted", 2.0, 0, False),
        (ledger(1, promise=Promise("record", 9.0, 1e-3)), "open", 2.0, 1, None),
    ],
)
def test_only_a_whole_ledger_of_the_same_unit_with_room_pays_for_a_round(found, state, epsilon, left, planned):
    purse = BudgetGuard(TwoRounds(), PERMITTED, "p2pfl privacy begin ward --node pi1")
    purse.look(found, 10)
    assert (purse.status.state, purse.status.epsilon, purse.status.rounds_left) == (state, epsilon, left)
    refused = purse.wrong(found, COST)
    assert (None if refused is None else refused.planned) == planned
    if refused is not None:
        assert refused.for_good
        assert ("p2pfl privacy begin ward --node pi1" in refused.why) != planned
        assert ("--again" in refused.why) == (state == "unpermitted")


def test_steps_of_one_kind_in_a_row_are_one_entry_and_their_order_is_kept():
    other = Spend(2.0, 0.1, 5)
    found = ledger()
    for spend in (COST, COST, other, COST):
        found = found.plus(spend)
    assert found.spent == (COST._replace(steps=4), other, COST)
    assert Ledger.of(found.plain()) == found
    assert Ledger.of(found.plain() | {"raised_by": "a word of the version before"}) == found


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


@pytest.mark.parametrize(
    ("file", "permitted", "less"),
    [
        (Promise("record", 8.0, 1e-5), Promise("record", 8.0, 1e-5), ""),
        (Promise("record", 4.0, 1e-6), Promise("record", 8.0, 1e-5), ""),
        (Promise("member", 8.0, 1e-5), Promise("record", 8.0, 1e-5), ""),
        (Promise("record", 8.1, 1e-5), Promise("record", 8.0, 1e-5), "epsilon 8.1 in place of 8"),
        (Promise("record", 8.0, 1e-4), Promise("record", 8.0, 1e-5), "delta 0.0001 in place of 1e-05"),
        (Promise("record", 8.0, 1e-5), Promise("member", 8.0, 1e-5), "a record is protected, where it is a member"),
        (Promise("record", 8.0, 1e-5, 1.0), Promise("record", None, 1e-5, 1.1), "noise 1 in place of 1.1"),
        (Promise("record", 7.0, 1e-5, 1.2), Promise("record", None, 1e-5, 1.1), ""),
    ],
)
def test_a_file_promises_less_by_more_epsilon_or_delta_less_noise_or_a_weaker_unit(file, permitted, less):
    assert file.weaker_than(permitted) == less


def test_of_two_ledgers_that_counts_which_has_more_and_a_contradiction_is_known_to_lack_something():
    other = Spend(2.0, 0.1, 2)
    few, more, later = ledger(1), ledger(2), ledger(order=2, word="x")
    for state, beside in ((few, more), (more, few), (None, more), (more, more)):
        assert reconcile(state, beside) == more
    for state, beside in ((more, later), (later, more)):
        assert reconcile(state, beside) == later
    unsure = [
        (more, None),
        (more, ledger(1).plus(other)),
        (ledger(1).plus(other), more),
        (more, ledger(1, word="x")),
        (ledger(1, is_whole=False), more),
        (few, ledger(2, is_whole=False)),
        (more, ledger(1, is_whole=False)),
    ]
    for state, beside in unsure:
        assert not reconcile(state, beside).is_whole
    assert reconcile(None, None) is None


NAME = ledger().account.name


@pytest.mark.parametrize(
    ("found", "told", "becomes"),
    [
        (ledger(2), Signed(1, NAME, 5), ledger(2, is_whole=False, signed=Signed(1, NAME, 5))),
        (ledger(2), Signed(2, 7, 1), ledger(2, is_whole=False, signed=Signed(2, 7, 1))),
        (ledger(), Signed(1, NAME, 1), ledger(is_whole=False, signed=Signed(1, NAME, 1))),
        (ledger(), Signed(1, 7, 90), ledger(is_whole=False, signed=Signed(1, 7, 90))),
        (ledger(), Signed(3, 7, 90), ledger(is_whole=False, signed=Signed(3, 7, 90))),
        (ledger(2), Signed(1, NAME, 4), None),
        (ledger(2), Signed(1, NAME, 3), None),
        (ledger(2), Signed(1, 7, 90), None),
        (ledger(2, order=3), Signed(2, 7, 90), None),
        (ledger(order=3), Signed(2, 7, 90), None),
    ],
)
def test_only_what_a_node_has_signed_and_does_not_have_is_evidence(found, told, becomes):
    """More steps of this budget, or a later one. An earlier one is none, whoever tells it and when."""
    evidence = Evidence()
    after = evidence.hear(found, LostAccount(told, 2.5))
    assert after == (found if becomes is None else becomes)
    assert (evidence.seen is not None) == (not after.is_whole)
    assert after.account >= told or after.is_whole, "it is signed again, so that the neighbors keep it"


@pytest.mark.parametrize(("order", "becomes"), [(1, 2), (3, 4)])
def test_a_budget_that_a_person_has_begun_just_now_is_later_than_all_that_were_signed(order, becomes):
    """The records of those are lost, and the person knows. One that is restored looks the same, and began earlier."""
    evidence = Evidence(began_now=True)
    assert evidence.hear(ledger(), LostAccount(Signed(order, 7, 90), 2.5)) == ledger(order=becomes)
    assert evidence.hear(ledger(1), LostAccount(Signed(order + 1, 7, 90), 2.5)).is_whole is False, (
        "not once it has paid"
    )


def test_a_node_without_a_ledger_says_what_it_has_signed():
    purse = BudgetGuard(TwoRounds(), PERMITTED, "p2pfl privacy begin ward --node pi1")
    assert purse.evidence.hear(None, LostAccount(Signed(1, 7, 90), 2.5)) is None
    purse.look(None, 10)
    assert purse.status.state == "unsure"
    assert "signed for 90 steps (epsilon 2.5)" in purse.wrong(None, COST).why
    assert purse.evidence.account(None) == Signed(1, 7, 90)


def test_the_first_round_waits_for_neighbors_that_have_said_nothing_yet_and_not_for_ever():
    evidence = Evidence()
    assert not evidence.is_due(0.0)
    evidence.opened(1, 10.0)
    evidence.opened(2, 11.0)
    assert evidence.is_due(10.0 + WAIT_S)
    assert not evidence.is_due(11.0 + WAIT_S)
    evidence.note_rows(2)
    assert not evidence.is_due(10.0 + WAIT_S)


def setup_at(folder, promise=PERMITTED):
    node = SimpleNamespace(key_file=folder / "node.key", state_dir=folder / "state")
    plan = TwoRounds()
    plan.unit, plan.epsilon, plan.delta, noise = promise
    privacy = PrivacyConfig(noise=noise, delta=plan.delta)
    federation = SimpleNamespace(name="ward", path=folder / "federation.toml", privacy=privacy)
    return SimpleNamespace(
        learner=SimpleNamespace(plan=plan), node=node, federation=federation, member=SimpleNamespace(name="pi1")
    )


def state_with(found=None):
    state = NodeState(channels=None, samples=1, ended="40 rounds")
    state.ledger = found
    return state


def opened(setup, state):
    """What is told of a word, once everything is durable."""
    found = opening(setup, state)
    found.keep(state, SimpleNamespace(end_log=print))
    return found.news


def test_a_word_begins_one_ledger_and_never_another(tmp_path):
    setup = setup_at(tmp_path)
    give_permission(setup.node.key_file, PERMITTED)
    assert permission_file(setup.node.key_file).stat().st_mode & 0o777 == 0o600
    copy = permission_file(setup.node.key_file).read_bytes()
    state = state_with()
    assert "epsilon 4" in opened(setup, state)
    assert state.ledger == Ledger(unit="record", word=state.ledger.word, promise=PERMITTED)
    assert state.ended is None, "there may be something to train again"
    assert not opened(setup, state)
    used = state.ledger.plus(COST)
    permission_file(setup.node.key_file).write_bytes(copy)  # from a backup
    state = state_with(used)
    assert not opened(setup, state)
    assert state.ledger == used
    assert not permission_file(setup.node.key_file).exists()
    give_permission(setup.node.key_file, PERMITTED)
    assert "adds to it: epsilon 2" in opened(setup, state)
    assert (state.ledger.spent, state.ledger.order) == ((), 2)
    assert not opened(setup, state_with()), "a wiped state goes on by the file beside the key"


def test_an_old_copy_of_a_word_that_was_taken_begins_no_third_budget(tmp_path):
    """A ledger names its own word alone: of the one before it knew nothing, and took it again."""
    setup = setup_at(tmp_path)
    give_permission(setup.node.key_file, PERMITTED, after="")
    first = permission_file(setup.node.key_file).read_bytes()
    state = state_with()
    assert opened(setup, state)
    give_permission(setup.node.key_file, PERMITTED, after=state.ledger.word)
    assert opened(setup, state)
    second = state.ledger
    assert second.order == 2
    permission_file(setup.node.key_file).write_bytes(first)  # from a backup
    with pytest.raises(UserError, match="old copy") as caught:
        opened(setup, state)
    assert (caught.value.key, caught.value.file) == ("after", str(permission_file(setup.node.key_file)))
    assert state.ledger == second


def test_a_crash_before_the_word_is_gone_neither_wastes_a_budget_nor_begins_two(tmp_path, monkeypatch):
    setup, state = setup_at(tmp_path), state_with()
    give_permission(setup.node.key_file, PERMITTED)
    with monkeypatch.context() as patch:
        patch.setattr("p2pfl.features.privacy.budget.discard_permission", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            opened(setup, state)
    again = state_with()
    assert not opened(setup, again)
    assert again.ledger == state.ledger
    assert not permission_file(setup.node.key_file).exists()


def planned(rounds=40, local_steps=20):
    training = TrainingConfig(rounds=rounds, local_steps=local_steps)
    return SimpleNamespace(
        name="ward",
        path=Path("ward/federation.toml"),
        training=training,
        privacy=PrivacyConfig(noise=4.0, delta=1e-5),
    )


@pytest.mark.parametrize(
    ("file", "noise", "less"),
    [
        (planned(), 4.0, ""),
        (planned(), None, "no noise in place of 4"),
        (planned(), 0.1, "noise 0.1 in place of 4"),
        (planned(rounds=4000), 4.0, "4000 rounds of 20 steps, batches of 16, by prv in place of 40 rounds of 20 steps"),
        (planned(local_steps=999), 4.0, "40 rounds of 999 steps"),
    ],
)
def test_a_word_for_a_noise_permits_the_epsilon_that_follows_from_it_and_no_other(tmp_path, file, noise, less):
    """The file said epsilon 900 before the first start, in place of noise 4: the node trained at a noise of .12."""
    give_permission(tmp_path / "node.key", Promise("record", None, 1e-5, 4.0), planned=planned_in_words(planned()))
    setup = setup_at(tmp_path, Promise("record", 900.0, 1e-5, noise))
    file.privacy = replace(file.privacy, noise=noise)
    setup.federation = file
    if not less:
        assert "starts: epsilon 900" in opened(setup, state_with())
        return
    with pytest.raises(UserError, match="promises less privacy than this permits") as caught:
        opening(setup, state_with())
    assert less in caught.value.message
    assert permission_file(tmp_path / "node.key").exists()


def test_the_ledger_of_another_node_is_none_of_this_one_s(tmp_path):
    """It may have begun more often, and then counted as the later one."""
    LedgerFile(tmp_path / "node.key", "ward", "pi2").write(ledger(0, order=2, word="other"))
    with pytest.raises(UserError, match="records the spending of another node") as caught:
        opening(setup_at(tmp_path), state_with(ledger(2)))
    assert (caught.value.key, caught.value.value) == ("node", "pi2")


@pytest.mark.parametrize("find", [permission_file, ledger_path])
def test_a_pipe_in_place_of_a_file_beside_the_key_is_an_error_and_no_wait(tmp_path, find):
    os.mkfifo(find(tmp_path / "node.key"))
    with pytest.raises(UserError, match="is a pipe, a socket or a device"):
        opening(setup_at(tmp_path), state_with())


def test_keys_of_one_folder_have_files_of_their_own():
    names = {ledger_path(Path("keys") / name).name for name in ("ward.node0", "ward.node1", "node.key", "a.b.key")}
    assert names == {"ward.node0.ledger", "ward.node1.ledger", "node.ledger", "a.b.ledger"}


def test_a_file_that_promises_less_than_a_word_is_refused_and_the_word_stays(tmp_path):
    setup = setup_at(tmp_path, Promise("record", 8.0, 1e-5))
    give_permission(setup.node.key_file, PERMITTED)
    with pytest.raises(UserError, match=r"epsilon 8 in place of 4.*privacy begin"):
        opening(setup, state_with(ledger(1)))
    assert permission_file(setup.node.key_file).exists()


def test_rounds_without_privacy_make_what_stands_beside_the_key_unsure(tmp_path):
    setup = setup_at(tmp_path)
    LedgerFile(setup.node.key_file, "ward", "pi1").write(ledger(1))
    setup.learner = SimpleNamespace()
    assert opening(setup, state_with()) is None
    setup = setup_at(tmp_path)
    assert not opening(setup, state_with()).ledger.is_whole


@pytest.mark.parametrize("given", [True, False])
def test_a_node_does_not_go_on_from_a_model_that_was_trained_without_a_budget(tmp_path, given):
    """It trained no round more, and reported epsilon 0 of a model that has no noise."""
    setup, state = setup_at(tmp_path), state_with()
    state.unpaid = 7
    if given:
        give_permission(setup.node.key_file, PERMITTED)
    with pytest.raises(UserError, match=r"trained for 7 rounds without a privacy budget.*remove this folder") as caught:
        opening(setup, state)
    assert caught.value.file == str(setup.node.state_dir)
    assert permission_file(setup.node.key_file).exists() == given
    assert not ledger_path(setup.node.key_file).exists()


def test_the_file_beside_the_key_is_refused_if_damaged_another_federation_s_or_out_of_reach(tmp_path, monkeypatch):
    setup, path = setup_at(tmp_path), ledger_path(tmp_path / "node.key")
    LedgerFile(setup.node.key_file, "ward", "pi1").write(ledger(1))
    whole = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    for broken in (b"", whole[:-9], whole.replace(b"4", b"5", 1), b"[]", b"\xff"):
        path.write_bytes(broken)
        assert not opening(setup, state_with(ledger(1))).ledger.is_whole
    path.write_bytes(whole)
    setup.federation.name = "elsewhere"
    with pytest.raises(UserError, match="another federation"):
        opening(setup, state_with())
    setup.federation.name = "ward"

    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    found = opening(setup, state_with(ledger(1)))
    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(UserError, match="Read-only file system"):
        found.keep(state_with(ledger(1)), None)


def test_a_word_that_root_gives_is_the_node_s_to_take(tmp_path, monkeypatch):
    (tmp_path / "node.key").touch()
    owners = []
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("os.chown", lambda path, user, group, **_: owners.append((path, user, group)))
    give_permission(tmp_path / "node.key", PERMITTED)
    key = (tmp_path / "node.key").stat()
    assert owners == [(permission_file(tmp_path / "node.key"), key.st_uid, key.st_gid)]


def test_without_privacy_a_word_is_left_where_it_is(tmp_path):
    setup = setup_at(tmp_path)
    give_permission(setup.node.key_file, PERMITTED)
    setup.learner = SimpleNamespace()
    assert opening(setup, state_with()) is None
    assert permission_file(setup.node.key_file).exists()


def test_a_word_that_stays_is_no_word(tmp_path, monkeypatch):
    give_permission(tmp_path / "node.key", PERMITTED)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(UserError, match="would count again"):
        discard_permission(tmp_path / "node.key")


def test_a_word_is_gone_from_the_disk_before_it_counts(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(
        "p2pfl.features.privacy.ledger_file.sync_folder", lambda folder: synced.append(list(folder.iterdir()))
    )
    give_permission(tmp_path / "node.key", PERMITTED)
    synced.clear()
    assert read_permission(tmp_path / "node.key").promise == PERMITTED
    discard_permission(tmp_path / "node.key")
    assert synced == [[]]
