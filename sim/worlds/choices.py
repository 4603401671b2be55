"""Chance chooses nodes where a world says only how many: liars, slow ones, late ones, those that crash."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from p2pfl.chance import stream
from p2pfl.errors import UserError
from sim.draws import some
from sim.worlds.check import check_world, who
from sim.worlds.model import CrashSpec, JoinSpec, UpTimes, WorldSpec, ends, nanoseconds


def settle(world: WorldSpec, nodes: int, seed: int) -> WorldSpec:
    """The same world with every choice made: afterwards `nodes` names all, and `count` is 0 (None in churn).

    Liars, slow and late nodes are chosen among all nodes, and no node twice in one kind; those that crash or churn
    among the honest ones that are up at that time. What the world names itself stays possible. Settling a second time
    changes nothing.
    Raises UserError: the world contradicts itself, or there are too few nodes to choose from.
    """
    mistakes = check_world(world, nodes)
    if mistakes:
        raise mistakes[0]
    everybody = range(nodes)
    liars = world.liars and _chosen(world, "liars", world.liars, everybody, seed)
    lying = frozenset(liars.nodes if liars else ())
    honest = [node for node in everybody if node not in lying]
    world = replace(world, liars=liars, slow=_apart(world, "slow", world.slow, nodes, seed))
    world = replace(world, joins=_apart(world, "join", world.joins, nodes, seed))
    world = replace(world, crashes=_crashes(world, honest, seed))
    churn = world.churn
    if churn and churn.nodes is None:
        among = churn if churn.count is not None else replace(churn, count=len(honest))
        churn = replace(_chosen(world, "churn", among, honest, seed), count=None)
    return replace(world, churn=churn)


def require_settled(world: WorldSpec) -> None:
    """Raises ValueError if chance has still to choose: what is built from such a world would leave nodes out."""
    if any(part.count for _, part, _ in who(world)) or (world.churn and world.churn.nodes is None):
        raise ValueError("this world is not settled")


def _apart(world: WorldSpec, section: str, parts: tuple[Any, ...], nodes: int, seed: int) -> tuple[Any, ...]:
    taken = {node for part in parts for node in part.nodes}
    settled = []
    for index, part in enumerate(parts):
        unborn = _crashed_by(world, part.at_s) if isinstance(part, JoinSpec) else ()
        free = [node for node in range(nodes) if node not in taken and node not in unborn]
        settled.append(_chosen(world, f"{section}[{index}]", part, free, seed))
        taken.update(settled[-1].nodes)
    return tuple(settled)


def _crashed_by(world: WorldSpec, at_s: float) -> set[int]:
    """Nodes that the world says crash no later than that: they cannot start only then."""
    return {node for crash in world.crashes if ends(crash)[0] <= nanoseconds(at_s) for node in crash.nodes}


def _crashes(world: WorldSpec, honest: Iterable[int], seed: int) -> tuple[CrashSpec, ...]:
    lives = UpTimes(world.joins)
    for crash in world.crashes:
        _book(lives, crash)
    settled = []
    for index, crash in enumerate(world.crashes):
        free = [node for node in honest if not lives.objection(node, *ends(crash))] if crash.count else []
        chosen = _chosen(world, f"crash[{index}]", crash, free, seed)
        if crash.count:
            _book(lives, chosen)
        settled.append(chosen)
    return tuple(settled)


def _book(lives: UpTimes, crash: CrashSpec) -> None:
    for node in crash.nodes:
        lives.add(node, *ends(crash))


def _chosen(world: WorldSpec, key: str, part: Any, free: Iterable[int], seed: int) -> Any:
    if not part.count:
        return part if part.nodes is not None else replace(part, nodes=())
    candidates = list(free)
    if part.count > len(candidates):
        text = f"there are only {len(candidates)} nodes to choose from"
        allowed = "honest nodes that are up at that time" if key.startswith(("crash", "churn")) else "each node once"
        raise UserError(text, file=world.path, key=f"{key}.count", value=part.count, allowed=allowed)
    return replace(part, nodes=tuple(some(stream(seed, "chosen", key), candidates, part.count)), count=0)
