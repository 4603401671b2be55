"""Processes that share one import: each has all that a plain one has, and nothing of another one's."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from multiprocessing import forkserver
from pathlib import Path

import pytest

from p2pfl.fleet import ONE_THREAD, SHARED, SHARED_WITH_TORCH, Starter, serve, shared_modules, why_not

WORKING = ["-m", "worker"]

# Ends as its stdin says.
WORKER = """
import sys
print("here", flush=True)
word = sys.stdin.readline()
if word.startswith("raise"):
    raise ValueError("as asked")
sys.exit(int(word or 0))
"""
# Says what a process is.
PROBE = """
import asyncio, gc, hashlib, json, os, random, signal, sys, threading
import numpy, torch
from pathlib import Path

def bits():
    # Of what a node computes: products, a convolution, functions, gradients.
    torch.manual_seed(0)
    digest = hashlib.sha256()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        image = torch.randn(8, 3, 64, 64, requires_grad=True)
        layers = [torch.nn.Conv2d(3, 16, 3), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(61504, 10)]
        network = torch.nn.Sequential(*layers)
        network(image).exp().sum().backward()
        digest.update(image.grad.numpy().tobytes())
    matrix = numpy.random.default_rng(0).normal(size=(500, 500))
    digest.update((matrix @ matrix).tobytes())
    return digest.hexdigest()


own = {"pid": os.getpid(), "session": os.getsid(0), "group": os.getpgid(0)}
drawn = {
    "random": random.getrandbits(64),
    "numpy": int(numpy.random.randint(1 << 62)),
    "torch": torch.rand(1, dtype=torch.float64).item(),
}
common = {
    "words": sys.argv[1:],
    "shown": Path("/proc/self/cmdline").read_text().rstrip("\\0").split("\\0"),
    "main": __name__,
    "file": __file__,
    "environment": dict(os.environ) | dict.fromkeys(("COLUMNS", "LINES")),  # pytest's readline sets them
    "folder": os.getcwd(),
    "signals": {one.name: str(signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)},
    "ignored": [line for line in Path("/proc/self/status").read_text().splitlines()
                if line.startswith(("SigBlk", "SigIgn", "SigCgt"))],
    "threads": [len(os.listdir("/proc/self/task")), threading.active_count()],
    "torch threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
    "collects": gc.isenabled(),
    "loop": asyncio.events._get_running_loop() is None,
    "streams": [(one.encoding, one.errors, one.line_buffering) for one in (sys.stdin, sys.stdout, sys.stderr)],
}
common["bits"] = bits()
print(json.dumps({"own": own, "drawn": drawn, "common": common}))
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """`probe` and `worker` can be imported there; one thread, as a node has that says nothing else."""
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(1000)")
    monkeypatch.chdir(tmp_path)
    for name in ONE_THREAD:
        monkeypatch.setenv(name, "1")
    return tmp_path


def server_pid():
    return forkserver._forkserver._forkserver_pid


@pytest.fixture
def starter(place):
    """A starter whose server is new, and does not outlive the test."""
    forkserver._forkserver._stop()
    yield lambda *modules: Starter(modules)
    forkserver._forkserver._stop()


def of_server(what):
    return Path(f"/proc/{server_pid()}/{what}").read_text()


async def server_is_there():
    while server_pid() is None:  # noqa: ASYNC110 - nothing tells when that is
        await asyncio.sleep(0.01)


def logged(place):
    return (place / "log").read_text()


async def is_here(process):
    assert await process.stdout.readline() == b"here\n"


async def works(process):
    await is_here(process)
    process.stdin.close()
    assert await process.wait() == 0


@pytest.mark.long
async def test_a_forked_process_is_as_a_plain_one_and_draws_for_itself(place, starter):
    arguments = ["-m", "probe", "one", "two words"]
    starting = starter(*SHARED, *SHARED_WITH_TORCH)
    processes = [await starting.start(arguments, place / "log", shared=shared) for shared in (True, True, False)]
    assert "Threads:\t1\n" in of_server("status")
    assert "libtorch" in of_server("maps")
    seen = [json.loads(await process.stdout.readline()) for process in processes]
    for process, one in zip(processes, seen, strict=True):
        assert one["own"] == dict.fromkeys(("pid", "session", "group"), process.pid)
        assert one["common"] == seen[2]["common"]
        process.stdin.close()
        assert await process.wait() == 0
    for name in seen[0]["drawn"]:
        assert len({one["drawn"][name] for one in seen}) == 3, name


