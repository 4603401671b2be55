"""The example of five boards, with its keys filled in, is a federation that each board can run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from p2pfl.config import federation_mistakes, load_config, load_node
from p2pfl.features.members import issue, load_admin

BOARDS = ("pi1", "pi2", "pi3", "pi4", "pi5")


def test_it_is_a_ring_of_five(five_boards):
    federation = load_config(five_boards)
    assert tuple(member.name for member in federation.members) == BOARDS
    assert all(len(federation.neighbors(index)) == 2 for index in range(5))


def test_without_keys_every_missing_one_is_named(deploy):
    mistakes = federation_mistakes(deploy / "five-boards")
    keys = ["federation.admin", *(f"node[{index}].key" for index in range(5))]
    assert [mistake.key for mistake in mistakes] == keys


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_listens_where_the_others_dial_and_shows_its_page_to_itself_alone(five_boards, name):
    federation = load_config(five_boards)
    node = load_node(five_boards / name, federation)
    assert node.listen == "0.0.0.0:" + federation.member(name).address.rpartition(":")[2]
    assert node.status_listen.startswith("127.0.0.1:")


def test_whoever_has_the_admin_key_can_invite_a_sixth_board(five_boards):
    federation = load_config(five_boards)
    assert load_admin(federation, None).public == federation.admin[0]
    assert len(issue(federation, "pi6", now=time.time()).contacts) == 3


PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "raspberry-pi.md"


@pytest.mark.long
def test_the_commands_of_the_page_make_one_that_finds_itself_and_can_grow(tmp_path):
    """The first block of the page, and that of a sixth board, without what needs boards."""
    first, sixth = re.findall(r"```\n(p2pfl (?:new|invite) five .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    sixth = sixth.replace("'p2pfl:...'", '"$line"').replace("'p2pfl-request:...'", '"$request" --yes --offline')
    for name, command in {"line": "p2pfl invite", "request": "p2pfl join"}.items():
        sixth = re.sub(rf"(?m)^({command} [^#\n]*).*$", rf"{name}=$(\1)", sixth)
    command = f'#!/bin/sh\nexec {sys.executable} -m p2pfl.cli.main "$@"\n'
    (tmp_path / "p2pfl").write_text(command, encoding="utf-8")
    (tmp_path / "p2pfl").chmod(0o755)
    script = "set -e\n" + re.sub("(?m)^p2pfl deploy push .*", "", first + sixth)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no mistakes" in done.stdout
    federation = load_config(tmp_path / "five")
    assert federation.discovery
    assert {member.name for member in federation.members} == {*BOARDS, "pi6"}
    assert load_admin(federation, None).public in federation.admin


def test_no_key_is_in_the_repository(deploy):
    assert not list((deploy / "five-boards").rglob("*.key"))
