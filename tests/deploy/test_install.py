"""install.sh for real, from this checkout, into a folder: what it makes, leaves alone and removes.

One installation is shared by all tests but the last, which adds to it and takes it away again.
"""

from __future__ import annotations

import shutil
import stat
import sys

import pytest

pytestmark = pytest.mark.long

HOME = "var/lib/p2pfl"


@pytest.fixture(scope="module")
def place(tmp_path_factory, run, install, make_five_boards):
    """A root with the software and the node pi1, and the federation folder that it came from, four keys too many."""
    folder = tmp_path_factory.mktemp("place")
    five = make_five_boards(folder / "five")
    (five / "data").mkdir()
    (five / "data/shared.csv").write_text("1,2\n", encoding="ascii")
    (five / "pi1/node.key").chmod(0o644)
    (five / "pi1/state").mkdir()
    (five / "pi1/state/kept").write_bytes(b"of another machine")
    outcome = install("--torch", "none", "--root", folder / "root", "--node", "pi1", five)
    if outcome.code != 0 and run(sys.executable, "-m", "pip", "download", "-d", folder, "--no-deps", "hatchling").code:
        pytest.skip("no package index can be reached")
    assert outcome.code == 0, outcome.out[-2000:] + outcome.err
    return folder


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_command_works(place, run):
    outcome = run(place / "root/usr/local/bin/p2pfl", "check", place / "root" / HOME)
    assert outcome.code == 0, outcome.err
    assert "five-boards" in outcome.out


def test_the_key_is_secret_even_if_its_copy_was_not(place):
    assert mode(place / "root" / HOME / "pi1/node.key") == 0o600
    assert mode(place / "root" / HOME / "pi1") == 0o700


def test_what_is_shared_is_closed_to_others(place):
    home = place / "root" / HOME
    assert {mode(home), mode(home / "data")} == {0o750}
    assert {mode(home / "federation.toml"), mode(home / "data/shared.csv")} == {0o640}


def test_keys_of_other_nodes_stay_behind(place):
    assert [path.parent.name for path in (place / "root").rglob("node.key")] == ["pi1"]


def test_a_state_is_never_copied(place):
    assert not (place / "root" / HOME / "pi1/state").exists()


def test_the_unit_starts_what_is_installed(place):
    unit = (place / "root/etc/systemd/system/p2pfl@.service").read_text(encoding="utf-8")
    (command,) = [line.split()[0].partition("=")[2] for line in unit.splitlines() if line.startswith("ExecStart=")]
    assert (place / f"root{command}").is_file()


def test_another_key_is_refused(place, install, make_five_boards, tmp_path):
    key = place / "root" / HOME / "pi1/node.key"
    before = key.read_bytes()
    other = make_five_boards(tmp_path / "other")
    outcome = install("--torch", "none", "--root", place / "root", "--node", "pi1", other)
    assert outcome.code == 2
    assert "another key" in outcome.err
    assert key.read_bytes() == before


def test_again_keeps_key_and_state_and_uninstall_keeps_them_too(place, install):
    """The second time the federation comes without the node's folder, as for a change of federation.toml."""
    root, home = place / "root", place / "root" / HOME
    (home / "pi1/state").mkdir(mode=0o700)
    (home / "pi1/state/kept").write_bytes(b"learned")
    key = (home / "pi1/node.key").read_bytes()
    shutil.rmtree(place / "five/pi1")
    changed = (place / "five/federation.toml").read_text(encoding="utf-8").replace("rounds = 200", "rounds = 300")
    (place / "five/federation.toml").write_text(changed, encoding="utf-8")

    again = install("--torch", "none", "--root", root, "--node", "pi1", place / "five")
    assert again.code == 0, again.err
    assert "-m venv" not in again.out
    assert (home / "federation.toml").read_text(encoding="utf-8") == changed

    removed = install("--uninstall", "--root", root)
    assert removed.code == 0, removed.err
    gone = ("opt/p2pfl", "usr/local/bin/p2pfl", "etc/systemd/system/p2pfl@.service")
    assert not [path for path in gone if (root / path).exists() or (root / path).is_symlink()]
    assert (home / "pi1/node.key").read_bytes() == key
    assert (home / "pi1/state/kept").read_bytes() == b"learned"
    assert install("--uninstall", "--root", root).code == 0
