"""Nodes as processes, and runs of many: one node, many nodes on one machine, and a run's result; here how processes
start. What this module imports delays every launch.

Where it is safe, nodes are forked by the fork server of `multiprocessing`, which imports torch once. A fork loses all
threads but one, and may hang on a lock that a lost one holds: so the server computes nothing, its linear algebra has
one thread, and it imports no user code. It begins before the launcher's own imports.
"""

from __future__ import annotations

import os
import re
import runpy
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType

from p2pfl.system import IS_LINUX, KILL, signals_held

SERVER = getattr(forkserver, "_forkserver", None)
SHARED = ("click", "numpy.ma", "numpy.random", "encodings.idna", "p2pfl.fleet.fleet", "p2pfl.fleet.process")
"""The modules that every node imports. `p2pfl.cli.run` makes a thread, which would not survive a fork."""
SHARED_WITH_TORCH = ("p2pfl.learn.trainer", "p2pfl.learn.digits")
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
ACCELERATORS = {
    "cuda": ("/dev/nvidiactl", "/dev/nvhost-ctrl", "/dev/dxg"),
    "hip": ("/dev/kfd", "/dev/dxg"),
    "xpu": ("/dev/dri", "/dev/dxg"),
}
"""The kinds of accelerators, as named in `torch.version`, and the files that show that the machine has one."""


def why_not() -> str | None:
    """Return why processes on this machine cannot share an import, or None if they can. This imports neither torch nor
    a driver.
    """
    if not IS_LINUX:
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
            text = "".join(file.read_text("utf-8") for file in files if file.suffix == ".toml" and file.is_file())
            if (text or words[0] == "demo") and why_not() is None:
                needs_none = re.search(r'(?m)^\s*(name\s*=\s*"quadratic"|model\s*=\s*"trees")', text)
                serve(shared_modules(torch=not needs_none))
        yield
    finally:
        end_server()


def serve(modules: Sequence[str], process: BaseProcess | None = None) -> None:
    """Begin a server with one thread, which Ctrl-C does not reach, unless one with these modules is there; and have it
    start a `process`, which waits for its imports.
    """
    if [*modules] != getattr(SERVER, "_preload_modules", None):
        end_server()
    before = {name: os.environ[name] for name in ONE_THREAD if name in os.environ}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")  # no node needs the launcher's
    try:
        with signals_held(signal.SIGINT):
            forkserver.set_forkserver_preload([*modules])
            forkserver.ensure_running()
            if process is not None:
                process.start()
    finally:
        sys.modules["__main__"] = main
        for name in ONE_THREAD:
            del os.environ[name]
        os.environ.update(before)


def end_server() -> None:
    """End the server, if there is one, even while it imports. `multiprocessing` asks later how it ended."""
    if (pid := getattr(SERVER, "_forkserver_pid", None)) is not None:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, KILL)
            if sys.platform == "linux":
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
