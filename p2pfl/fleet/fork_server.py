"""Processes that share one import: a small process imports torch once, and forks the processes that use it.

A process that is forked while it has threads may hang in the copy: the thread that holds a lock there is gone. So the
server

- sets the linear algebra to one thread before the first import that could start more, computes nothing, opens no event
  loop, and before each fork counts its threads: with a second one it refuses, and its launcher starts a plain process;
- imports nothing of the user's: what it forks becomes `python -m MODULE ...` only in the new process;
- gets requests over its stdin, a socket: JSON, with the new process's stdin, stdout and stderr as file descriptors. It
  keeps none of them, so an end of file stays one.

When all are started the server is killed, and the system hands its children to the launcher, which has declared that it
takes such orphans (PR_SET_CHILD_SUBREAPER). From then on they are the launcher's own processes, like plain ones. If the
launcher dies first, the server reads an end of file and leaves.

A new process has what a plain one would have: a session, an environment, a line in `ps` and random numbers of its own,
the signals as Python sets them, one thread. The difference: torch is imported before the user's first line.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib
import json
import os
import random
import runpy
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from importlib.util import find_spec
from io import FileIO
from pathlib import Path
from typing import IO, Any, Self

from p2pfl.errors import P2PFLError

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
PR_SET_CHILD_SUBREAPER = 36
MOST_BYTES = 1 << 16
"""The longest request that a server reads."""
READY_S = 300.0
"""Time for a server's imports."""
ANSWER_S = 60.0
"""Time for a fork, on a machine that swaps."""
ACCELERATORS = {
    "cuda": ("/dev/nvidiactl", "/dev/nvhost-ctrl", "/dev/dxg"),
    "hip": ("/dev/kfd", "/dev/dxg"),
    "xpu": ("/dev/dri", "/dev/dxg"),
}
"""The kinds of accelerators, as named in `torch.version`, and the files by which the system shows that it has one."""


class NotForked(Exception):  # noqa: N818 - no error: it is started in another way
    """The server cannot fork, and has not: start a plain process."""


class ForkServerError(P2PFLError):
    """A fork may or may not have happened: it is unknown what runs."""


