"""Two people at two terminals, real processes: files, request and answer travel by themselves, or nothing changes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from pairing_kit import KEY, LINE, P2PFL, Person
from ports import free_ports

from p2pfl.config import load_config, read_invite

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The inviter's folder, with a task that leaves a trace wherever it is imported; beside it that of the new machine."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "board").mkdir()
    return tmp_path


def begin(*more):
    subprocess.run([*P2PFL, "new", "ward", "--nodes", "pi1,pi2", "--admin", *more], check=True)
    task = Path("ward/task.py")
    task.write_text(f"open('it-ran', 'w').close()\n{task.read_text()}", encoding="utf-8")


def join(line, *more):
    return Person("join", line, *more, cwd="board")


def test_yes_on_both_sides_adds_the_machine(home):
    begin()
    with Person("invite", "ward", "pi3") as inviter, join(inviter.until(LINE)) as board:
        board.until("added? [y/N]")
        assert re.search(r"task.py: [\d,]+ bytes, sha256 [0-9a-f]{64} +CODE that would run here", board.seen)
        read_it = board.until(re.compile(r"Read it in (\S+)"))
        assert Path(read_it, "task.py").read_bytes() == Path("ward/task.py").read_bytes()
        board.type("y\n")
        inviter.until("add it? [y/N]")
        assert inviter.until(KEY) == board.until(KEY)
        inviter.type("y\n")
        assert (inviter.ends(), board.ends()) == (0, 0), (inviter.seen, board.seen)
        line = inviter.until(LINE)
    there = Path("board/ward")
    assert (there / "members.toml").read_bytes() == Path("ward/members.toml").read_bytes()
    assert "pi3" in [member.name for member in load_config(there).present]
    assert not Path("board/it-ran").exists()
    assert not Path(read_it).exists()
    again = subprocess.run([*P2PFL, "join", line, "twice", "--yes"], cwd="board", capture_output=True, text=True)
    assert again.returncode == 2
    assert "takes this line no more" in again.stderr
    assert "a new line from `p2pfl invite`" in again.stderr
    assert not Path("board/twice").exists()


@pytest.mark.parametrize("who", ["board", "inviter", "nobody"])
def test_no_on_either_side_or_no_terminal_changes_nothing(home, who):
    begin()
    before = Path("ward/members.toml").read_bytes()
    with Person("invite", "ward", "pi3") as inviter:
        line = inviter.until(LINE)
        inviter.until("Ctrl+C")
        if who == "nobody":
            alone = subprocess.run(
                [*P2PFL, "join", line], cwd="board", capture_output=True, text=True, stdin=subprocess.DEVNULL
            )
            assert alone.returncode == 2
            assert "no terminal" in alone.stderr
            inviter.process.send_signal(signal.SIGINT)
            inviter.until("nobody has asked")
        else:
            with join(line) as board:
                board.until("added? [y/N]")
                board.type("n\n" if who == "board" else "y\n")
                if who == "board":
                    board.until("nothing was changed")
                    assert board.ends() == 1
                    inviter.process.send_signal(signal.SIGINT)
                else:
                    inviter.until("add it? [y/N]")
                    inviter.type("n\n")
                    board.until("not added")
                    assert board.ends() == 2
        assert inviter.ends() == 1, inviter.seen
    assert list(Path("board").iterdir()) == []
    assert Path("ward/members.toml").read_bytes() == before


def test_where_both_can_only_dial_out_they_meet_at_the_relay_with_a_pass_of_ten_minutes(home):
    port = free_ports(1)[0]
    begin("--relay", f"ws://127.0.0.1:{port}")
    with Person("relay", "--listen", f"127.0.0.1:{port}", "--federation", "ward") as relay:
        relay.until(str(port))
        with Person("invite", "ward", "pi3") as inviter:
            line = inviter.until(LINE)
            inviter.until("Ctrl+C")
            invite = read_invite(line)
            assert invite.meeting.relay == f"ws://127.0.0.1:{port}/p2pfl"
            away = msgspec.structs.replace(invite.meeting, addresses=())
            with join(msgspec.structs.replace(invite, meeting=away).line(), "--yes") as board:
                inviter.until("add it? [y/N]")
                inviter.type("y\n")
                assert (inviter.ends(), board.ends()) == (0, 0), (inviter.seen, board.seen)
    assert Path("board/ward/tickets.toml").read_bytes() == Path("ward/tickets.toml").read_bytes()
