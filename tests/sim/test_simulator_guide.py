"""docs/how-to/simulate.md: its Python runs, and its world loads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from p2pfl.config import load_config
from p2pfl.crypto.identity import Identity, public_text
from sim import read_world

GUIDE = (Path(__file__).parents[2] / "docs" / "how-to" / "simulate.md").read_text(encoding="utf-8")
(PYTHON,) = re.findall(r"^```python\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)
(WORLD,) = re.findall(r"^```toml\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)
FEDERATION = """
[federation]
name = "ward-7"
topology = "ring"

[task]
name = "digits"

[training]
rounds = 2

[gossip]

"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """With `ward-7` and `bad.toml`, as the guide has them."""
    monkeypatch.chdir(tmp_path)
    Path("ward-7").mkdir()
    members = "".join(
        f'[[node]]\nname = "node{i}"\nkey = "{public_text(Identity.generate().public)}"\n' for i in range(10)
    )
    Path("ward-7/federation.toml").write_text(FEDERATION + members, encoding="utf-8")
    Path("bad.toml").write_text(WORLD, encoding="utf-8")


@pytest.mark.long
@pytest.mark.usefixtures("folder")
def test_its_python_runs(capsys):
    exec(compile(PYTHON, "simulate.md", "exec"), {})
    accuracy, digest = capsys.readouterr().out.split()
    assert 0 <= float(accuracy) <= 1
    assert len(digest) == 64


@pytest.mark.usefixtures("folder")
def test_its_world_has_tenfold_speeds_losses_and_liars():
    world = read_world("bad.toml", load_config("ward-7"))
    assert (world.compute.speed.high / world.compute.speed.low, world.links.loss) == (10, 0.05)
    assert world.liars.count == 1
