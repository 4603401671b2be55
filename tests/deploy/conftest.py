"""What is in deploy/, run as a user runs it: the script in a shell, systemd's own checks on the unit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from p2pfl.crypto.identity import Identity, public_text
from tests.conftest import Outcome

DEPLOY = Path(__file__).parents[2] / "deploy"
BOARDS = ("pi1", "pi2", "pi3", "pi4", "pi5")


def _run(*arguments, env=None):
    done = subprocess.run(
        [str(argument) for argument in arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env=os.environ | (env or {}),
        cwd="/",
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def deploy():
    return DEPLOY


@pytest.fixture(scope="session")
def run():
    """A command to its end, however it ends."""
    return _run


@pytest.fixture(scope="session")
def install():
    """install.sh with the Python that runs the tests."""
    return lambda *arguments, env=None: _run(DEPLOY / "install.sh", "--python", sys.executable, *arguments, env=env)


@pytest.fixture(scope="session")
def tool():
    """The path of a command of this environment or of the system; where it is missing the test is skipped."""

    def find(name):
        found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        if found is None:
            pytest.skip(f"{name} is not installed")
        return found

    return find


@pytest.fixture(scope="session")
def make_five_boards():
    """The example of docs/tutorials/raspberry-pi.md with keys: federation.toml, five folders, an admin key."""

    def make(folder):
        shutil.copytree(DEPLOY / "five-boards", folder)
        keys = {}
        for name in BOARDS:
            identity = Identity.generate()
            identity.save(folder / name / "node.key")
            keys[name] = public_text(identity.public)
        admin = Identity.generate()
        admin.save(folder / "admin.key")
        keys["admin"] = public_text(admin.public)
        file = folder / "federation.toml"
        text = re.sub("KEY-OF-(pi[1-5]|admin)", lambda found: keys[found[1]], file.read_text(encoding="utf-8"))
        file.write_text(text, encoding="utf-8")
        return folder

    return make


@pytest.fixture
def five_boards(make_five_boards, tmp_path):
    return make_five_boards(tmp_path / "five")


@pytest.fixture
def for_pi1(five_boards):
    """What is copied to one board: the file and its own folder."""
    for name in BOARDS[1:]:
        shutil.rmtree(five_boards / name)
    return five_boards
