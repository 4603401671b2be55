"""The neighbors' models as a joining node learns them where it keeps no replicas: the mean of the fragments they
show.
"""

from __future__ import annotations

import numpy as np

from p2pfl.engine.state import Bodies, NodeState, zeros
from p2pfl.learn.interface import Vector

MOST = 255


class FragmentMean:
    """The mean of what neighbors have shown of each value of the channels (c d,), each message with equal weight."""

    def __init__(self, channels: Vector) -> None:
        self.mean = zeros(channels)
        self.counts = np.zeros(channels.size, np.uint8)

    def take(self, bodies: Bodies) -> None:
        """Take in what the neighbor has shown in an exchange."""
        for part, here in bodies.tiles():
            counts, mean = self.counts[part], self.mean[part]
            counts += counts < MOST
            step = bodies.shown_by_peer(here) - mean
            step /= counts.astype(mean.dtype)
            mean += step

    def result(self, other: Vector) -> Vector:
        """Return the mean (c d,), with the value in `other` (c d,) where nobody has shown one."""
        return np.where(self.counts > 0, self.mean, other)


def gathered(gathering: FragmentMean | None, state: NodeState, bodies: Bodies) -> FragmentMean:
    """Return the gathering, a new one if there is none, with the fragment of an exchange."""
    gathering = gathering or FragmentMean(state.channels)
    gathering.take(bodies)
    return gathering
