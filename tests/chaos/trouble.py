"""What happens to a federation by a seed: kills, stops, damaged files and worse, for processes and in virtual time.

`schedule` is a pure function of VERSION and its arguments. `chaos.py` makes it happen to real processes, `disturbed` to
drawn federations in virtual time, every invariant checked after every event: `many_worlds.py --chaos` runs thousands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, NamedTuple

import oracle
from drawn_worlds import draw

from p2pfl import Report
from p2pfl.chance import stream
from p2pfl.errors import UserError
from sim import NS, Crash, ExactEngine, PreparedRun, exponential, log_uniform
from sim.worlds.settling import choice

LENGTH_S, EVERY_S = 8.0, 0.5  # of schedules in virtual time
VERSION = 1  # raised by whatever makes another schedule of a seed
KINDS = {
    "kill": (9, "process", 0.1, 6.0),
    "stop": (6, "process", 0.2, 20.0),
    "wipe": (2, "process", 0.1, 6.0),
    "damage": (3, "process", 0.1, 6.0),
    "cut": (5, "link", 0.1, 20.0),
    "hold": (2, "link", 0.5, 20.0),
    "delay": (2, "link", 1.0, 20.0),
    "flip": (3, "link", 1.0, 10.0),
    "full disk": (3, "disk", 0.5, 12.0),
    "crowd": (3, "port", 1.0, 15.0),
    "flood": (3, "port", 1.0, 4.0),
    "lie": (2, "liar", 0.1, 0.1),
}
"""How often each happens beside others, what it keeps busy, how long it lasts at least and at most, in seconds.

Damage: a bit changes in a file of a node that is down. A link that holds swallows all bytes, one that flips changes
bits now and then. A crowd of strangers talks garbage and stays. At a lie the hostile member begins another attack.
"""


class Event(NamedTuple):
    """`share`, from 0 to 1, chooses what the kind leaves open: the place of damage, the attack."""

    at_s: float
    ends_at_s: float
    kind: str
    target: int
    share: float


def schedule(seed: int, length_s: float, targets: Mapping[str, Sequence[int]], *, every_s: float) -> list[Event]:
    """Draw what happens within `length_s`, one event in about `every_s`, in order. All is over by then.

    `targets` has those of each kind that may happen. Whatever a kind keeps busy has peace for `every_s` afterwards.
    """
    rng, now, events, free_at = stream(seed, "chaos", VERSION), 0.0, list[Event](), dict[tuple[str, int], float]()
    kinds = [kind for kind in KINDS if targets.get(kind) for _ in range(KINDS[kind][0])]
    while now < length_s:
        now += exponential(rng, every_s)
        kind, share = choice(rng, kinds), rng.random()
        _, busy, shortest_s, longest_s = KINDS[kind]
        target = choice(rng, targets[kind])
        ends_at_s = now + min(log_uniform(rng, shortest_s, longest_s), length_s / 5)
        if ends_at_s < length_s and now >= free_at.get((busy, target), 0.0):
            free_at[busy, target] = ends_at_s + every_s
            events.append(Event(now, ends_at_s, kind, target, share))
    return events


def seed_of(text: str) -> int:
    """Read `7`, or `7@1`, whose schedule is of version 1. Raises UserError: not a seed, or of another version."""
    number, at, version = text.partition("@")
    if not number.isdecimal() or (at and version != str(VERSION)):
        allowed = f"a number such as 7, or 7@{VERSION}"
        raise UserError(f"not a seed of schedules of version {VERSION}", key="seed", value=text, allowed=allowed)
    return int(number)


def disturbed(seed: int) -> Report:
    """Return the report of a drawn federation, on its drawn links, to which its schedule happens in virtual time."""
    federation, world = draw(seed)
    compute = replace(world.compute, round_s=LENGTH_S / (federation.training.rounds or 1))
    world = replace(world, compute=compute, partitions=(), crashes=(), churn=None, joins=(), evaluate_every_s=5.0)
    targets = dict.fromkeys(("kill", "stop", "wipe", "damage"), range(len(federation.members)))
    events = schedule(seed, LENGTH_S, targets | {"cut": range(len(federation.edges))}, every_s=EVERY_S)

    def begin(stage: PreparedRun, watch: oracle.Invariants) -> None:
        kernel, watch.forgetful = stage.world.kernel, True
        for event in events:
            course = happen(stage, event)
            kernel.at(event.at_s, partial(next, course))
            kernel.at(event.ends_at_s, partial(next, course, None))
        stage.world.around = replace(stage.world.around, faults_end_ns=round(LENGTH_S * NS))
        kernel.at(LENGTH_S, stage.world._halt_if_over)

    return oracle.checked(federation, world=world, begin=begin)


def happen(stage: PreparedRun, event: Event) -> Iterator[None]:
    """Let an event begin, and end at the second step."""
    world, node, edges = stage.world, event.target, stage.script.edges
    match event.kind:
        case "cut":
            world.network.cut(edges[event.target], redial=False)
            yield
            world.network.open(edges[event.target])
        case "stop":  # as SIGSTOP does: what comes for it waits
            process, held = world.hosts[node].process, list[Any]()
            process.take, process.wakes_at = held.append, -inf
            yield
            process.take, process.wakes_at = type(process).take.__get__(process), inf
            for each in held:
                process.take(each)
            process.act(process.core.wake(world.kernel.now))
        case _:
            stage._crash(Crash(time_ns=0, node=node, amnesia=event.kind == "wipe", returns=True))
            if event.kind == "damage":
                stage.watch.forgets(node, lambda _: lose_end_of_log(world.hosts[node].engine, event.share))
            yield
            world.restart(node)


def lose_end_of_log(engine: ExactEngine, share: float) -> None:
    """Lose what follows damage there, which a node notices: its edges begin anew (`assembly.recover`)."""
    del engine.store._flushed[int(share * engine.store.logged) :]
    state = engine._recovered()
    state.begin_lifetime(int(share * (1 << 53)))
    engine.store.checkpoint(state)
    engine._go_on_from(state)
