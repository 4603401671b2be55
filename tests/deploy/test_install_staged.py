"""Before anything on a working board is replaced, install.sh checks the new federation as a whole."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def board(deploy, run, for_pi1, tmp_path):
    """A board that works, as the script left it, and the folder from which its federation came."""
    file = for_pi1 / "federation.toml"
    file.write_text(file.read_text(encoding="utf-8").replace('name = "digits"', 'name = "quadratic"'), encoding="utf-8")
    (for_pi1 / "shared.csv").write_text("1,2\n", encoding="ascii")
    script = (deploy / "install.sh").read_text(encoding="utf-8").partition('\nparse_arguments "$@"\n')[0]
    command = tmp_path / "root/opt/p2pfl/venv/bin/p2pfl"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m p2pfl.cli.main "$@"\n', encoding="ascii")
    command.chmod(0o755)

    class Board:
        source, home = for_pi1, tmp_path / "root/var/lib/p2pfl"

        def install(self, source=for_pi1):
            steps = f"parse_arguments --root {tmp_path}/root --node pi1 {source}; choose_node; install_federation"
            return run("bash", "-c", f"{script}\n{steps}", env={"PYTHONPATH": str(ROOT)})

        def change(self, old, new, file="federation.toml"):
            text = (for_pi1 / file).read_text(encoding="utf-8")
            assert old in text
            (for_pi1 / file).write_text(text.replace(old, new), encoding="utf-8")

        def content(self):
            """All files of the board but what is kept of before."""
            return {
                str(path.relative_to(self.home)): path.read_bytes()
                for path in self.home.rglob("*")
                if path.is_file() and ".previous" not in path.parts
            }

    found = Board()
    outcome = found.install()
    assert outcome.code == 0, outcome.err
    assert not (found.home / ".previous").exists()
    return found


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("federation.toml", "rounds = 200", "ruonds = 200", "training.ruonds: unknown key"),
        pytest.param("pi1/node.toml", "threads = 3", "threads = 0", "node.threads", marks=pytest.mark.long),
    ],
)
def test_a_typo_takes_no_working_board_down(board, file, old, new, said):
    before = board.content()
    board.change(old, new, file)
    outcome = board.install()
    assert outcome.code == 2
    assert said in outcome.err
    assert "nothing of it was installed" in outcome.err
    assert board.content() == before
    assert not (board.home / ".new").exists()


@pytest.mark.long
def test_what_was_there_before_is_kept_and_can_be_installed_again(board):
    before = board.content()
    (board.home / "pi1/state").mkdir(mode=0o700)
    (board.home / "pi1/state/kept").write_bytes(b"learned")
    board.change("rounds = 200", "rounds = 300")
    board.change("threads = 3", "threads = 2", "pi1/node.toml")
    outcome = board.install()
    assert outcome.code == 0, outcome.err
    assert b"rounds = 300" in board.content()["federation.toml"]
    assert b"threads = 2" in board.content()["pi1/node.toml"]
    assert f"--node pi1 {board.home}/.previous" in outcome.out

    back = board.install(board.home / ".previous")
    assert back.code == 0, back.err
    assert board.content() == before | {"pi1/state/kept": b"learned"}
    assert b"rounds = 300" in (board.home / ".previous/federation.toml").read_bytes()


@pytest.mark.long
def test_the_same_again_changes_nothing_and_keeps_the_one_before(board):
    board.change("rounds = 200", "rounds = 300")
    board.install()
    again = board.install()
    assert again.code == 0
    assert "has all of this already" in again.out
    assert b"rounds = 200" in (board.home / ".previous/federation.toml").read_bytes()


@pytest.mark.long
def test_a_federation_without_the_nodes_folder_is_checked_with_what_the_board_has(board):
    for file in ("node.toml", "node.key"):
        (board.source / "pi1" / file).unlink()
    (board.source / "pi1").rmdir()
    before = board.content()
    board.change("rounds = 200", "rounds = 300")
    outcome = board.install()
    assert outcome.code == 0, outcome.err
    after = board.content()
    assert {name for name in after if after[name] != before[name]} == {"federation.toml"}
    assert not (board.home / "pi1/node.key").is_symlink()


@pytest.mark.long
def test_the_state_of_the_board_is_looked_at_too(board):
    (board.home / "pi1/state").mkdir()
    (board.home / "pi1/state").chmod(0o777)
    board.change("rounds = 200", "rounds = 300")
    outcome = board.install()
    assert outcome.code == 2
    assert "others may write to the state folder" in outcome.err
    assert (board.home / "pi1/state").is_dir()
    assert not (board.home / "pi1/state").is_symlink()
