"""`p2pfl launch` looks for mistakes once, before any node starts, and imports no torch for it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from p2pfl.cli import _judge
from p2pfl.crypto.identity import Identity
from p2pfl.reporting import NodeReport, Report
from tests.cli.conftest import change

COUNTING = """
import atexit, sys
atexit.register(lambda: print("torch" in sys.modules, file=sys.stderr))
from p2pfl.cli.main import main
main(["launch", *sys.argv[1:]])
"""


@pytest.fixture
def launch(tmp_path):
    """`launch` in a process of its own: its exit code, what it said, and whether it had imported torch."""

    def launch(folder):
        command = [sys.executable, "-c", COUNTING, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60)
        *said, torch = done.stderr.rstrip().split("\n")
        return done.returncode, said, torch == "True"

    return launch


def untouched(folder):
    return not [*folder.glob("*/node.log"), *folder.glob("*/state")]


def test_mistakes_in_folders_are_said_once_and_nobody_is_started(p2pfl, launch, tmp_path):
    p2pfl("new", "ward", "--nodes", "3", "--task", "digits")
    ward = tmp_path / "ward"
    change(ward / "node0" / "node.toml", "127.0.0.1:8470", "127.0.0.1:9470")
    change(ward / "node1" / "node.toml", "# threads = 1", "threads = 0")
    (ward / "node2" / "node.key").unlink()
    Identity.generate().save(ward / "node2" / "node.key")
    code, said, torch = launch(ward)
    assert (code, torch) == (2, False)
    assert len(said) == 3
    for line, word in zip(said, ("node.listen", "node.threads", "not the key that"), strict=True):
        assert line.startswith("error: ")
        assert word in line
    assert untouched(ward)


@pytest.mark.long
def test_mistakes_in_tables_are_said_once_and_nobody_is_started(p2pfl, launch, tmp_path):
    for site in ("north", "south"):
        rows = "\n".join(f"{n % 7},{n % 2}" for n in range(40))
        (tmp_path / f"{site}.csv").write_text(f"age,ill\n{rows}\n", encoding="utf-8")
    assert p2pfl("new", "h", "--task", "csv", "north.csv", "south.csv", "--target", "ill").code == 0
    for site in ("north", "south"):
        change(tmp_path / f"{site}.csv", "3,1\n4,0", "three,1\n4,x")
    code, said, torch = launch(tmp_path / "h")
    assert (code, torch) == (2, False)
    for site in ("north", "south"):
        assert [line for line in said if f"{site}.csv" in line and "three" in line]
    assert all(line.startswith("error: ") for line in said)
    assert untouched(tmp_path / "h")


def test_a_schema_file_that_is_not_there_is_said_once(p2pfl, tmp_path):
    for site in ("north", "south"):
        rows = "\n".join(f"{n % 7},{n % 2}" for n in range(40))
        (tmp_path / f"{site}.csv").write_text(f"age,ill\n{rows}\n", encoding="utf-8")
    assert p2pfl("new", "h", "--task", "csv", "north.csv", "south.csv", "--target", "ill").code == 0
    (tmp_path / "h" / "schema.toml").unlink()
    outcome = p2pfl("launch", "h")
    (said,) = outcome.err.splitlines()
    assert outcome.code == 2
    assert "schema.toml" in said


def test_what_is_odd_and_no_mistake_is_said_on_the_way(p2pfl, monkeypatch, tmp_path):
    """A node that listens where nobody reaches its address."""
    p2pfl("new", "ward", "--nodes", "2", "--task", "digits")
    file = tmp_path / "ward" / "federation.toml"
    change(file, "127.0.0.1:8470", "10.0.0.1:8470")
    monkeypatch.setattr("p2pfl.cli.launch.run_fleet", lambda *_, **__: 0)
    outcome = p2pfl("launch", "ward")
    said = outcome.err
    assert outcome.code == 0
    assert "warning: node0 listens on 127.0.0.1:8470, where nobody reaches its address 10.0.0.1:8470" in said


def test_who_waited_in_vain_is_told_beside_the_result(capsys):
    waited = Report(nodes=[NodeReport(name="pi1", rounds=4, stranded=True)])
    assert _judge(SimpleNamespace(stopping=False), waited) == 1
    assert capsys.readouterr() == ("", "pi1: waited in vain for a neighbor after round 4; no other node runs\n")


def test_a_compressor_that_the_rule_cannot_use_is_told_before_a_node_starts(p2pfl, launch, tmp_path):
    p2pfl("new", "ward", "--nodes", "4", "--topology", "complete", "--rule", "hampel:b=1", "--task", "digits")
    change(tmp_path / "ward" / "federation.toml", 'compressor = "q4"', 'compressor = "fragment:4"')
    code, said, torch = launch(tmp_path / "ward")
    assert (code, torch, len(said)) == (2, False, 1)
    assert "gossip.compressor" in said[0]
    assert untouched(tmp_path / "ward")
