"""Real nodes that are killed and restarted: does any noise repeat, and is every round paid for?

    python tests/sim/audits/killed_nodes.py                       says what is wrong
    python tests/sim/audits/killed_nodes.py FOLDER NODE FILE      one life of a node, which records its noise in FILE

Two nodes run as processes, without a gradient, so that a round adds only its noise. They are killed while they train
and continue from their folders; then the folders are wiped, and they start again with the same keys and seed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[2]))
import faces  # noqa: F401

from p2pfl import Federation
from p2pfl.cli import be_node
from p2pfl.config import RECORD, load_config, load_node, node_file
from p2pfl.errors import LearningError
from p2pfl.features.privacy import give_permission
from p2pfl.learn import Task
from p2pfl.learn.privacy import Promise, planned_in_words
from p2pfl.node import Application, Setup, replay
from p2pfl.storage import peek
from sim import Bare, most_alike

Values = NDArray[np.float64]
SIZE, ROWS, STEPS = 1024, 32, 2
LEAST = 3
"""The number of rounds that a node trains in each life."""
ROUNDS = 99
"""The rounds in the budget."""
LIMIT_S = 120.0
LOOK_EVERY_S = ROUND_S = 0.05
"""Each round waits this long, so that a life ends within a few rounds."""
NODES = ("node0", "node1")


def silent() -> Task:
    """Return a task without gradients."""
    data = (torch.zeros(ROWS, SIZE), torch.zeros(ROWS))
    return Task(
        name="silent",
        model=lambda: Bare(SIZE),
        data=lambda _: (data, None),
        loss=lambda outputs, _: outputs.mean() * 0.0,
    )


def mistakes() -> list[str]:
    """Run three lives of two nodes. Raises LearningError if they do not train."""
    with tempfile.TemporaryDirectory(prefix="p2pfl-audit-") as temporary:
        folder = _federation(Path(temporary) / "silent")
        noises: dict[str, Values] = {}
        trained = paid = 0
        for life in ("first life", "killed and started again", "wiped and started again"):
            if life.startswith("wiped"):
                trained = sum(name.startswith(NODES[0]) for name in noises) * STEPS
                paid = _steps_paid(folder)
                _wipe(folder)
            noises |= _run_then_kill(folder, life)
    found, alike = [], most_alike(list(noises), list(noises.values()))
    if alike.is_reused:
        found.append(f"{' and '.join(alike.pair)} have the same chance (correlation {alike.correlation:.2f})")
    if paid < trained:
        found.append(f"a real node has taken {trained} steps, and its ledger has {paid}")
    return found


def _federation(folder: Path) -> Path:
    Federation(
        task=f"{Path(__file__).stem}:silent",
        nodes=NODES,
        rounds=10_000,
        local_steps=STEPS,
        batch_size=ROWS // 2,
        compressor="none",
        privacy={"unit": RECORD, "noise": 20.0, "clip": 1.0, "delta": 1e-3, "rounds": ROUNDS, "accountant": "rdp"},
        when_through="mix",
    ).save(folder)
    _permit(folder)
    return folder


def _permit(folder: Path) -> None:
    """Begin the budgets of both nodes."""
    federation = load_config(folder)
    privacy = federation.privacy
    if privacy is None:
        raise AssertionError("the file promises something")
    for name in NODES:
        planned = planned_in_words(federation)
        give_permission(folder / name / "node.key", Promise.in_file(privacy), planned=planned)


def _run_then_kill(folder: Path, life: str) -> dict[str, Values]:
    """Run both nodes until each has trained `LEAST` rounds, then kill them; return the noise of each round, and the
    rows.

    Raises LearningError if one ended earlier, or if time ran out.
    """
    files = {name: folder / f"{name} {life}" for name in NODES}
    paths = os.pathsep.join(path for path in sys.path if path)
    errors = folder / f"errors {life}"
    with errors.open("wb") as log_file:
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, str(folder), name, str(file)],
                env={**os.environ, "PYTHONPATH": paths},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log_file,
            )
            for name, file in files.items()
        ]
    try:
        limit = time.monotonic() + LIMIT_S
        while min(len(_read(file)) for file in files.values()) < LEAST:
            if time.monotonic() > limit or any(process.poll() is not None for process in processes):
                said = errors.read_text(errors="replace").strip().splitlines()[-1:]
                raise LearningError(f"real nodes did not train, {life}: {''.join(said)}")
            time.sleep(LOOK_EVERY_S)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    found = {f"{name}, {life}, round {n}": one for name, file in files.items() for n, one in enumerate(_read(file))}
    rows = {f"rows of {name}, {life}": _read(file.with_name(file.name + ".rows"))[0] for name, file in files.items()}
    return found | rows


def _read(file: Path) -> Sequence[Values]:
    """Read the rounds (SIZE,) that were completely written."""
    found = np.frombuffer(file.read_bytes(), np.uint8) if file.exists() else np.empty(0, np.uint8)
    whole = len(found) // (8 * SIZE) * 8 * SIZE
    return list(found[:whole].view(np.float64).reshape(-1, SIZE))


def _steps_paid(folder: Path) -> int:
    """Count the steps in the ledger of the first node."""
    federation = load_config(folder)
    node = load_node(node_file(federation, NODES[0]), federation, NODES[0])
    loaded = peek(node.state_dir)
    ledger = None if loaded is None else replay(loaded).ledger
    return 0 if ledger is None else sum(spend.steps for spend in ledger.spent)


def _wipe(folder: Path) -> None:
    federation = load_config(folder)
    for name in NODES:
        shutil.rmtree(load_node(node_file(federation, name), federation, name).state_dir)
    _permit(folder)


# -- one life ---------------------------------------------------------------------------------------------------------


def writing(file: Path) -> Callable[..., Application]:
    """Build applications of which each local round appends to `file` what it added to the model, as float64.

    FILE.rows records which rows a step would draw, out of as many rows as the model has values: 1 for drawn rows, about
    half of them, and -1 for the others.
    """

    def make(setup: Setup, **how: Any) -> Application:
        learner: Any = setup.learner
        rows = np.full(learner.size, -1.0)
        rows[learner.private.protection.chance.of_round(0, 0).rows(learner.size, 0.5)] = 1.0
        file.with_name(file.name + ".rows").write_bytes(rows.tobytes())
        train, descriptor = learner.train, os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

        def written(start: Any, round_index: int) -> Any:
            time.sleep(ROUND_S)
            local = train(start, round_index)
            os.write(descriptor, (local.vector.astype(np.float64) - start.model).tobytes())
            return local

        learner.train = written
        return Application(setup, **how)

    return make


def main(arguments: list[str]) -> int:
    if arguments:
        folder, name, out = arguments
        how: dict[str, Any] = {"config": None, "launched": False, "verbose": False, "form": "json"}
        be_node(Path(folder), name, maker=lambda: writing(Path(out)), **how)
        return 0
    found = mistakes()
    sys.stderr.writelines(f"error: {text}\n" for text in found)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
