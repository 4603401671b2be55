"""What may differ of a federation while its nodes run, and what may not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from p2pfl.config import Compute, Member, TaskConfig
from p2pfl.errors import UserError
from p2pfl.node import check_amended, in_words, keys_with_session, load_learner, without_members
from sim import describe


@pytest.fixture
def federation():
    return describe(nodes=4, topology="ring", rounds=9)


def with_members(federation, **changes):
    """Row 1 with these changes."""
    members = list(federation.members)
    members[1] = replace(members[1], **changes)
    return replace(federation, members=tuple(members))


NEWCOMER = Member(index=4, name="pi9", key=bytes(32), address="127.0.0.1:7000")


def test_rows_names_addresses_graph_and_rounds_may_change(federation):
    check_amended(federation, federation)
    check_amended(federation, with_members(federation, name="other", address="10.0.0.1:7000"))
    check_amended(federation, replace(federation, members=(*federation.members, NEWCOMER), edges=((0, 1), (1, 4))))
    check_amended(federation, replace(federation, topology="complete", schedule=(((0, 1),), ((2, 3),))))
    check_amended(federation, replace(federation, training=replace(federation.training, rounds=99)))
    gone = replace(with_members(federation, retired=True), edges=((0, 3), (2, 3)))
    check_amended(federation, gone)
    check_amended(gone, gone)


@pytest.mark.parametrize(
    ("change", "section"),
    [
        (lambda one: replace(one, name="other"), "name"),
        (lambda one: replace(one, seed=77), "seed"),
        (lambda one: replace(one, task=replace(one.task, name="quadratic")), "task"),
        (lambda one: replace(one, training=replace(one.training, learning_rate=0.5)), "training"),
        (lambda one: replace(one, training=replace(one.training, rounds=None, time_s=9.0)), "training"),
        (lambda one: replace(one, gossip=replace(one.gossip, compressor="q8")), "gossip"),
        (lambda one: replace(one, edge_compressors={(0, 1): "q8"}), "edge_compressors"),
        (lambda one: replace(one, members=one.members[:3]), "members"),
        (lambda one: with_members(one, key=bytes(32)), "members"),
        (lambda one: replace(one, members=(*one.members, replace(NEWCOMER, index=7))), "members"),
        (lambda one: with_members(one, retired=True), "edges"),
        (lambda one: with_members(one, address="nowhere"), "address of"),
    ],
)
def test_whatever_else_has_changed_is_named(federation, change, section):
    with pytest.raises(UserError) as refused:
        check_amended(federation, change(federation))
    assert section in (refused.value.key or "")


def test_who_was_removed_does_not_come_back_in_its_row(federation):
    gone = replace(with_members(federation, retired=True), edges=((0, 3), (2, 3)))
    with pytest.raises(UserError, match="or a removed one"):
        check_amended(gone, federation)


def test_who_was_removed_is_on_no_list_of_keys_and_a_name_is_whose_it_is_now(federation):
    gone = with_members(federation, retired=True)
    assert set(keys_with_session(gone).values()) == {0, 2, 3}
    again = replace(gone, members=(*gone.members, replace(NEWCOMER, name=gone.members[1].name)))
    assert again.member(gone.members[1].name).index == 4


def test_the_log_says_what_is_different_for_this_node(federation):
    names = [member.name for member in federation.members]
    after = replace(
        federation,
        members=(
            *(replace(one, address="10.0.0.9:8470") if one.index == 2 else one for one in federation.members),
            NEWCOMER,
        ),
        edges=((0, 4), (1, 2)),
        training=replace(federation.training, rounds=12),
    )
    assert in_words(federation, after, 0) == (
        f"5 members; joined: pi9; another address: {names[2]} (10.0.0.9:8470); "
        f"new neighbors: pi9; no longer neighbors: {names[1]}, {names[3]}; "
        "12 rounds to do instead of 9"
    )


def test_who_stays_keeps_its_part_of_what_a_task_deals_out_when_another_is_removed(federation, tmp_path):
    """Also at the next start: weights are numbers of samples."""
    options = {"samples": [10, 20, 30, 40]}
    dealt = replace(federation, path=tmp_path / "federation.toml", task=TaskConfig(name="quadratic", options=options))
    counts = []
    for now in (dealt, without_members(dealt, {federation.members[1].key})):
        node = SimpleNamespace(
            name=federation.members[3].name,
            path=tmp_path / "node.toml",
            data={},
            state_dir=tmp_path,
            compute=Compute(),
        )
        counts.append(load_learner(now, node).samples)
    assert counts == [40, 40]
