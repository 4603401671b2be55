"""`p2pfl launch` forks its nodes from one process: what a person sees is as if each had been started by itself."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from real_field import Field, commands, wait_for

from p2pfl.fleet import SHARED, SHARED_WITH_TORCH

SERVER = "from multiprocessing.forkserver import main"
DEADLINE_S = 100
TASK = """
import os, sys
from pathlib import Path
from p2pfl.learn.task import QuadraticTask

with Path(__file__).with_name("imported").open("a") as file:
    words = Path("/proc/self/cmdline").read_text().split("\\0")
    limits = [os.environ[name] for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")]
    print(os.getpid(), words[words.index("--node") + 1], "torch" in sys.modules, *limits, file=file)

task = QuadraticTask(step_s=0.02)
"""
INJECTED = f"""
import sys
if any(word.startswith("{SERVER}") for word in sys.orig_argv):
    import os, signal, threading, time
"""
THREADED = "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"


@pytest.fixture
def ward(tmp_path):
    """Two nodes whose task is the user's, and needs no torch."""
    task = 'name = "task.py:task"'
    folder = Field(tmp_path / "ward", 2, task=task, rounds=5, linger_s=3.0, start_wait_s=30.0).folder
    (folder / "task.py").write_text(TASK)
    return folder


@pytest.fixture
def inject(tmp_path, monkeypatch):
    """What the server does when it starts."""

    def inject(line):
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "sitecustomize.py").write_text(INJECTED + f"    {line}\n")
        paths = [str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))

    return inject


@pytest.fixture
def launch(ward):
    with commands() as start:
        yield lambda: start("launch", str(ward))


def endless(ward):
    file = ward / "federation.toml"
    file.write_text(file.read_text().replace("rounds = 5", "rounds = 100000"))


def of(ward):
    """Every node of this federation that runs, by process id, with its command line."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_text().rstrip("\0").split("\0")
        except OSError:
            continue
        if str(ward / "federation.toml") in words:
            found[int(place.name)] = words
    return found


def server_of(process):
    children = [one.read_text() for one in Path(f"/proc/{process.pid}/task").glob("*/children")]
    for pid in " ".join(children).split():
        if SERVER in (Path("/proc") / pid / "cmdline").read_text():
            return int(pid)
    return None


def done(process):
    out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out, err


def imported(ward):
    return [line.split() for line in (ward / "imported").read_text().splitlines()]


def results(ward):
    return {name: json.loads((ward / name / "state" / "result.json").read_text()) for name in ("node0", "node1")}


def is_gone(pid):
    """Nobody may have asked yet how a process ended that has lost its parent."""
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "State:\tZ" in status.read_text()


@pytest.mark.long
def test_a_task_is_imported_by_its_nodes_alone_and_torch_before_them(launch, ward):
    code, _, err = done(launch())
    assert (code, "error" in err, "warning" in err) == (0, False, False), err
    lines = imported(ward)
    assert {(int(pid), name) for pid, name, *_ in lines} == {(one["pid"], name) for name, one in results(ward).items()}
    assert [line[2:] for line in lines] == [["True", "1", "1", "1"]] * 2


@pytest.mark.long
def test_a_node_that_wants_more_threads_has_them_and_shares_no_import(launch, ward):
    file = ward / "node1" / "node.toml"
    file.write_text(file.read_text().replace("# threads = 1", "threads = 2"))
    code, _, err = done(launch())
    assert code == 0, err
    shown = {name: rest for _, name, *rest in imported(ward)}
    assert shown == {"node0": ["True", "1", "1", "1"], "node1": ["False", "2", "2", "2"]}


@pytest.mark.long
def test_with_a_second_thread_nodes_share_nothing(inject, launch, ward):
    inject(THREADED)
    code, _, err = done(launch())
    assert code == 0, err
    assert [line[2] for line in imported(ward)] == ["False"] * 2


@pytest.mark.long
def test_a_server_leaves_when_its_launcher_is_killed_and_so_do_nodes(launch, ward):
    endless(ward)
    process = launch()
    server = wait_for(lambda: server_of(process), "the server")
    nodes = wait_for(lambda: len(found := of(ward)) == 2 and found, "two nodes")
    assert {words[words.index("--node") + 1] for words in nodes.values()} == {"node0", "node1"}
    assert all(words[1:4] == ["-m", "p2pfl.cli.main", "run"] for words in nodes.values())
    process.kill()
    process.communicate()
    wait_for(lambda: is_gone(server) and not of(ward), "their end")


@pytest.mark.long
def test_a_server_leaves_when_its_launcher_is_killed_while_it_imports(launch, ward):
    process = launch()
    server = wait_for(lambda: server_of(process), "the server")
    process.kill()
    process.communicate()
    wait_for(lambda: is_gone(server), "its end")
    assert of(ward) == {}


@pytest.mark.parametrize(("how", "code"), [("refused", 2), ("interrupted", 130)])
def test_a_server_that_still_imports_does_not_outlive_a_launch_that_ends_before_a_node(inject, launch, ward, how, code):
    inject(f"Path = __import__('pathlib').Path; Path({str(ward)!r}, 'server').touch(); time.sleep(1000)")
    if how == "refused":
        (ward / "node0" / "node.key").unlink()
    process = launch()
    if how == "interrupted":
        wait_for((ward / "server").exists, "the server")
        process.send_signal(signal.SIGINT)
    ended, out, err = done(process)  # a server would hold the other ends
    assert (ended, out, "Traceback" in err, of(ward)) == (code, "", False, {})
    assert "error: " in err or how == "interrupted"


SERVED = """
import sys, p2pfl.fleet
from p2pfl.cli.main import main
slow = lambda: sorted({"numpy", "p2pfl.cli.launch"}.intersection(sys.modules))
p2pfl.fleet.serve = lambda modules: sys.exit(f"serves {modules} {slow()}")
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("words", "first", "torch"),
    [
        (["demo"], True, True),
        (["demo", "-h"], False, False),
        (["launch", "{ward}"], True, True),
        (["launch", "{ward}/federation.toml", "--references"], True, False),
        (["launch", "nowhere"], False, False),
    ],
)
def test_the_server_begins_before_the_launcher_imports_anything_slow(ward, words, first, torch):
    """By what the file says: a `quadratic` task needs no torch."""
    if "--references" in words:
        file = ward / "federation.toml"
        file.write_text(file.read_text().replace("task.py:task", "quadratic"))
    command = [sys.executable, "-c", SERVED, *(word.format(ward=ward) for word in words)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S, cwd=ward)
    modules = [*SHARED, *(SHARED_WITH_TORCH if torch else ())]
    assert ended.stderr == f"serves {modules} []\n" if first else not ended.stderr.startswith("serves"), ended.stderr


@pytest.mark.long
def test_a_task_that_fails_is_told(launch, ward):
    (ward / "task.py").write_text("raise RuntimeError('as asked')\n")
    code, _, err = done(launch())
    log = (ward / "node0" / "node.log").read_text()
    assert code == 1
    assert "node0 failed (exit 2); its log" in err
    assert re.search("error: .*RuntimeError.*as asked", log)
    assert "Traceback" not in log
