"""Start the nodes of a federation as processes, under one launcher at a time.

Each node is an ordinary `p2pfl run` in its own session, so that Ctrl-C reaches it only through its launcher. Its stdin
ties it to the launcher: if the launcher dies, the node stops too. Where it is safe, nodes are forked by the fork server
of `multiprocessing`, which imports torch once. A fork loses all threads but one, and may hang on a lock that a lost one
holds: so the server computes nothing, its linear algebra has one thread, and it imports no user code.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import logging
import os
import runpy
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from io import FileIO, TextIOWrapper
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType
from typing import cast

from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.errors import UserError

log = logging.getLogger("p2pfl")

LINE_LIMIT = 1 << 20
SHARED = ("click", "numpy.random", "p2pfl.config.load", "p2pfl.fleet.process")
"""The modules that every node imports."""
SHARED_WITH_TORCH = ("p2pfl.learn.trainer", "p2pfl.learn.digits")
SHARED_BY_TASK = {
    "lora": (
        "p2pfl.adapt.transformers",
        "peft",
        "transformers.models.auto.modeling_auto",
        "transformers.models.auto.tokenization_auto",
    )
}
"""The modules that the nodes of a built-in task import besides; none if one of their packages is missing."""
WITHOUT_TORCH = ("quadratic",)
"""Tasks that do not need torch."""
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
ACCELERATORS = {
    "cuda": ("/dev/nvidiactl", "/dev/nvhost-ctrl", "/dev/dxg"),
    "hip": ("/dev/kfd", "/dev/dxg"),
    "xpu": ("/dev/dri", "/dev/dxg"),
}
"""The kinds of accelerators, as named in `torch.version`, and the files whose existence shows that the machine has
one.
"""
TAKEN = (errno.EWOULDBLOCK, errno.EACCES)
READY_S, ANSWER_S = 300.0, 60.0
"""How long the server may take to import everything, and afterwards to start a process."""
PR_SET_CHILD_SUBREAPER = 36
NO_ANSWER = 255
"""The exit code that `multiprocessing` says of a process whose server is gone."""


# -- one launcher at a time -------------------------------------------------------------------------------------------


@contextmanager
def claimed(federation: FederationConfig, nodes: Iterable[NodeConfig]) -> Iterator[None]:
    """Hold the lock of the federation file for as long as the block lasts, because a second launcher would overwrite
    the report and the logs. Raises UserError: it is already launched, or one of its nodes runs.
    """
    running = [node.name for node in nodes if _is_locked(node.state_dir / "lock")]
    with _locked(federation.path) as alone:
        if running or not alone:
            who = f"of its nodes, {', '.join(running)} run" if running else "somebody launches it"
            raise UserError(
                f"runs already: {who}; nothing was started or written",
                file=federation.path,
                allowed="one launch at a time: stop the other first (Ctrl-C there)",
            )
        yield


def _is_locked(file: Path) -> bool:
    """Return True if a running node holds the lock of its state folder.

    The test briefly takes the lock, and a node that starts at that moment would mistake it for another node's. So only
    a launcher that is about to start the node may use it.
    """
    try:
        with _locked(file) as alone:
            return not alone
    except OSError:  # the file does not exist yet, or we may not read it
        return False


@contextmanager
def _locked(file: Path) -> Iterator[bool]:
    """Yield True if we have the lock. On a file system without locks nobody can hold it, so yield True too."""
    held = os.open(file, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            yield error.errno not in TAKEN
        else:
            yield True
    finally:
        os.close(held)


# -- in the launcher --------------------------------------------------------------------------------------------------


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
        if built_for.get(kind) and (found := [file for file in files if Path(file).exists()]):
            return f"torch could use {found[0]}, and a driver does not survive a fork"
    return None


def shared_modules(federation: FederationConfig) -> list[str]:
    """Return the modules that all nodes of a federation import, in order."""
    task = federation.task.name
    if task in WITHOUT_TORCH or federation.grows_trees or find_spec("torch") is None:
        return [*SHARED]
    besides = SHARED_BY_TASK.get(task, ())
    is_there = all(find_spec(module.partition(".")[0]) is not None for module in besides)
    return [*SHARED, *SHARED_WITH_TORCH, *(besides if is_there else ())]


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
            with suppress(ChildProcessError):
                _, status = await loop.run_in_executor(None, os.waitpid, self.pid, 0)
                self.returncode = os.waitstatus_to_exitcode(status)
        self.stdin.close()
        return self.returncode


class Starter:
    """Starts processes whose arguments begin with `-m`, one at a time. Those that share an import are forked."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.modules = [*modules, "p2pfl.fleet.preloaded"]
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
            self._end_server()

    def _end_server(self) -> None:
        server: int | None = getattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid", None)
        if server is not None:
            with suppress(ProcessLookupError):
                os.kill(server, signal.SIGKILL)

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
        """Raises OSError or EOFError: the server died, or has not answered. What it may have started ends, as its stdin
        does.
        """
        context, loop = get_context("forkserver"), asyncio.get_running_loop()
        their_stdin, stdin = context.Pipe(duplex=False)
        stdout, their_stdout = context.Pipe(duplex=False)
        theirs = their_stdin, their_stdout, Connection(os.dup(stderr))
        process = context.Process(target=become, args=(list(arguments), theirs, dict(os.environ)))
        limit_s, self._is_waiting = ANSWER_S if self._has_forked else READY_S, True
        started = loop.run_in_executor(self.thread, self._start, process)
        try:
            done, _ = await asyncio.wait([started], timeout=limit_s)
            if not done:
                self._end_server()
                await asyncio.wait([started])
            await started
        except (OSError, EOFError) as error:
            stdin.close()
            stdout.close()
            raise error if done else TimeoutError(f"it has not answered for {limit_s:g} s") from error
        finally:
            self._is_waiting = False
            for one in theirs:
                one.close()
        self._has_forked = True
        reader = asyncio.StreamReader(limit=LINE_LIMIT)
        output, leash = FileIO(os.dup(stdout.fileno())), FileIO(os.dup(stdin.fileno()), "w")
        stdin.close()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), output)
        return ForkedProcess(process, leash, reader, self)

    def _start(self, process: ForkServerProcess) -> None:
        """Start it by a server with one thread, which Ctrl-C does not reach. The first start waits for its imports."""
        before = {name: os.environ.get(name) for name in ONE_THREAD}
        os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")  # no node needs the launcher's
        try:
            forkserver.set_forkserver_preload(self.modules)
            forkserver.ensure_running()
            process.start()
        finally:
            sys.modules["__main__"] = main
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


# -- in the new process -----------------------------------------------------------------------------------------------


def become(arguments: list[str], streams: Sequence[Connection], environment: dict[str, str]) -> None:
    """Do as `python ARGUMENTS` would: in its own session, with these streams, and with its own random numbers."""
    from p2pfl.fleet.preloaded import GENERATORS  # noqa: PLC0415 - a launcher must not import it

    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    os.environ.clear()
    os.environ.update(environment)
    if len(list(Path(f"/proc/{os.getppid()}/task").iterdir())) > 1:  # what the others held is lost
        os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - it is what was asked for
    for generator in GENERATORS:
        generator.seed()
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
