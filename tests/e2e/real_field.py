"""A federation on disk whose nodes are real processes, and how far each of them ends from what it should find.

For tests and benchmarks of what losses leave behind (`losing.py`) and how a federation ends (`ending.py`). The
processes import whatever `PYTHONPATH` and the working folder offer, so that another tree can be judged by the same
scenarios.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from ports import free_ports

from p2pfl.learn import QuadraticLearner, Vector
from p2pfl.node import read_learned

Json = dict[str, Any]

P2PFL = [sys.executable, "-m", "p2pfl.cli.main"]
DEADLINE_S = 60.0
"""for anything that is waited for and has no deadline of its own."""
POLL_S = 0.02
TAIL_BYTES = 1 << 16
STATUS_S = 5.0
PACED = Path(__file__).parents[1] / "conformance" / "paced.py"


class WaitedInVainError(AssertionError):
    """What was waited for did not come about in time, or its process ended before."""


class Field:
    """What `p2pfl new` makes, with other values for some keys. `task` is the text of the `[task]` table."""

    def __init__(
        self, folder: Path, nodes: int, *, task: str, topology: str = "ring", rule: str = "mean", **values: Any
    ) -> None:
        self.folder = folder
        self.names = [f"node{index}" for index in range(nodes)]
        self.ports = list(free_ports(nodes))
        options = {"--nodes": nodes, "--topology": topology, "--rule": rule, "--base-port": self.ports[0]}
        command = [*P2PFL, "new", str(folder), "--task", "digits"]
        command += [str(part) for pair in options.items() for part in pair]
        subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_S)
        self.set_task(task)
        self.set(**values)

    @property
    def file(self) -> Path:
        return self.folder / "federation.toml"

    def set(self, **values: Any) -> None:
        """Keys of federation.toml."""
        for key, value in values.items():
            change(self.file, rf"(?m)^(# )?{key} = .*$", f"{key} = {json.dumps(value)}")

    def set_task(self, task: str) -> None:
        change(self.file, r"(?ms)^\[task\]\n.*?(?=^\[)", f"[task]\n{task}\n\n")

    def set_node(self, name: str, **values: Any) -> None:
        """Keys of its node.toml."""
        for key, value in values.items():
            change(self.folder / name / "node.toml", rf"(?m)^(# )?{key} = .*$", f"{key} = {json.dumps(value)}")

    def set_data(self, name: str, **values: Any) -> None:
        """Keys of the `[data]` table of its node.toml, which is the last one: no key twice."""
        with (self.folder / name / "node.toml").open("a", encoding="utf-8") as file:
            file.writelines(f"{key} = {json.dumps(value)}\n" for key, value in values.items())

    def remove(self, name: str) -> None:
        """As a person does who takes its table out of the file."""
        change(self.file, rf'(?ms)^\[\[node\]\]\nname = "{name}"\n.*?(?=^\[|\Z)', "")
        self.names.remove(name)

    def state(self, name: str) -> Path:
        return self.folder / name / "state"

    def result(self, name: str) -> Json:
        """Nothing where a run left none."""
        try:
            found: Json = json.loads((self.state(name) / "result.json").read_text(encoding="utf-8"))
        except OSError:
            return {}
        return found

    def model(self, name: str) -> Vector:
        return read_learned(self.state(name), federation=self.folder).vector.astype(np.float64)

    def excess(self, name: str) -> float:
        """F(x) - F(optimum) of the model on disk, F being the objective of all members of the federation file."""
        learned = read_learned(self.state(name), federation=self.folder)
        learner = learned.learner
        assert isinstance(learner, QuadraticLearner)
        found, best = learner.evaluate(learned.vector, "test"), learner.evaluate(learner.optimum(), "test")
        assert found is not None
        assert best is not None
        return found.loss - best.loss

    def test_loss(self, name: str) -> float:
        """Of the model on disk, on the common test set."""
        learned = read_learned(self.state(name), federation=self.folder)
        score = learned.learner.evaluate(learned.vector, "test")
        assert score is not None
        return score.loss


def change(file: Path, pattern: str, new: str) -> None:
    text, times = re.subn(pattern, lambda _: new, file.read_text(encoding="utf-8"), count=1)
    if times != 1:
        raise AssertionError(f"{file} has nothing like {pattern}")
    file.write_text(text, encoding="utf-8")


class Process:
    """`p2pfl run` of one node, or another `program` with its options. Its output goes to files, so nothing waits."""

    def __init__(
        self,
        field: Field,
        name: str,
        number: int,
        config: Path | None = None,
        *,
        program: Sequence[str] = (*P2PFL, "run"),
    ) -> None:
        self.name = name
        self.out, self.err = (
            field.folder.parent / f"{field.folder.name}-{number}-{name}.{end}" for end in ("out", "err")
        )
        command = [*program, str(field.folder), "--node", name, "--format", "json", "-v"]
        command += [] if config is None else ["--config", str(config)]
        self.ended_at: float | None = None
        """when somebody saw that it had ended."""
        with self.out.open("w") as out, self.err.open("w") as err:
            self.popen = subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL)

    @property
    def last(self) -> Json:
        """The latest line that it printed."""
        with self.out.open("rb") as file:
            file.seek(max(0, self.out.stat().st_size - TAIL_BYTES))
            lines = file.read().decode().rpartition("\n")[0].splitlines()
        found: Json = json.loads(lines[-1]) if lines else {}
        return found

    @property
    def lines(self) -> list[Json]:
        return [json.loads(line) for line in self.out.read_text().rpartition("\n")[0].splitlines()]

    @property
    def rounds(self) -> int:
        return int(self.last.get("rounds", 0))

    @property
    def phase(self) -> str:
        return str(self.last.get("phase", "starting"))

    @property
    def log(self) -> str:
        return self.err.read_text(encoding="utf-8")

    @property
    def code(self) -> int | None:
        found = self.popen.poll()
        if found is not None and self.ended_at is None:
            self.ended_at = time.monotonic()
        return found

    def status(self) -> Json:
        """What it answers on its status page; nothing where it does not."""
        found = re.search(r"status: (http://\S+)", self.log)
        if found is None:
            return {}
        with suppress(OSError, ValueError), urllib.request.urlopen(found[1], timeout=STATUS_S) as answer:
            told: Json = json.load(answer)
            return told
        return {}

    def until(self, condition: Callable[[], Any], what: str, *, deadline_s: float = DEADLINE_S) -> None:
        """Wait for something that happens while the process runs."""
        end = time.monotonic() + deadline_s
        while not condition():
            if self.code is not None:
                raise WaitedInVainError(f"{self.name} ended with {self.code} before {what}:\n{self.log[-2000:]}")
            if time.monotonic() > end:
                raise WaitedInVainError(f"{self.name}: no {what} in {deadline_s:g} s:\n{self.log[-2000:]}")
            time.sleep(POLL_S)

    def until_round(self, rounds: int) -> None:
        """Until it has said that so many are done."""
        self.until(lambda: self.rounds >= rounds, f"round {rounds}")

    def end(self, deadline_s: float = DEADLINE_S) -> int:
        """Its exit code."""
        try:
            return self.popen.wait(deadline_s)
        except subprocess.TimeoutExpired:
            text = f"{self.name} goes on after {deadline_s:g} s, {self.last}:\n{self.log[-2000:]}"
            raise WaitedInVainError(text) from None

    def kill(self) -> None:
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(DEADLINE_S)

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        self.popen.send_signal(signal.SIGINT)
        return self.end()


Run = Callable[..., Process]


@contextmanager
def processes(field: Field) -> Iterator[Run]:
    """A function that starts nodes of that federation; none outlives the block."""
    started: list[Process] = []

    def run(name: str, *, config: Path | None = None) -> Process:
        started.append(Process(field, name, len(started), config))
        return started[-1]

    try:
        yield run
    finally:
        for process in started:
            if process.code is None:
                process.kill()


@contextmanager
def commands() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A function that starts `p2pfl` with these arguments; none outlives the block, and no node its launcher."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([*P2PFL, *arguments], start_new_session=True, **pipes))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.communicate()


def wait_for(look: Callable[[], Any], what: str, *, deadline_s: float = 100.0) -> Any:
    end = time.monotonic() + deadline_s
    while not (found := look()):
        if time.monotonic() > end:
            raise WaitedInVainError(f"waited in vain for {what}")
        time.sleep(POLL_S)
    return found


def wait_all(running: Mapping[str, Process], deadline_s: float) -> dict[str, int | None]:
    """Exit codes; of those that are not done in time and are stopped therefore, None."""
    end = time.monotonic() + deadline_s
    while None in [process.code for process in running.values()] and time.monotonic() < end:
        time.sleep(POLL_S)
    codes = {name: process.code for name, process in running.items()}
    for name, process in running.items():
        if codes[name] is None:
            process.interrupt()
    return codes


class Bell:
    """Takes the port of a node that is gone, answers as if no node had ever been there, and counts who rang."""

    def __init__(self, port: int) -> None:
        self.rings = 0
        self._socket = socket.create_server(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._socket.accept()
                self.rings += 1
                with caller, suppress(OSError):
                    caller.settimeout(STATUS_S)
                    caller.recv(TAIL_BYTES)
                    caller.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(DEADLINE_S)


def copy_of(field: Field, name: str, *, tries: int = 20) -> Path:
    """A copy of its whole folder, with its key and its state, that listens elsewhere; where its node.toml is.

    The node may be running: what it moves away under the copying hand is copied anew.
    """
    copy = field.folder / f"{name}-copy"
    for _ in range(tries):
        shutil.rmtree(copy, ignore_errors=True)
        with suppress(shutil.Error, OSError):
            shutil.copytree(field.folder / name, copy)
            break
    else:
        raise WaitedInVainError(f"no whole copy of {name} in {tries} tries")
    config = copy / "node.toml"
    change(config, r"(?m)^listen = .*$", f'listen = "127.0.0.1:{free_ports(1)[0]}"')
    return config
