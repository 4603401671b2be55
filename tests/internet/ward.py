"""A federation whose members are machines of a box, each with a folder of its own, as its admin would copy them.

They learn the digits. Each node books what its rounds add to the weighted sum of all models: in the end `sum n_i x_i`
is that of the beginning and what was booked, if no exchange was lost at one end or applied twice.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from lan_in_a_box import Host
from settled import require_edges_to_agree, settled_states

from p2pfl.config import load_config
from p2pfl.node import newest

DEADLINE_S = 240.0
ENDLESS = 100_000
"""Rounds for `end_soon`: whatever is held up meanwhile, no node ends by itself."""
P2PFL = (sys.executable, "-m", "p2pfl.cli.main")
PORT = 8470
STATUS = '[node]\nstatus_listen = "127.0.0.1:8480"\n'
# Before the file GO is there, rounds are slow, and the last ones wait for it.
TASK = """
import time
from pathlib import Path
import numpy as np
from p2pfl.learn.digits import digits
from p2pfl.learn.trainer import TorchLearner

GO, BOOKS, HELD = Path({go!r}), Path({books!r}), {held}


class Booked(TorchLearner):
    def train(self, start, round_index):
        if not GO.exists():
            time.sleep({pause_s})
        while round_index >= HELD and not GO.exists():
            time.sleep(0.05)
        done = super().train(start, round_index)
        moved = self.samples * (done.vector.astype(float) - start.model)
        np.save(BOOKS / f"{{self.context.name}}-{{round_index}}.npy", moved)
        return done


class Task:
    def learner(self, context, training):
        made = Booked(digits(partition="dirichlet:0.5", hidden={hidden}), context, training)
        np.save(BOOKS / f"{{context.name}}-begun.npy", made.samples * made.initial().astype(float))
        return made


