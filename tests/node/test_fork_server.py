"""Processes that share one import: each has all that a plain one has, and nothing of another one's."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from p2pfl.fleet import fork_server, starter
from p2pfl.fleet.fork_server import ForkServer, ForkServerError, NotForked, why_not
from p2pfl.fleet.starter import SHARED, SHARED_BY_TASK, SHARED_WITH_TORCH, shared_modules

LIMIT = 1 << 20
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
import asyncio, gc, hashlib, json, multiprocessing, os, random, signal, sys, threading
import aiohttp._websocket.writer as writer, numpy, torch
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
    "masks": writer.WebSocketWriter.__init__.__kwdefaults__["random"].getrandbits(64),
    "numpy": int(numpy.random.randint(1 << 62)),
    "torch": torch.rand(1, dtype=torch.float64).item(),
    "key": multiprocessing.current_process().authkey.hex(),
}
common = {
    "words": sys.argv[1:],
    "shown": Path("/proc/self/cmdline").read_text().rstrip("\\0").split("\\0"),
    "main": __name__,
    "file": __file__,
    "path": sys.path,
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "signals": {one.name: str(signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)},
    "ignored": [line for line in Path("/proc/self/status").read_text().splitlines()
                if line.startswith(("SigBlk", "SigIgn", "SigCgt"))],
    "open": sorted(os.listdir("/proc/self/fd")),
    "threads": [len(os.listdir("/proc/self/task")), threading.active_count()],
    "torch threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
    "collects": gc.isenabled(),
    "loop": asyncio.events._get_running_loop() is None,
    "streams": [(one.encoding, one.errors, one.line_buffering) for one in (sys.stdin, sys.stdout, sys.stderr)],
}
common["bits"] = bits()
print(json.dumps({"own": own, "drawn": drawn, "common": common}))
"""
INJECTED = """
import sys
if "p2pfl.fleet.fork_server" in sys.orig_argv:
    import os, signal, threading, time
"""
"""What it does when it starts is what a library could do that is imported there."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """`probe` and `worker` can be imported there; one thread, as a node has that says nothing else."""
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "worker.py").write_text(WORKER)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    for name in fork_server.ONE_THREAD:
        monkeypatch.setenv(name, "1")
    return tmp_path


@pytest.fixture
def inject(place):
    def inject(line):
        (place / "sitecustomize.py").write_text(INJECTED + f"    {line}\n")

    return inject


@pytest.fixture
def log(tmp_path):
    with (tmp_path / "log").open("ab") as file:
        yield file


def server(*modules):
    return ForkServer(modules, room=200)


def looked_up(pid, what):
    path = Path(f"/proc/{pid}/{what}")
    return path.read_text() if path.exists() else None


def logged(log):
    return Path(log.name).read_text()


async def is_here(process):
    assert await process.stdout.readline() == b"here\n"


@pytest.mark.long
async def test_it_has_one_thread_when_all_that_nodes_share_is_imported(place, log, monkeypatch):
    for name in fork_server.ONE_THREAD:
        monkeypatch.delenv(name)
    async with server(*SHARED, *SHARED_WITH_TORCH) as forking:
        process = await forking.start(WORKING, stderr=log, limit=LIMIT)
        assert "Threads:\t1\n" in looked_up(forking.pid, "status")
        assert "libtorch" in looked_up(forking.pid, "maps")
        process.stdin.close()
    assert await process.wait() == 0


@pytest.mark.long
async def test_a_forked_process_is_as_a_plain_one_and_draws_for_itself(place, log, monkeypatch):
    monkeypatch.delenv("MKL_NUM_THREADS")
    arguments = ["-m", "probe", "one", "two words"]
    async with server(*SHARED, *SHARED_WITH_TORCH) as forking:
        forked = [await forking.start(arguments, stderr=log, limit=LIMIT) for _ in range(2)]
    plain = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdin=PIPE, stdout=PIPE, stderr=log, start_new_session=True
    )
    processes = [*forked, plain]
    seen = [json.loads(await process.stdout.readline()) for process in processes]
    for process, one in zip(processes, seen, strict=True):
        assert one["own"] == dict.fromkeys(("pid", "session", "group"), process.pid)
        assert one["common"] == seen[2]["common"]
        assert await process.wait() == 0
    for name in seen[0]["drawn"]:
        assert len({one["drawn"][name] for one in seen}) == 3, name


async def test_what_was_started_is_the_launchers_own_when_the_server_is_gone(place, log):
    async with server("json") as forking:
        process = await forking.start(WORKING, stderr=log, limit=LIMIT)
        await is_here(process)
    assert looked_up(forking.pid, "status") is None
    assert f"PPid:\t{os.getpid()}\n" in looked_up(process.pid, "status")
    process.stdin.close()
    assert await process.wait() == 0


async def test_exit_codes_signals_and_tracebacks_are_those_of_a_plain_process(place, log):
    async with server("json") as forking:
        processes = [await forking.start(WORKING, stderr=log, limit=LIMIT) for _ in range(4)]
        ended, killed, failed, let_go = processes
        for process in processes:
            await is_here(process)
        killed.send_signal(signal.SIGKILL)
    ended.stdin.write(b"3\n")
    failed.stdin.write(b"raise\n")
    let_go.stdin.close()  # an end of file, for no other process has the other end
    assert [await process.wait() for process in processes] == [3, -signal.SIGKILL, 1, 0]
    assert [await process.stdout.read() for process in processes] == [b""] * 4
    said = logged(log)
    assert said.startswith("Traceback")
    assert said.endswith("ValueError: as asked\n")
    killed.send_signal(signal.SIGKILL)  # to nobody: its number may be another one's now


async def test_with_a_second_thread_nothing_is_forked(inject, log):
    inject("threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()")
    async with server("json") as forking:
        with pytest.raises(NotForked, match="it has 2 threads"):
            await forking.start(WORKING, stderr=log, limit=LIMIT)


async def test_threads_are_counted_again_before_each_fork(inject, log):
    inject("os.register_at_fork(after_in_parent=threading.Thread(target=time.sleep, args=(1000,), daemon=True).start)")
    async with server("json") as forking:
        process = await forking.start(WORKING, stderr=log, limit=LIMIT)
        with pytest.raises(NotForked, match="it has 2 threads"):
            await forking.start(WORKING, stderr=log, limit=LIMIT)
    process.stdin.close()
    assert await process.wait() == 0


async def test_a_server_that_ends_before_it_is_ready_has_forked_nothing(inject, log):
    inject("os.kill(os.getpid(), signal.SIGKILL)")
    async with server("json") as forking:
        with pytest.raises(NotForked, match=r"it died \(SIGKILL\)"):
            await forking.start(WORKING, stderr=log, limit=LIMIT)


async def test_a_server_that_cannot_import_says_why(place, log):
    async with server("no_such_module") as forking:
        with pytest.raises(NotForked, match="exit code 1: ModuleNotFoundError: No module named 'no_such_module'"):
            await forking.start(WORKING, stderr=log, limit=LIMIT)


async def test_a_server_that_dies_between_forks_is_an_error_and_who_was_started_goes_on(inject, log):
    inject("os.register_at_fork(before=lambda n=iter((0, 9)): os.kill(os.getpid(), next(n)))")
    async with server("json") as forking:
        process = await forking.start(WORKING, stderr=log, limit=LIMIT)
        with pytest.raises(ForkServerError, match=r"died \(SIGKILL\)"):
            await forking.start(WORKING, stderr=log, limit=LIMIT)
    await is_here(process)
    process.stdin.write(b"7\n")
    assert await process.wait() == 7


async def test_a_server_that_died_unasked_is_an_error_too(place, log):
    async with server("json") as forking:
        process = await forking.start(WORKING, stderr=log, limit=LIMIT)
        os.kill(forking.pid, signal.SIGKILL)
        await forking._process.wait()
        with pytest.raises(ForkServerError, match=r"died \(SIGKILL\)"):
            await forking.start(WORKING, stderr=log, limit=LIMIT)
    process.stdin.close()
    assert await process.wait() == 0


async def test_a_server_that_does_not_answer_is_not_waited_for_for_ever(inject, log, monkeypatch):
    inject("time.sleep(1000)")
    monkeypatch.setattr(fork_server, "READY_S", 0.1)
    async with server("json") as forking:
        with pytest.raises(NotForked, match=r"it has not answered for 0\.1 s"):
            await forking.start(WORKING, stderr=log, limit=LIMIT)


async def test_whoever_gives_up_need_not_wait_until_it_is_ready(inject, log):
    inject("time.sleep(1000)")
    async with server("json") as forking:
        starting = asyncio.create_task(forking.start(WORKING, stderr=log, limit=LIMIT))
        await asyncio.sleep(0)
        forking.give_up()
        with pytest.raises(NotForked):
            await starting


def test_where_a_driver_may_be_at_work_nothing_is_forked(tmp_path, monkeypatch):
    """Nothing is imported for it: neither torch nor a driver."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError")
    (tmp_path / "nvidia").touch()
    built = tmp_path / "torch" / "version.py"
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(fork_server, "ACCELERATORS", {"cuda": (str(tmp_path / "nvidia"),)})
    for text, said in (("cuda = '13.0'", "nvidia"), ("cuda = None", None)):
        built.write_text(text)
        assert said in why_not() if said else why_not() is None
    (tmp_path / "nvidia").unlink()
    built.write_text("cuda = '13.0'")
    assert why_not() is None
    built.unlink()
    assert "built for" in why_not()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "darwin" in why_not()


@pytest.mark.parametrize(
    ("task", "missing", "besides"),
    [("lora", "", SHARED_BY_TASK["lora"]), ("lora", "peft", ()), ("digits", "", ()), ("lora", "torch", None)],
)
def test_nodes_share_what_their_task_imports_if_it_is_there(monkeypatch, task, missing, besides):
    """A server that failed to import would leave each node to start alone."""
    federation = SimpleNamespace(task=SimpleNamespace(name=task), grows_trees=False)
    monkeypatch.setattr(starter, "find_spec", lambda name: None if name == missing else name)
    expected = SHARED if besides is None else (*SHARED, *SHARED_WITH_TORCH, *besides)
    assert shared_modules(federation) == [*expected]


@pytest.mark.parametrize("module", SHARED_BY_TASK["lora"])
def test_modules_of_a_task_are_found(module):
    pytest.importorskip(module.partition(".")[0], reason="the extra transformers has it")
    assert find_spec(module) is not None
