"""How long a node's local round takes: integer nanoseconds, computed in whole numbers, so equal on every machine.

A round is work, counted in nanoseconds at speed 1. A speed does so much work per nanosecond; a trace may change it
within the round, and the round ends in the first nanosecond in which all its work is done.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from random import Random

from p2pfl.config.model import Federation
from sim.chance import draw, stream
from sim.worlds.choices import require_settled
from sim.worlds.lives import NANOSECONDS
from sim.worlds.model import WorldSpec
from sim.worlds.schema import LONGEST_S
from sim.worlds.trace_file import Steps, read_trace

UNIT = 10**15
"""one at which speeds are counted as whole numbers: the slowest still has nine digits."""
LONGEST_NS = round(LONGEST_S * NANOSECONDS)


class NodeSpeed:
    """One node's speed over time. Jitter is drawn from the node's own stream, once for each round asked for."""

    def __init__(
        self, steps: Steps, *, step_s: float, round_s: float | None, jitter: float, rng: Random | None
    ) -> None:
        self._times = [time for time, _ in steps]
        self._speeds = [max(1, round(speed * UNIT)) for _, speed in steps]
        self._step_units = round(step_s * NANOSECONDS * 1000) * (UNIT // 1000)
        self._round_units = None if round_s is None else round(round_s * NANOSECONDS * 1000) * (UNIT // 1000)
        self._jitter = jitter
        self._rng = rng

    def speed(self, time_ns: int) -> float:
        return self._speeds[bisect_right(self._times, time_ns) - 1] / UNIT

    def round_ns(self, steps: int, time_ns: int) -> int:
        """The duration of a round of `steps` local steps that begins at `time_ns`: at least 1, at most `LONGEST_NS`."""
        work = self._step_units * steps if self._round_units is None else self._round_units
        if self._rng is not None:
            work += work * round(self._jitter * self._rng.random() * UNIT) // UNIT
        now, place = time_ns, bisect_right(self._times, time_ns) - 1
        for following in range(place + 1, len(self._times)):
            done = (self._times[following] - now) * self._speeds[place]
            if done >= work:
                break
            work -= done
            now, place = self._times[following], following
        now += -(-work // self._speeds[place])
        return min(max(1, now - time_ns), LONGEST_NS)

    def estimate_ns(self, steps: int) -> int:
        """The duration of a round at the first speed, without jitter: nothing is drawn."""
        work = self._step_units * steps if self._round_units is None else self._round_units
        return min(max(1, work // self._speeds[0]), LONGEST_NS)


def node_speeds(world: WorldSpec, federation: Federation) -> tuple[NodeSpeed, ...]:
    """The speed of each member in a settled world.

    Raises:
        UserError: the trace cannot be read.
    """
    require_settled(world)
    compute, seed = world.compute, federation.seed
    factors = {node: slow.speed for slow in world.slow for node in slow.nodes}
    return tuple(
        NodeSpeed(
            [(time, speed * factors.get(node, 1.0)) for time, speed in steps],
            step_s=compute.step_s,
            round_s=compute.round_s,
            jitter=compute.jitter,
            rng=stream(seed, "round jitter", node) if compute.jitter else None,
        )
        for node, steps in enumerate(_over_time(world, federation))
    )


def _over_time(world: WorldSpec, federation: Federation) -> Sequence[Steps]:
    if world.compute.trace is not None:
        return read_trace(world.compute.trace, [member.name for member in federation.members])
    rng = stream(federation.seed, "speeds")
    return [[(0, draw(rng, world.compute.speed))] for _ in federation.members]
