"""Nodes as processes, and runs of many: one node, many nodes on one machine, and a run's result; here how processes
start. What this module imports delays every launch.

Where it is safe, nodes are forked by the fork server of `multiprocessing`, which imports torch once. A fork loses all
threads but one, and may hang on a lock that a lost one holds: so the server computes nothing, its linear algebra has
one thread, and it imports no user code. It begins before the launcher's own imports.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import re
import runpy
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from io import FileIO, TextIOWrapper
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType
from typing import Any, cast

log = logging.getLogger("p2pfl")

LINE_LIMIT = 1 << 20
SHARED = ("click", "numpy.ma", "numpy.random", "encodings.idna", "p2pfl.config.load", "p2pfl.fleet.process")
"""The modules that every node imports. `p2pfl.cli.run` makes a thread, which would not survive a fork."""
SHARED_WITH_TORCH = ("p2pfl.learn.trainer", "p2pfl.learn.digits")
TORCHLESS = re.compile(r'^\s*(name\s*=\s*"quadratic"|model\s*=\s*"trees")', re.MULTILINE)
"""What a federation file says whose nodes need no torch."""
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
ACCELERATORS = {
    "cuda": ("/dev/nvidiactl", "/dev/nvhost-ctrl", "/dev/dxg"),
    "hip": ("/dev/kfd", "/dev/dxg"),
    "xpu": ("/dev/dri", "/dev/dxg"),
}
"""The kinds of accelerators, as named in `torch.version`, and the files that show that the machine has one."""
READY_S, ANSWER_S = 300.0, 60.0
"""The time in which the server must have imported everything, and afterwards have started a process."""
PR_SET_CHILD_SUBREAPER = 36
NO_ANSWER = 255
"""The exit code that `multiprocessing` says of a process whose server is gone."""


def why_not() -> str | None:
    """Return why processes on this machine cannot share an import, or None if they can. This imports neither torch nor
    a driver.
    """
    if sys.platform != "linux":
        return f"{sys.platform} cannot fork safely"
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        built_for = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    except OSError:
        return "torch does not say what it was built for"
    for kind, files in ACCELERATORS.items():
        if built_for.get(kind) and (present := [file for file in files if Path(file).exists()]):
            return f"torch could use {present[0]}, and a driver does not survive a fork"
    return None


def shared_modules(*, torch: bool) -> list[str]:
    """Return the modules that all nodes of a federation import, in order; `torch` says whether they need it."""
    return [*SHARED, *(SHARED_WITH_TORCH if torch and find_spec("torch") else ())]


@contextmanager
def early_server(words: Sequence[str]) -> Iterator[None]:
    """Have a server import, from now on, what nodes need that are launched by a command line with these `words`, and
    end it with the block. A wrong guess costs time: `Starter` begins another server.
    """
    try:
        with suppress(OSError, ValueError):  # whoever reads the file next says what is wrong with it
            files = [path / "federation.toml" if path.is_dir() else path for path in map(Path, words[1:])]
            texts = [file.read_text(encoding="utf-8") for file in files if file.suffix == ".toml" and file.is_file()]
            if (texts or words[0] == "demo") and why_not() is None:
                serve(shared_modules(torch=not any(map(TORCHLESS.search, texts))))
        yield
    finally:
        end_server()


def serve(modules: Sequence[str], process: ForkServerProcess | None = None) -> None:
    """Begin a server with one thread, which Ctrl-C does not reach, unless one with these modules is there; and have it
    start a `process`, which waits for its imports.
    """
    if [*modules] != _of_server("_preload_modules"):
        end_server()
    before = {name: os.environ[name] for name in ONE_THREAD if name in os.environ}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")  # no node needs the launcher's
    try:
        forkserver.set_forkserver_preload([*modules])
        forkserver.ensure_running()
        if process is not None:
            process.start()
    finally:
        sys.modules["__main__"] = main
        for name in ONE_THREAD:
            del os.environ[name]
        os.environ.update(before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def end_server() -> None:
    """End the server, if there is one, even while it imports. `multiprocessing` asks later how it ended."""
    if (pid := _of_server("_forkserver_pid")) is not None:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _of_server(name: str) -> Any:
    return getattr(getattr(forkserver, "_forkserver", None), name, None)


class ForkedProcess:
    """A forked process, with as much of the interface of `asyncio.subprocess.Process` as a launcher needs."""

    def __init__(self, process: ForkServerProcess, stdin: FileIO, stdout: asyncio.StreamReader, run: Starter) -> None:
        self.pid, self.stdin, self.stdout = process.pid or 0, stdin, stdout
        self.returncode: int | None = None
        self._process, self._starter = process, run

    def send_signal(self, number: int) -> None:
        """Send a signal. Raises ProcessLookupError: it has just ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    async def wait(self) -> int:
        """Wait for the exit code, which is negative for a signal. Call this once, preferably when stdout has ended."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._process.sentinel, ended.set)
        await ended.wait()
        loop.remove_reader(self._process.sentinel)
        await loop.run_in_executor(self._starter.thread, self._process.join)
        self.returncode = self._process.exitcode or 0
        if self.returncode == NO_ANSWER:  # or it is the process's own, and then the server has heard of its end
            self.returncode = await loop.run_in_executor(None, self._code_of_ours)
        self.stdin.close()
        return self.returncode

    def _code_of_ours(self) -> int:
        """Return the exit code of a process whose server died: it becomes ours after the server's files are closed."""
        for _ in range(500):
            with suppress(ChildProcessError):
                return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            if not Path(f"/proc/{self.pid}").exists():
                break
            time.sleep(0.01)
        return NO_ANSWER