def why_not() -> str | None:
    """Say why processes on this machine cannot share an import; None if they can. Imports neither torch
    nor a driver.
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
            return f"torch could use {found[0]}, and a driver does not outlive a fork"
    return None


# -- in the launcher --------------------------------------------------------------------------------------------------


class ForkedProcess:
    """A forked process with as much of `asyncio.subprocess.Process` as a launcher needs."""

    def __init__(self, pid: int, stdin: FileIO, stdout: asyncio.StreamReader, handed_over: asyncio.Event) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.returncode: int | None = None
        self._handed_over = handed_over

    def send_signal(self, number: int) -> None:
        """Send a signal. Only `wait` collects the process, so until then no other process has its number."""
        if self.returncode is None:
            os.kill(self.pid, number)

    async def wait(self) -> int:
        """Wait for the exit code, negative for a signal. Call it once, and best when stdout has ended."""
        await self._handed_over.wait()
        _, status = await asyncio.to_thread(os.waitpid, self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        self.stdin.close()
        return self.returncode


class ForkServer:
    """A context in which `start` may be called, once at a time; at its end all started processes are the launcher's.

    `modules` are what the server imports, `room` is the longest command line in `ps`, in bytes.
    """

    def __init__(self, modules: Sequence[str], *, room: int) -> None:
        self._command = [sys.executable, "-m", __name__, *modules, " " * room]
        self._handed_over = asyncio.Event()
        self._ready = False
        self._process: Process
        self._line: socket.socket

    async def __aenter__(self) -> Self:
        _take_orphans(enabled=True)
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.settimeout(0)
        with theirs:  # stdout is a pipe, as for the forked processes: Python configures sys.stdout before the fork
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=theirs.fileno(), stdout=PIPE, stderr=PIPE, start_new_session=True
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._kill()
        await self._process.wait()
        self._line.close()
        _take_orphans(enabled=False)
        self._handed_over.set()

    @property
    def pid(self) -> int:
        return self._process.pid

    def give_up(self) -> None:
        """Give up the server: callers that wait until it is ready get an error. A fork takes but a moment, and ends."""
        if not self._ready:
            self._kill()

    def _kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    async def start(self, arguments: Sequence[str], *, stderr: IO[bytes], limit: int) -> ForkedProcess:
        """Start `python ARGUMENTS`, which begin with `-m`; no line of its stdout may be longer than `limit`.

        Raises NotForked: nothing was started; a plain process may be; ForkServerError: the server has ended, and it is
        unknown whether it forked before.
        """
        if not self._ready:
            await self._answer(READY_S)
            self._ready = True
        their_stdin, stdin = os.pipe()
        stdout, their_stdout = os.pipe()
        leash, output = FileIO(stdin, "w"), FileIO(stdout)
        try:
            try:
                request = json.dumps(list(arguments)).encode()
                socket.send_fds(self._line, [request], [their_stdin, their_stdout, stderr.fileno()])
            except ConnectionError:
                raise await self._end() from None
            finally:
                os.close(their_stdin)
                os.close(their_stdout)
            pid = (await self._answer(ANSWER_S))["pid"]
            reader = asyncio.StreamReader(limit=limit)
            await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), output)
        except BaseException:
            leash.close()
            output.close()
            raise
        return ForkedProcess(pid, leash, reader, self._handed_over)

    async def _answer(self, seconds: float) -> dict[str, Any]:
        said = b""
        try:
            async with asyncio.timeout(seconds):
                said = await asyncio.get_running_loop().sock_recv(self._line, MOST_BYTES)
        except TimeoutError:
            self._kill()
            raise self._start_error(f"has not answered for {seconds:g} s") from None
        except ConnectionError:
            pass  # it died before it read everything
        if not said:
            raise await self._end()
        answer: dict[str, Any] = json.loads(said)
        if "refused" in answer:
            raise NotForked(answer["refused"])
        return answer

    async def _end(self) -> Exception:
        """Return the error for a server that has closed its end."""
        _, errors = await self._process.communicate()
        code = self._process.returncode or 0
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        return self._start_error(
            f"died ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}: {last}"
        )

    def _start_error(self, how: str) -> Exception:
        """Return the error; before it was ready the server cannot have forked."""
        if not self._ready:
            return NotForked(f"it {how}")
        return ForkServerError(f"the process that starts the nodes {how}; --spawn does without it")


def _take_orphans(*, enabled: bool) -> None:
    """Take orphans, or stop taking them. Raises NotForked: the system cannot do that."""
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(enabled), 0, 0, 0):
        raise NotForked("the system hands over no orphans")


# -- in the server ----------------------------------------------------------------------------------------------------


def serve() -> str:
    """Fork on request, and leave when the launcher is gone. It returns only in a new process: the module to run."""
    environment = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    line = socket.socket(fileno=os.dup(0))
    gc.disable()
    for module in sys.argv[1:-1]:
        importlib.import_module(module)
    generators = [one for one in gc.get_objects() if isinstance(one, random.Random)]
    gc.freeze()  # a garbage collector that visits shared objects would write to them
    line.send(json.dumps(_checked({})).encode())
    while True:
        said, descriptors, _, _ = socket.recv_fds(line, MOST_BYTES, 3)
        if not said:
            os._exit(0)
        answer = _checked({"pid": None})
        if "pid" in answer:
            try:
                answer["pid"] = os.fork()
            except OSError as error:
                answer = {"refused": f"it cannot fork: {error.strerror}"}
        if answer.get("pid") == 0:
            line.close()
            return _become(json.loads(said), descriptors, environment, generators)
        for descriptor in descriptors:
            os.close(descriptor)
        line.send(json.dumps(answer).encode())


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    """Return `answer`, or a refusal if there are threads that a fork would cut off."""
    try:
        threads = len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return {"refused": "it cannot count its threads"}
    return answer if threads == 1 else {"refused": f"it has {threads} threads"}


def _become(
    arguments: list[str],
    descriptors: list[int],
    environment: dict[str, str | None],
    generators: list[random.Random],
) -> str:
    """Drop what belongs to the server, in the new process. Returns the module to run, with `sys.argv` set for it."""
    os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    for name, value in environment.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    for generator in generators:
        generator.seed()
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()
    if processes := sys.modules.get("multiprocessing"):
        processes.current_process().authkey = os.urandom(32)
    _show_as([sys.executable, *arguments])
    gc.enable()
    _, module, *words = arguments
    sys.argv = [module, *words]
    return module


def _show_as(words: list[str]) -> None:
    """Overwrite the server's command line, which `ps` shows."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    if 0 < start < end:
        text = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - start - 1]
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    runpy.run_module(serve(), run_name="__main__", alter_sys=True)
