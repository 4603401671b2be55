"""How much memory a node will take at most: its vectors, its learner and the program; a refusal of what does not fit
into `memory_mb`; and the file of the vectors that are not kept in memory.

Not counted, because nothing says them before a run: the intermediate results of the task's model, and data that are
read row by row.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from p2pfl.config.model import NodeConfig
from p2pfl.engine.arithmetic import Codecs, MemoryPlan, memory_plan
from p2pfl.engine.engine import Engine
from p2pfl.engine.state import MappedVectors, NodeState
from p2pfl.errors import StorageError, UserError
from p2pfl.learn.interface import Learner
from p2pfl.methods import Method, overrides
from p2pfl.storage import disk

if TYPE_CHECKING:
    from p2pfl.node.assembly import Setup

log = logging.getLogger("p2pfl")

MB = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeeds:
    """The bytes that a node will take at most: those of `engine` (`MemoryPlan`), of the learner, of its data, and of
    the program with its libraries; None if that cannot be measured here.
    """

    engine: MemoryPlan
    learner: int
    data: int
    program: int | None

    @property
    def total(self) -> int:
        return self.engine.total + self.learner + self.data + (self.program or 0)

    @property
    def parts(self) -> dict[str, int]:
        """The same by name, without what is zero."""
        parts = {**asdict(self.engine), "learner": self.learner, "data": self.data, "program": self.program or 0}
        return {name: found for name, found in parts.items() if found and name != "mapped"}

    def refuse_shortage(self, node: NodeConfig) -> None:
        """Raise UserError if the node has less memory, by its `memory_mb`."""
        if node.memory_mb is None or self.total <= node.memory_mb * MB:
            return
        largest = sorted(self.parts.items(), key=lambda part: -part[1])
        found = ", ".join(f"{name} {bytes_ / MB:,.0f}" for name, bytes_ in largest if bytes_ >= MB / 2)
        fixed = self.learner + self.data + (self.program or 0)
        ways = ["fewer neighbors", "gossip.compressor = fragment:8", "training.method = plain"]
        ways += [] if self.engine.mapped else ["gossip.memory = mapped"]
        less = "; or less to hold: " + ", ".join(ways)
        raise UserError(
            f"the node will take about {self.total / MB:,.0f} MB ({found})",
            file=node.path,
            key="node.memory_mb",
            value=node.memory_mb,
            allowed=f"{-(-self.total // MB)} or more" + (less if fixed < node.memory_mb * MB else ""),
        )

    def refuse_full_disk(self, node: NodeConfig) -> None:
        """Raise UserError if the mapped file does not fit on the disk of the node's folder."""
        room = disk.free_bytes(node.state_dir)
        if room < self.engine.mapped:
            raise UserError(
                f"the mapped file will take {self.engine.mapped:,} bytes in {node.state_dir}, which has {room:,.0f}",
                file=node.path,
                key="gossip.memory",
                value="mapped",
                allowed="resident, or node.state_dir on another disk",
            )


def memory_needs(
    state: NodeState, codecs: Codecs, method: Method, learner: Learner, program: int | None, *, mapped: bool = False
) -> MemoryNeeds:
    """Return what a node with this state and learner needs, with the vectors of edges in memory or `mapped`."""
    in_training = getattr(getattr(learner, "model", None), "bytes_in_training", None)
    return MemoryNeeds(
        engine=memory_plan(state, codecs, method, mapped=mapped),
        learner=in_training(corrected=method.is_users and overrides(method, "gradient")) if in_training else 0,
        data=_data_bytes(learner),
        program=program,
    )


def look_for_memory(node: NodeConfig, engine: Engine, learner: Learner) -> None:
    """Log how much memory a node in a process of its own will take, before it trains.

    Raises UserError if that is more than its `memory_mb`.
    """
    program = program_bytes([learner])
    mapped = engine.state.mapped is not None
    needs = memory_needs(engine.state, engine.codecs, engine.method, learner, program, mapped=mapped)
    log.info("the node will take about %d MB", needs.total // MB)
    needs.refuse_shortage(node)


@contextmanager
def vectors_in_place(setup: Setup, state: NodeState) -> Iterator[None]:
    """Keep the vectors of edges in a file in the node's folder until the end of the block, if [gossip] asks for that.

    Raises UserError: the disk refuses it, or has no room.
    """
    if setup.federation.gossip.memory != "mapped":
        yield
        return
    kept, channels = len(setup.method.kept_edges), state.channels
    count = sum(2 * edge.has_replicas + kept for edge in state.edges.values())
    try:
        mapped = MappedVectors(setup.node.state_dir, channels, count)
    except StorageError as error:
        raise UserError(
            str(error),
            file=setup.federation.path,
            key="gossip.memory",
            value=setup.federation.gossip.memory,
            allowed=f"resident, or {count * channels.nbytes:,} bytes of room on that disk",
        ) from error
    with closing(mapped):
        state.move_to(mapped)
        yield


def program_bytes(learners: Iterable[Learner]) -> int | None:
    """Return this process's memory without these learners, whose models some may share, and without weights that are
    mapped from a file, which a learner counts in full; None where the system does not say.
    """
    resident = resident_bytes()
    if resident is None:
        return None
    models = {id(getattr(learner, "model", learner)): 4 * learner.size for learner in learners}
    data = sum(_data_bytes(learner) for learner in learners)
    return max(0, resident - sum(models.values()) - data - mapped_weights_bytes())


def _data_bytes(learner: Learner) -> int:
    """Return the memory of the data that a learner holds as tensors."""
    sets = getattr(learner, "data_sets", None)
    return sum(getattr(one, "nbytes", 0) for one in (sets.train, sets.test)) if sets is not None else 0


def mapped_weights_bytes() -> int:
    """Return how much of the files of weights that are mapped is in memory now; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return 0
    total, inside = 0, False
    for line in lines:
        key, _, rest = line.partition(": ")
        if not rest or " " in key:  # the head of a mapping, which ends with the file
            inside = line.endswith(".safetensors")
        elif inside and key == "Rss":
            total += 1024 * int(rest.split()[0])
    return total


def resident_bytes() -> int | None:
    """Return how much memory this process has now; None where the system does not say (only Linux does)."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