class Starter:
    """Starts processes whose arguments begin with `-m`, one at a time. Those that share an import are forked."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.modules = list(modules)
        self.thread = ThreadPoolExecutor(1)
        """All dealings with `multiprocessing`, whose bookkeeping knows one thread."""
        self._may_fork = why_not() is None
        if self._may_fork:  # if the server dies, its processes become ours, with their exit codes
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._is_waiting = self._has_given_up = self._has_forked = False

    def give_up(self) -> None:
        """Start no more processes, and do not wait for an import."""
        self._has_given_up = True
        if self._is_waiting:
            end_server()

    async def start(self, arguments: Sequence[str], log_path: Path, *, shared: bool) -> Process | ForkedProcess | None:
        """Start `python ARGUMENTS`; without `shared`, or where that fails, as a process that shares nothing.

        Return None after `give_up`.
        """
        with log_path.open("ab") as stderr:
            if shared and self._may_fork:
                try:
                    return await self._fork(arguments, stderr.fileno())
                except (OSError, EOFError) as error:
                    self._may_fork = False
                    if not self._has_given_up:
                        log.warning("the nodes cannot share one import (%r): each is started separately", error)
            if self._has_given_up:
                return None
            return await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=PIPE,
                stdout=PIPE,
                stderr=stderr,
                start_new_session=True,
                limit=LINE_LIMIT,
            )

    async def _fork(self, arguments: Sequence[str], stderr: int) -> ForkedProcess:
        """Raises OSError or EOFError: the server died, or did not answer. What it started ends, as its stdin does."""
        context, loop = get_context("forkserver"), asyncio.get_running_loop()
        their_stdin, stdin = context.Pipe(duplex=False)
        stdout, their_stdout = context.Pipe(duplex=False)
        theirs = their_stdin, their_stdout, Connection(os.dup(stderr))
        process = context.Process(target=become, args=(list(arguments), theirs, dict(os.environ)))
        limit_s, self._is_waiting = ANSWER_S if self._has_forked else READY_S, True
        started = loop.run_in_executor(self.thread, serve, self.modules, process)
        try:
            done, _ = await asyncio.wait([started], timeout=limit_s)
            if not done:
                end_server()
                await asyncio.wait([started])
            await started
        except (OSError, EOFError) as error:
            stdin.close()
            stdout.close()
            raise error if done else TimeoutError(f"it has not answered for {limit_s:g} s") from error
        finally:
            self._is_waiting = False
            for end in theirs:
                end.close()
        self._has_forked = True
        reader = asyncio.StreamReader(limit=LINE_LIMIT)
        output, own_stdin = FileIO(os.dup(stdout.fileno())), FileIO(os.dup(stdin.fileno()), "w")
        stdin.close()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), output)
        return ForkedProcess(process, own_stdin, reader, self)


# -- in the new process -----------------------------------------------------------------------------------------------


def become(arguments: list[str], streams: Sequence[Connection], environment: dict[str, str]) -> None:
    """Do as `python ARGUMENTS` would: in its own session, with these streams, and with its own random numbers."""
    gc.freeze()  # the garbage collector would write to the shared objects that it visits
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    os.environ.clear()
    os.environ.update(environment)
    if len(list(Path(f"/proc/{os.getppid()}/task").iterdir())) > 1:  # what the others held is lost
        os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - it is what was asked for
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()
    _show_as([sys.executable, *arguments])
    out = cast("TextIOWrapper", sys.stdout)  # of the server, which may have a terminal
    out.reconfigure(line_buffering=False)
    sys.stdin = open(0, encoding=out.encoding, errors=out.errors, closefd=False)  # noqa: SIM115 - for ever
    sys.argv, sys.path[0] = arguments[1:], str(Path.cwd())
    runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)


def _show_as(words: list[str]) -> None:
    """Overwrite the server's command line as shown by `ps`."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    if 0 < start < end:
        text = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - start - 1]
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