async def test_exit_codes_signals_and_tracebacks_are_those_of_a_plain_process(place, starter):
    starting = starter("json")
    processes = [await starting.start(WORKING, place / "log", shared=True) for _ in range(4)]
    ended, killed, failed, let_go = processes
    for process in processes:
        await is_here(process)
    killed.send_signal(signal.SIGKILL)
    ended.stdin.write(b"3\n")
    failed.stdin.write(b"raise\n")
    let_go.stdin.close()  # an end of file, for no other process has the other end
    assert [await process.wait() for process in processes] == [3, -signal.SIGKILL, 1, 0]
    assert [await process.stdout.read() for process in processes] == [b""] * 4
    assert logged(place).endswith("ValueError: as asked\n")
    killed.send_signal(signal.SIGKILL)  # to nobody: its number may be another one's now


@pytest.mark.parametrize("then", ["ended before", "ends after"])
async def test_a_process_whose_server_is_gone_still_has_its_own_exit_code(place, starter, monkeypatch, then):
    """The server may be killed for its memory; who has finished must not count as failed for that.

    A dying server's files are closed before its processes become ours.
    """
    ask, asked = os.waitpid, set()

    def not_at_first(pid, options):
        if pid in {done.pid, failed.pid} - asked:
            asked.add(pid)
            raise ChildProcessError
        return ask(pid, options)

    starting = starter("json")
    done, failed = [await starting.start(WORKING, place / "log", shared=True) for _ in range(2)]
    for process in (done, failed):
        await is_here(process)
    monkeypatch.setattr(os, "waitpid", not_at_first)
    os.kill(server_pid(), signal.SIGSTOP if then == "ended before" else signal.SIGKILL)
    done.stdin.close()
    failed.stdin.write(b"3\n")
    assert [await process.stdout.read() for process in (done, failed)] == [b"", b""]
    if then == "ended before":
        os.kill(server_pid(), signal.SIGKILL)
    assert [await process.wait() for process in (done, failed)] == [0, 3]


async def test_a_server_that_does_not_answer_is_ended_and_nodes_are_started_by_themselves(
    place, starter, caplog, monkeypatch
):
    monkeypatch.setattr("p2pfl.fleet.fleet.READY_S", 0.5)
    await works(await starter("slow").start(WORKING, place / "log", shared=True))
    assert "has not answered for 0.5 s" in caplog.text


@pytest.mark.parametrize("when", ["before", "between"])
async def test_without_a_server_nodes_are_started_by_themselves_and_it_is_told(place, starter, caplog, when):
    starting = starter(*["slow"] * (when == "before"))
    if when == "between":
        await is_here(first := await starting.start(WORKING, place / "log", shared=True))
        os.kill(server_pid(), signal.SIGKILL)
        os.waitid(os.P_PID, server_pid(), os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - it is quick
        first.stdin.close()
    task = asyncio.create_task(starting.start(WORKING, place / "log", shared=True))
    if when == "before":
        await server_is_there()
        os.kill(server_pid(), signal.SIGKILL)
    await works(await task)
    assert ("each is started separately" in caplog.text) == (when == "before")


async def test_a_server_that_began_with_other_modules_than_nodes_need_is_replaced(place, starter):
    """Before the federation is read, they are guessed."""
    starting = starter("json")
    serve(["slow"])
    guessed = server_pid()
    await works(await starting.start(WORKING, place / "log", shared=True))
    assert server_pid() != guessed
    with pytest.raises(ProcessLookupError):
        os.kill(guessed, 0)


async def test_whoever_gives_up_need_not_wait_for_an_import(place, starter):
    starting = starter("slow")
    task = asyncio.create_task(starting.start(WORKING, place / "log", shared=True))
    await server_is_there()
    starting.give_up()
    assert await task is None


def test_where_a_driver_may_be_at_work_nothing_is_forked(tmp_path, monkeypatch):
    """Nothing is imported for it: neither torch nor a driver."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError")
    (tmp_path / "nvidia").touch()
    built = tmp_path / "torch" / "version.py"
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("p2pfl.fleet.ACCELERATORS", {"cuda": (str(tmp_path / "nvidia"),)})
    for text, said in (("cuda = '13.0'", "nvidia"), ("cuda = None", None)):
        built.write_text(text)
        assert said in why_not() if said else why_not() is None
    (tmp_path / "nvidia").unlink()
    built.write_text("cuda = '13.0'")
    assert why_not() is None
    built.unlink()
    assert "built for" in why_not()
    monkeypatch.setattr("p2pfl.fleet.IS_LINUX", False)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "darwin" in why_not()


@pytest.mark.parametrize(("missing", "expected"), [("", (*SHARED, *SHARED_WITH_TORCH)), ("torch", SHARED)])
def test_nodes_share_torch_if_it_is_there(monkeypatch, missing, expected):
    """A server that failed to import would leave each node to start alone."""
    monkeypatch.setattr("p2pfl.fleet.find_spec", lambda name: None if name == missing else name)
    assert shared_modules(torch=True) == [*expected]
