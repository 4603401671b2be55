"""The room that a node's state needs on its disk, and what there is."""

from __future__ import annotations

from dataclasses import dataclass

from p2pfl.config.model import NodeConfig
from p2pfl.engine.codecs import Codecs
from p2pfl.engine.durable import image
from p2pfl.engine.state import NodeState
from p2pfl.errors import UserError
from p2pfl.learn.methods import Method
from p2pfl.storage import Durability, State, disk
from p2pfl.storage.snapshot import size_bytes

USUAL_LOG_BYTES = 4 << 20
LOG_MULTIPLE = 4
"""The log's usual length in snapshots: a longer one would take too long to replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """`snapshot_bytes` is the size of one at most; `logging`: a log goes with it."""

    snapshot_bytes: int
    logging: bool

    @property
    def least_bytes(self) -> int:
        """With less there is no second snapshot."""
        return disk.least_bytes(self.snapshot_bytes, logging=self.logging)

    @property
    def usual_bytes(self) -> int:
        """Where nothing is in short supply."""
        return 3 * self.snapshot_bytes + 2 * self.logging * self._usual_log_bytes + disk.SLACK_BYTES

    @property
    def _usual_log_bytes(self) -> int:
        return max(USUAL_LOG_BYTES, LOG_MULTIPLE * self.snapshot_bytes)

    def log_limit(self, room_bytes: float) -> int:
        """Where state and free space are `room_bytes` together."""
        return disk.log_limit(room_bytes, snapshot_bytes=self.snapshot_bytes, wanted=self._usual_log_bytes)

    def shortage(self, node: NodeConfig) -> str | None:
        """What is to be said where state and free space together are less than the least.

        Raises UserError: not even the whole volume is that large.
        """
        folder = node.state_dir
        volume, room = disk.volume_bytes(folder), disk.free_bytes(folder) + disk.used_bytes(folder)
        if volume < self.least_bytes:
            raise UserError(
                "the volume is too small for two snapshots of the state",
                file=node.path,
                key="node.state_dir",
                value=f"{folder}, on a volume of {volume:,.0f} bytes",
                allowed=f"one of at least {self.least_bytes:,} bytes",
            )
        if room >= self.least_bytes:
            return None
        there = f"there are {room:,.0f}, what it holds included"
        return f"{folder} needs {self.least_bytes:,} bytes for the state, and {there}"


def needs_of(state: NodeState, durability: Durability, codecs: Codecs, method: Method) -> Needs:
    """Room for unanswered messages is included, two for each edge, and for what the learning method will keep."""
    logging = durability == "exchange"
    picture = image(state, with_replicas=logging, copied=False)
    kept = size_bytes(State(header=picture.header, arrays=picture.arrays, blobs=picture.blobs))
    bodies = 2 * len(state.edges) * codecs.largest_bytes(state.channels.size) if logging else 0
    there = sum(len(blob) for blob in picture.blobs.values())
    to_come = state.model.nbytes * (len(method.kept) - len(state.kept))
    for edge in state.edges.values() if logging else ():
        to_come += state.channels.nbytes * (len(method.kept_edges) - len(edge.kept))
    return Needs(snapshot_bytes=kept + to_come + max(0, bodies - there), logging=logging)
