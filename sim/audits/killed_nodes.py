"""Real nodes that are killed and restarted: does any noise repeat, and is every round paid for?

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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from p2pfl import Federation
from p2pfl.config.load import load_config, load_node, node_file
from p2pfl.config.sections import RECORD
from p2pfl.errors import LearningError
from p2pfl.features.privacy.budget import RESERVED_PART
from p2pfl.features.privacy.permission import give_permission
from p2pfl.learn.privacy.ledger import Promise
from p2pfl.learn.privacy.plan import planned_in_words
from p2pfl.learn.task import Task
from p2pfl.node.assembly import replay
from p2pfl.storage import peek
from sim.audits.canary import Bare, Reuse, most_alike

Values = NDArray[np.float64]
SIZE, ROWS, STEPS = 1024, 32, 2
LEAST = 3
"""The number of rounds that a node trains in each life."""
ROUNDS = RESERVED_PART - 1
"""The rounds in the budget: few enough that none is paid for in advance, which would hide unpaid rounds."""
LIMIT_S = 120.0
LOOK_EVERY_S = 0.05
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledLives:
    """The result. `reuse` compares the two rounds, over all lives, whose noises or rows are most alike.

    `trained` and `paid` are the steps taken by a node with two lives, and the steps in its ledger.
    """

    reuse: Reuse
    trained: int
    paid: int


def live(unit: str = RECORD, clip: float = 1.0, environment: dict[str, str] | None = None) -> KilledLives:
    """Run three lives of two nodes. Raises LearningError if they do not train."""
    with tempfile.TemporaryDirectory(prefix="p2pfl-audit-") as temporary:
        folder = _federation(Path(temporary) / "silent", unit, clip)
        noises: dict[str, Values] = {}
        trained = paid = 0
        for life in ("first life", "killed and started again", "wiped and started again"):
            if life.startswith("wiped"):
                trained = sum(name.startswith(NODES[0]) for name in noises) * (STEPS if unit == RECORD else 1)
                paid = _steps_paid(folder)
                _wipe(folder)
            noises |= _run_then_kill(folder, life, environment or {})
        return KilledLives(reuse=most_alike(list(noises), list(noises.values())), trained=trained, paid=paid)


def _federation(folder: Path, unit: str, clip: float) -> Path:
    Federation(
        task=f"{__name__}:silent",
        nodes=NODES,
        rounds=10_000,
        local_steps=STEPS,
        batch_size=ROWS // 2,
        compressor="none",
        privacy={"unit": unit, "noise": 20.0, "clip": clip, "delta": 1e-3, "rounds": ROUNDS, "accountant": "rdp"},
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


def _run_then_kill(folder: Path, life: str, environment: dict[str, str]) -> dict[str, Values]:
    """Run both nodes until each has trained `LEAST` rounds, then kill them; return the noise of each round, and the
    rows.

    Raises LearningError if one ended earlier, or if time ran out.
    """
    files = {name: folder / f"{name} {life}" for name in NODES}
    paths = os.pathsep.join(path for path in sys.path if path)
    errors = folder / f"errors {life}"
    with errors.open("wb") as log_file:
        processes = [
            subprocess.Popen(  # noqa: S603 - this very program
                [sys.executable, "-m", "sim.audits.life", str(folder), name, str(file)],
                env={**os.environ, "PYTHONPATH": paths, **environment},
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
