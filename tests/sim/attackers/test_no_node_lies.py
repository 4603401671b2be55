"""What a device runs contains no attack and has no option to lie."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from ports import free_ports

from p2pfl.cli.run import run

ROOT = Path(__file__).parents[3]
WATCHED = """
import os, sys
leave = os._exit
def say(code):
    print("\\n".join(sorted(sys.modules)), flush=True)
    leave(code)
os._exit = say
from p2pfl.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.long
def test_a_node_that_has_run_to_its_end_has_imported_no_attack(tmp_path):
    """All of a round, alone: the simulator, whose package has the attacks, is not there either."""
    p2pfl = [sys.executable, "-m", "p2pfl.cli.main"]
    subprocess.run([*p2pfl, "new", str(tmp_path / "ward"), "--nodes", "2"], check=True, capture_output=True)
    file = tmp_path / "ward" / "federation.toml"
    text = file.read_text().replace('name = "task.py:task"', 'name = "quadratic"').replace("rounds = 40", "rounds = 2")
    text = text.replace("# start_wait_s = 60.0", "start_wait_s = 0.1").replace("# linger_s = 30.0", "linger_s = 0.1")
    file.write_text(text)
    (port,) = free_ports(1)
    for path in (file, tmp_path / "ward" / "node1" / "node.toml"):
        path.write_text(path.read_text().replace("127.0.0.1:8471", f"127.0.0.1:{port}"))
    node = tmp_path / "ward" / "node0" / "node.toml"
    node.write_text(node.read_text().replace("127.0.0.1:8470", "127.0.0.1:0"))
    neighbor = [sys.executable, "-m", "p2pfl.cli.main", "run", str(tmp_path / "ward"), "--node", "node1"]
    with subprocess.Popen(neighbor, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as other:
        done = subprocess.run(
            [sys.executable, "-c", WATCHED, "run", str(tmp_path / "ward"), "--node", "node0", "--format", "json"],
            check=False,
            capture_output=True,
            text=True,
        )
        other.terminate()
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.splitlines())
    assert "p2pfl.engine.engine" in loaded
    assert [name for name in loaded if name.partition(".")[0] == "sim"] == []


def test_a_node_has_no_option_to_lie():
    options = {name for parameter in run.params for name in parameter.opts}
    assert options == {"federation", "--node", "--config", "--launched", "--verbose", "-v", "--format"}


def test_imports_of_liars_are_forbidden_to_every_other_package():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    rules = [contract for contract in settings["contracts"] if contract.get("forbidden_modules") == ["sim.attackers"]]
    packages = {f"sim.{path.parent.name}" for path in (ROOT / "sim").glob("*/__init__.py")} - {"sim.attackers"}
    others = {"p2pfl", "topologies", "sim.simulation"}
    assert [set(rule["source_modules"]) for rule in rules] == [others | packages]
