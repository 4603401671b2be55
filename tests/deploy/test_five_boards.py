"""The example of five boards, with its keys filled in, is a federation that each board can run."""

from __future__ import annotations

import pytest

from p2pfl.config.load import federation_mistakes, load_config, load_node

BOARDS = ("pi1", "pi2", "pi3", "pi4", "pi5")


def test_it_is_a_ring_of_five(five_boards):
    federation = load_config(five_boards)
    assert tuple(member.name for member in federation.members) == BOARDS
    assert all(len(federation.neighbors(index)) == 2 for index in range(5))


def test_without_keys_every_missing_one_is_named(deploy):
    mistakes = federation_mistakes(deploy / "five-boards")
    assert [mistake.key for mistake in mistakes] == [f"node[{index}].key" for index in range(5)]


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_listens_where_the_others_dial(five_boards, name):
    federation = load_config(five_boards)
    node = load_node(five_boards / name, federation)
    assert node.listen == "0.0.0.0:" + federation.member(name).address.rpartition(":")[2]


@pytest.mark.parametrize("name", BOARDS)
def test_the_status_page_is_for_the_board_alone(five_boards, name):
    node = load_node(five_boards / name, load_config(five_boards))
    assert node.status_listen.startswith("127.0.0.1:")


def test_no_key_is_in_the_repository(deploy):
    assert not list((deploy / "five-boards").rglob("*.key"))
