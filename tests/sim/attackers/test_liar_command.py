"""`python -m sim.attackers`: the command that makes one node lie, and its mistakes."""

from __future__ import annotations

import pytest

from p2pfl.cli.main import main
from p2pfl.config import load_config
from sim import OFFER
from sim.attackers.__main__ import lie


@pytest.fixture
def ward(tmp_path):
    with pytest.raises(SystemExit):
        main(["new", str(tmp_path / "ward"), "--nodes", "3"])
    return tmp_path / "ward"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--node", "node0", "--attack", "flatter"], "error: --attack: no such attack (found 'flatter')"),
        (["--node", "node9", "--attack", "sign-flip"], "no such node (found 'node9'); allowed: node0, node1, node2"),
        (["--node", "node0"], "Missing option '--attack'"),
        (["--node", "node0", "--attack", "nix.py:lie"], "error: --attack: there is no file "),
    ],
)
def test_a_mistake_is_told_in_a_line(ward, capsys, arguments, said):
    with pytest.raises(SystemExit) as caught:
        main([str(ward), *arguments], command=lie, name="python -m sim.attackers")
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told


def test_the_demo_is_offered_a_command_that_names_the_other_liars(ward):
    federation = load_config(ward)
    command = OFFER.command(federation, "node1", "alie:2", ("node0", "node1", "node2"))
    assert command[:2] == ["-m", "sim.attackers"]
    parsed = lie.make_context("lie", command[2:]).params
    assert (parsed["name"], parsed["attack"], parsed["league"]) == ("node1", "alie:2", ("node0", "node2"))


def test_a_liar_that_the_demo_starts_elsewhere_finds_an_attack_in_a_file(ward, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lies.py").write_text("def own(sight):\n    return sight.own\n")
    OFFER.check("lies.py:own")
    command = OFFER.command(load_config(ward), "node1", "lies.py:own", ("node1",))
    assert lie.make_context("lie", command[2:]).params["attack"] == f"{tmp_path}/lies.py:own"
