"""Two people at two terminals, real processes: files, request and answer travel by themselves, or nothing changes."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest
from pairing_kit import KEY, LINE, P2PFL, Person
from ports import free_ports

from p2pfl.config import load_config, read_invite

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("board").mkdir()


def begin(*more):
    """A federation with a task that leaves a trace where it is imported."""
    subprocess.run([*P2PFL, "new", "ward", "--nodes", "pi1,pi2", "--admin", *more], check=True)
    task = Path("ward/task.py")
    task.write_text(f"open('it-ran', 'w').close()\n{task.read_text()}", encoding="utf-8")


def join(line, *more):
    return Person("join", line, *more, cwd="board")


def refused(*arguments):
    """What a command says that has no terminal and fails."""
    done = subprocess.run(
        [*P2PFL, *arguments], cwd="board", stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    return done.stderr


def test_yes_on_both_sides_adds_the_machine():
    begin()
    with Person("invite", "ward", "pi3") as inviter, join(inviter.until(LINE)) as board:
        line = inviter.until(LINE)
        assert "no terminal" in refused("join", line)
        board.until("added? [y/N]")
        assert re.search(r"task.py: [\d,]+ bytes, sha256 [0-9a-f]{64} +CODE that would run here", board.seen)
        read_it = board.until(re.compile(r"Read it in (\S+)"))
        assert Path(read_it, "task.py").read_bytes() == Path("ward/task.py").read_bytes()
        board.type("y\n")
        inviter.until("add it? [y/N]")
        assert inviter.until(KEY) == board.until(KEY)
        inviter.type("y\n")
        assert (inviter.ends(), board.ends()) == (0, 0), (inviter.seen, board.seen)
    assert Path("board/ward/members.toml").read_bytes() == Path("ward/members.toml").read_bytes()
    assert "pi3" in [member.name for member in load_config("board/ward").present]
    assert not Path("board/it-ran").exists()
    assert not Path(read_it).exists()
    assert "takes this line no more" in refused("join", line, "twice", "--yes")
    assert not Path("board/twice").exists()


@pytest.mark.parametrize("who", ["board", "inviter"])
def test_no_on_either_side_changes_nothing(who):
    begin()
    before = Path("ward/members.toml").read_bytes()
    with Person("invite", "ward", "pi3") as inviter, join(inviter.until(LINE)) as board:
        board.until("added? [y/N]")
        board.type("n\n" if who == "board" else "y\n")
        if who == "board":
            assert board.ends() == 1, board.seen
            inviter.process.send_signal(signal.SIGINT)
        else:
            inviter.until("add it? [y/N]")
            inviter.type("n\n")
            board.until("not added")
            assert board.ends() == 2, board.seen
        assert inviter.ends() == 1, inviter.seen
    assert list(Path("board").iterdir()) == []
    assert Path("ward/members.toml").read_bytes() == before


def test_where_both_can_only_dial_out_they_meet_at_the_relay():
    place = f"127.0.0.1:{free_ports(1)[0]}"
    begin("--relay", f"ws://{place}")
    with Person("relay", "--listen", place, "--federation", "ward") as relay:
        relay.until("listening on")
        with Person("invite", "ward", "pi3") as inviter:
            invite = read_invite(inviter.until(LINE))
            assert invite.meeting.relay == f"ws://{place}/p2pfl"
            away = msgspec.structs.replace(invite.meeting, addresses=())
            with join(msgspec.structs.replace(invite, meeting=away).line(), "--yes") as board:
                inviter.until("add it? [y/N]")
                inviter.type("y\n")
                assert (inviter.ends(), board.ends()) == (0, 0), (inviter.seen, board.seen)
    assert Path("board/ward/tickets.toml").read_bytes() == Path("ward/tickets.toml").read_bytes()
