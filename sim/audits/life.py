"""One life of a real node that records its noise: `python -m sim.audits.life FEDERATION NODE FILE`.

It is what `p2pfl run` starts, in a process of its own. Each local round appends to FILE what it added to the model, as
float64. FILE.rows records which rows a step would take out of as many as the model has numbers: about half are 1, the
others -1.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from p2pfl.cli.run import be_node
from p2pfl.node.application import Application
from p2pfl.node.assembly import Setup

ROUND_S = 0.05
"""Each round waits this long, so that a life ends within a few rounds."""


def writing(file: Path) -> Callable[..., Application]:
    """Make a function that builds applications whose rounds are recorded in `file`."""

    def make(setup: Setup, **how: Any) -> Application:
        learner: Any = setup.learner
        _write_rows(learner, file.with_name(file.name + ".rows"))
        train, descriptor = learner.train, os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

        def written(start: Any, round_index: int) -> Any:
            time.sleep(ROUND_S)
            local = train(start, round_index)
            os.write(descriptor, (local.vector.astype(np.float64) - start.model).tobytes())
            return local

        learner.train = written
        return Application(setup, **how)

    return make


def _write_rows(learner: Any, file: Path) -> None:
    found = np.full(learner.size, -1.0)
    found[learner.private.protection.chance.of_round(0, 0).rows(learner.size, 0.5)] = 1.0
    file.write_bytes(found.tobytes())


if __name__ == "__main__":
    federation, name, out = sys.argv[1:]
    be_node(
        Path(federation),
        name,
        config=None,
        launched=False,
        verbose=False,
        form="json",
        maker=lambda: writing(Path(out)),
    )
