"""Five empty boards, each a host of its own: paired one after the other, they learn; nobody copies a file."""

from __future__ import annotations

import pytest
from boards import Machines
from pairing_kit import KEY, LINE, Person

pytestmark = [pytest.mark.long, pytest.mark.timeout(500)]

NAMES = ("pi1", "pi2", "pi3", "pi4", "pi5")
FOUNDERS = NAMES[:2]


def test_five_empty_boards_become_a_federation_by_pairing(lan, tmp_path):
    desk, laptop, ward = Machines(lan, tmp_path), lan.host("laptop"), tmp_path / "ward"
    desk.on(laptop, "new", ward, "--nodes", ",".join(FOUNDERS), "--admin", "--lan", "--task", "digits")
    desk.on(laptop, "member", "set", ward, "--offline", "--rounds", 100_000)
    for name in NAMES:
        host = desk.hosts[name] = lan.host(name)
        more = ["--replace"] if name in FOUNDERS else []
        with Person("invite", ward, name, *more, start=laptop.start) as inviter:
            line = inviter.until(LINE)
            inviter.until("Ctrl+C")
            with Person("join", line, desk.board(name), start=host.start) as board:
                board.until("added? [y/N]")
                board.type("y\n")
                inviter.until("add it? [y/N]")
                assert inviter.until(KEY) == board.until(KEY)
                inviter.type("y\n")
                assert (board.ends(), inviter.ends()) == (0, 0), (board.seen, inviter.seen)
        own = desk.board(name) / name / "node.toml"
        own.write_text(own.read_text().replace('# status_listen = "127.0.0.1:0" ', 'status_listen = "127.0.0.1:8480" '))
        desk.start(name)
    for name in NAMES:
        desk.wait_for(lambda name=name: desk.rounds(name) > 3, f"{name} at work")
    live = {name: [one for one in desk.status(name)["neighbors"] if one["live"]] for name in NAMES}
    assert all(live.values()), live