task = Task()
"""
ASK = """
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:8480/status", timeout=5).read().decode())
"""


class Ward:
    """`machines` has the host of each member; `places` the addresses at which others dial some of them."""

    def __init__(
        self,
        folder: Path,
        machines: Mapping[str, Host],
        *new: str,
        places: Mapping[str, str] | None = None,
        own: Mapping[str, str] | None = None,
        rounds: int = 60,
        pause_s: float = 0.1,
        hidden: int = 32,
        compressor: str = "q4",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir()
        self.folder, self.machines, self.environment = folder, machines, dict(environment or {})
        self.ward, self.go = folder / "admin" / "ward", folder / "go"
        (folder / "admin").mkdir()
        (folder / "books").mkdir()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.admin("new", self.ward, "--nodes", ",".join(machines), "--admin", *new)
        change(self.ward / "federation.toml", "compressor =", f'compressor = "{compressor}"')
        terms = {"held": rounds - 10, "pause_s": pause_s, "hidden": hidden}
        task = TASK.format(go=str(self.go), books=str(folder / "books"), **terms)
        (self.ward / "task.py").write_text(task, encoding="utf-8")
        words = [f"--address={name}={place}" for name, place in (places or {}).items()]
        self.admin("member", "set", self.ward, "--offline", "--rounds", rounds, *words)
        for name in machines:
            home = self.home(name)
            home.mkdir(parents=True)
            for file in ("federation.toml", "members.toml", "tickets.toml", "task.py"):
                if (self.ward / file).exists():
                    shutil.copy(self.ward / file, home)
            shutil.copytree(self.ward / name, home / name)
            (home / name / "node.toml").write_text((own or {}).get(name, "") or STATUS, encoding="utf-8")

    def home(self, name: str) -> Path:
        """The federation's folder on that machine."""
        return self.folder / name / "ward"

    def admin(self, *words: object) -> str:
        done = subprocess.run([*P2PFL, *map(str, words)], capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    def start(self, name: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out, (self.folder / f"{name}.log").open("ab") as log:
            command = ("env", *(f"{key}={value}" for key, value in self.environment.items()), *P2PFL)
            words = ("run", self.home(name), "--node", name, "--format", "json", "-v")
            self.processes[name] = self.machines[name].start(*command, *words, stdout=out, stderr=log)

    def start_all(self) -> None:
        for name in self.machines:
            self.start(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8")

    def rounds(self, name: str) -> int:
        return self._done(name)[0]

    def exchanges(self, name: str) -> int:
        return self._done(name)[1]

    def status(self, name: str) -> dict[str, Any]:
        """What its status page says; empty while it does not answer."""
        done = self.machines[name].run(sys.executable, "-I", "-S", "-c", ASK)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def ways(self, name: str) -> dict[str, str]:
        """The way to each neighbor with which it has a session and has exchanged: "direct", or a relay's URL."""
        status = self.status(name)
        live = [one["name"] for one in status.get("neighbors", []) if one["live"] and one["exchanges"]]
        relays = status["features"].get("relay", {}).get("relays", []) if status else []
        return dict.fromkeys(live, "direct") | {
            one: row["relay"] for row in relays for one in row["lines"] if one in live
        }

    def until(self, look: Callable[[], Any], what: str) -> Any:
        """Whatever `look` finds, as soon as it finds something."""
        end = time.monotonic() + DEADLINE_S
        while not (found := look()):
            dead = [name for name, process in self.processes.items() if process.poll() not in (None, 0)]
            assert not dead, (dead, self.tails())
            assert time.monotonic() < end, f"waited in vain for {what}: {self.tails()}"
            time.sleep(0.5)
        return found

    def until_round(self, number: int) -> None:
        self.until(lambda: min(map(self.rounds, self.machines)) >= number, f"round {number}")

    def until_they_went_on(self) -> None:
        """Each has trained and exchanged since."""
        before = {name: self._done(name) for name in self.machines}

        def went_on() -> bool:
            now = {name: self._done(name) for name in self.machines}
            return all(after > then for name in now for after, then in zip(now[name], before[name], strict=True))

        self.until(went_on, "all to go on")

    def _done(self, name: str) -> tuple[int, int]:
        whole = (self.folder / f"{name}.out").read_text(encoding="utf-8").rpartition("\n")[0]
        line = json.loads(whole.splitlines()[-1]) if whole else {"rounds": 0, "exchanges": 0}
        return line["rounds"], line["exchanges"]

    def end_soon(self, desk: Host) -> None:
        """Bring the end near, for all at once, as an admin does from any machine."""
        last = max(map(self.rounds, self.machines)) + 20
        words = ("env", *(f"{key}={value}" for key, value in self.environment.items()), *P2PFL)
        done = desk.run(*words, "member", "set", self.ward, "--rounds", last, timeout_s=DEADLINE_S)
        assert done.returncode == 0, done.stderr

    def finish(self) -> dict[str, dict[str, Any]]:
        """Let all rounds be done; what each node leaves as its result."""
        self.go.touch()
        codes = {name: process.wait(timeout=DEADLINE_S) for name, process in self.processes.items()}
        assert set(codes.values()) == {0}, (codes, self.tails())
        files = {name: self.home(name) / name / "state" / "result.json" for name in self.machines}
        return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items()}

    def require_nothing_lost(self) -> None:
        """No exchange is lost or applied twice: the edges agree, and the sum is what was booked."""
        folders = {name: self.home(name) / name / "state" for name in self.machines}
        federation = newest(load_config(self.ward), next(iter(folders.values())))
        states = settled_states(federation, folders)
        require_edges_to_agree(federation, states)
        books = self.folder / "books"
        booked = [np.load(books / f"{name}-begun.npy") for name in self.machines]
        for name, state in zip(self.machines, states, strict=True):
            booked += [np.load(books / f"{name}-{number}.npy") for number in range(state.rounds)]
        found = sum(state.samples * state.model.astype(float) for state in states)
        rows = sum(state.samples for state in states)
        np.testing.assert_allclose(found / rows, sum(booked) / rows, atol=1e-5)

    def resyncs(self, results: Mapping[str, Any]) -> int:
        return sum(one["resyncs"] for result in results.values() for one in result["neighbors"])

    def tails(self) -> str:
        return "\n".join(f"-- {name}\n{self.log(name)[-1500:]}" for name in self.processes)


def accuracies(results: Mapping[str, Any]) -> list[float]:
    return [result["accuracy"] for result in results.values()]


def change(file: Path, pattern: str, new: str) -> None:
    """Replace the line that the pattern begins; a commented one counts."""
    text, times = re.subn(rf"(?m)^(# )?{pattern}.*$", lambda _: new, file.read_text(encoding="utf-8"), count=1)
    assert times == 1, pattern
    file.write_text(text, encoding="utf-8")
