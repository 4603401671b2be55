"""Checkpoints for people: the model as a file, every so many rounds, the newest few of them.

`p2pfl export` writes the same files, and `p2pfl evaluate` reads them. A restart needs none of them: it uses the state
folder.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path

from p2pfl.errors import StorageError
from p2pfl.learn.interface import Learner, Vector
from p2pfl.learn.tensors_file import to_safetensors
from p2pfl.node.assembly import Setup
from p2pfl.software import software
from p2pfl.storage.disk import replace_file

log = logging.getLogger("p2pfl")

NAME = "round-{:08d}.safetensors"
NAMES = re.compile(r"round-\d{8,}\.safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Writes at most `kept` files into `folder`, one every `every` rounds and one at the end."""

    folder: Path
    every: int
    kept: int
    learner: Learner
    federation: str
    node: str

    @classmethod
    def of(cls, setup: Setup) -> ModelFiles | None:
        """Return the writer, or None if the node file asks for no checkpoints."""
        node = setup.node
        if not node.checkpoint_every:
            return None
        return cls(
            folder=node.checkpoint_dir,
            every=node.checkpoint_every,
            kept=node.checkpoints_kept,
            learner=setup.learner,
            federation=setup.federation.name,
            node=setup.member.name,
        )

    def is_due(self, rounds: int) -> bool:
        return rounds > 0 and rounds % self.every == 0

    def save(self, vector: Vector, rounds: int) -> None:
        """Write the model (d,) after `rounds` rounds, whole or not at all, and remove the oldest files beyond `kept`.

        If the disk refuses, only this file is lost, and no round.
        """
        told = {"federation": self.federation, "node": self.node, "rounds": str(rounds), "software": software()}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self.folder / NAME.format(rounds), [to_safetensors(self.learner, vector, told)])
            for old in self.files()[: -self.kept]:
                old.unlink()
        except (StorageError, OSError) as error:
            log.warning("no checkpoint after round %d: %s", rounds, error)

    def files(self) -> list[Path]:
        """Return the existing files, by rounds."""
        found = [path for path in self.folder.iterdir() if NAMES.fullmatch(path.name)]
        return sorted(found, key=lambda path: int(path.stem.rpartition("-")[2]))
