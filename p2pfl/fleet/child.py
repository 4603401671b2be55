"""One node of a federation that was started here: the lines that it printed, and how it ended."""

from __future__ import annotations

import signal
from asyncio.subprocess import Process
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from p2pfl.config.model import NodeConfig
from p2pfl.fleet.fork_server import ForkedProcess
from p2pfl.foreign import UNREADABLE
from p2pfl.node.workshop import WAITING_FOR_DISK
from p2pfl.reporting.status import NodeLine, NodeResult

STOPPED = 130
LOG_FILE = "node.log"


@dataclass(slots=True, kw_only=True)
class Child:
    """One node process. `lines` is what it printed. The figures of a `byzantine` node are never results."""

    name: str
    node: NodeConfig
    byzantine: bool = False
    lines: list[NodeLine] = field(default_factory=list)
    process: Process | ForkedProcess | None = None
    exit_code: int | None = None
    stranded: bool = False
    """True if it was stopped because it was waiting for neighbors that were gone."""
    ended_lives: list[NodeLine | None] = field(default_factory=list)
    """The last line of each of this node's earlier processes that died and were replaced."""
    between_lives: str = ""
    """A description of the node's state, from a death to the first line of the next process."""

    @property
    def starts(self) -> int:
        return 1 + len(self.ended_lives)

    @property
    def bytes_before(self) -> int:
        """Return the bytes sent by its processes before this one."""
        return sum(line.bytes_sent for line in self.ended_lives if line is not None)

    @property
    def messages_before(self) -> int:
        return sum(line.messages_sent for line in self.ended_lives if line is not None)

    @property
    def last(self) -> NodeLine | None:
        return self.lines[-1] if self.lines else None

    @property
    def phase(self) -> str:
        return "starting" if self.last is None else self.last.phase

    @property
    def log_path(self) -> Path:
        return self.node.path.parent / LOG_FILE

    @property
    def died(self) -> bool:
        """Return True if it ended neither by finishing nor by a clean stop."""
        return self.exit_code is not None and self.exit_code not in (0, STOPPED)

    @property
    def waits_for_disk(self) -> bool:
        """Return True if its last line says so and it has not ended since. A liar's state is ignored."""
        return self.exit_code is None and not self.byzantine and self.phase == WAITING_FOR_DISK

    @property
    def state(self) -> str:
        if self.exit_code is None:
            again = f", start {self.starts}" if self.ended_lives else ""
            return self.between_lives or self.phase + again
        if self.stranded:
            return "waited in vain"
        return ending(self.exit_code)

    @property
    def waits_alone(self) -> bool:
        """Return True if it runs, still has rounds to train and finds no neighbor."""
        line = self.last
        return self.exit_code is None and line is not None and line.phase == "waiting" and not line.peers

    def let_go(self) -> None:
        """Close the node's stdin, which stops it even before it has installed signal handlers."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    def result(self) -> NodeResult | None:
        """Read the result that the node left behind, if this process of it reached the end, or a later one did."""
        path = self.node.state_dir / "result.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=NodeResult)
        except (OSError, *UNREADABLE):
            return None


def ending(exit_code: int) -> str:
    """Describe an exit code; a negative one is a signal."""
    if exit_code < 0:
        return f"died ({signal.Signals(-exit_code).name})"
    return {0: "finished", STOPPED: "stopped"}.get(exit_code, f"failed (exit {exit_code})")
