"""The random choices in a world: nodes, where the world gives only their number (liars, slow ones, late ones, those
that crash), and numbers, the same in every version of Python.

Everything is computed from `random()` alone. Where the mathematics library of the machine takes part (log, exp), the
result is rounded to nine digits: two machines whose libraries differ in the last bit agree on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, MutableSequence, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from p2pfl.chance import stream
from p2pfl.errors import UserError
from sim.worlds.check import check_world, selectors
from sim.worlds.model import CrashSpec, JoinSpec, Spread, UpTimes, WorldSpec, ends, nanoseconds

T = TypeVar("T")


def settle(world: WorldSpec, nodes: int, seed: int) -> WorldSpec:
    """Make every random choice in a world: afterwards `nodes` names all nodes, and `count` is 0 (None in churn).

    Liars, slow and late nodes are chosen among all nodes, and no node twice in one kind; those that crash or churn
    among the honest ones that are up at that time. What the world itself names stays possible. Settling a second time
    changes nothing. Raises UserError: the world contradicts itself, or there are too few nodes to choose from.
    """
    mistakes = check_world(world, nodes)
    if mistakes:
        raise mistakes[0]
    everybody = range(nodes)
    liars = world.liars and _draw_nodes(world, "liars", world.liars, everybody, seed)
    lying = frozenset(liars.nodes if liars else ())
    honest = [node for node in everybody if node not in lying]
    world = replace(world, liars=liars, slow=_draw_disjoint(world, "slow", world.slow, nodes, seed))
    world = replace(world, joins=_draw_disjoint(world, "join", world.joins, nodes, seed))
    world = replace(world, crashes=_crashes(world, honest, seed))
    churn = world.churn
    if churn and churn.nodes is None:
        among = churn if churn.count is not None else replace(churn, count=len(honest))
        churn = replace(_draw_nodes(world, "churn", among, honest, seed), count=None)
    return replace(world, churn=churn)


def require_settled(world: WorldSpec) -> None:
    """Refuse a world with open choices: a run of it would leave nodes out. Raises ValueError."""
    if any(part.count for _, part, _ in selectors(world)) or (world.churn and world.churn.nodes is None):
        raise ValueError("this world is not settled")


def quantized(value: float) -> float:
    """Round `value` to nine significant digits."""
    return float(f"{value:.8e}")


def uniform(rng: Random, low: float, high: float) -> float:
    return low + (high - low) * rng.random()


def log_uniform(rng: Random, low: float, high: float) -> float:
    """Draw between `low` and `high`, both above 0, each factor as likely as any other."""
    share = rng.random()
    return min(high, max(low, quantized(low * math.exp(share * math.log(high / low)))))


def exponential(rng: Random, mean: float) -> float:
    return quantized(-mean * math.log(1.0 - rng.random()))


def below(rng: Random, bound: int) -> int:
    """Draw a whole number from 0 to `bound` - 1; the bias is under `bound` / 2^53."""
    return int(rng.random() * bound)


def choice(rng: Random, items: Sequence[T]) -> T:
    return items[below(rng, len(items))]


def shuffle(rng: Random, items: MutableSequence[T]) -> None:
    """Shuffle in place, by Fisher and Yates."""
    for last in range(len(items) - 1, 0, -1):
        other = below(rng, last + 1)
        items[last], items[other] = items[other], items[last]


def permutation(rng: Random, count: int) -> list[int]:
    order = list(range(count))
    shuffle(rng, order)
    return order


def sample(rng: Random, items: Sequence[T], count: int) -> list[T]:
    """Choose `count` different items, in their order in `items`."""
    return [items[place] for place in sorted(permutation(rng, len(items))[:count])]


def draw(rng: Random, spread: Spread) -> float:
    """Draw one value; a constant draws nothing from `rng`."""
    match spread.kind:
        case "constant":
            return spread.low
        case "uniform":
            return uniform(rng, spread.low, spread.high)
        case "log-uniform":
            return log_uniform(rng, spread.low, spread.high)
    raise ValueError(f"a spread is constant, uniform or log-uniform, not {spread.kind!r}")


def _draw_disjoint(world: WorldSpec, section: str, parts: tuple[Any, ...], nodes: int, seed: int) -> tuple[Any, ...]:
    taken = {node for part in parts for node in part.nodes}
    settled = []
    for index, part in enumerate(parts):
        unborn = _crashed_by(world, part.at_s) if isinstance(part, JoinSpec) else ()
        free = [node for node in range(nodes) if node not in taken and node not in unborn]
        settled.append(_draw_nodes(world, f"{section}[{index}]", part, free, seed))
        taken.update(settled[-1].nodes)
    return tuple(settled)


def _crashed_by(world: WorldSpec, at_s: float) -> set[int]:
    """Return the nodes that the world names to crash no later than that: they cannot start only then."""
    return {node for crash in world.crashes if ends(crash)[0] <= nanoseconds(at_s) for node in crash.nodes}


def _crashes(world: WorldSpec, honest: Iterable[int], seed: int) -> tuple[CrashSpec, ...]:
    lives = UpTimes(world.starts)
    for crash in world.crashes:
        _book(lives, crash)
    settled = []
    for index, crash in enumerate(world.crashes):
        free = [node for node in honest if not lives.objection(node, *ends(crash))] if crash.count else []
        chosen = _draw_nodes(world, f"crash[{index}]", crash, free, seed)
        if crash.count:
            _book(lives, chosen)
        settled.append(chosen)
    return tuple(settled)


def _book(lives: UpTimes, crash: CrashSpec) -> None:
    for node in crash.nodes:
        lives.add(node, *ends(crash))


def _draw_nodes(world: WorldSpec, key: str, part: Any, free: Iterable[int], seed: int) -> Any:
    if not part.count:
        return part if part.nodes is not None else replace(part, nodes=())
    candidates = list(free)
    if part.count > len(candidates):
        text = f"there are only {len(candidates)} nodes to choose from"
        allowed = "honest nodes that are up at that time" if key.startswith(("crash", "churn")) else "each node once"
        raise UserError(text, file=world.path, key=f"{key}.count", value=part.count, allowed=allowed)
    return replace(part, nodes=tuple(sample(stream(seed, "chosen", key), candidates, part.count)), count=0)
