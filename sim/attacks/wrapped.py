"""Attacks that are made from another: lies told only at times, or told in too many exchanges."""

from __future__ import annotations

from dataclasses import replace

from p2pfl.specs import Parameter, whole
from sim.attacks.attack import Attack
from sim.attacks.entry import ATTACKS, WrapEntry
from sim.attacks.sight import Sight, Vector

PERIOD, LONGEST_PERIOD = 10, 10**6
"""Default and longest period of a sleeper, in its own rounds."""


@ATTACKS.add(
    WrapEntry(
        name="sleeper",
        written="sleeper:LIE[@ROUNDS]",
        means=f"honest for so many ({PERIOD}) of its rounds, LIE for as many, by turns",
        source="on-off attack, Sun et al., INFOCOM 2006",
        parameters=(Parameter("ROUNDS", whole(1, LONGEST_PERIOD), "its rounds between two turns"),),
    )
)
def sleeper(lie: Attack | None, rounds: int = PERIOD) -> Attack:
    """Lie only in some rounds. Raises ValueError: no lie is named, or the attack is no lie: data are poisoned once and
    for all.
    """
    if lie is None:
        raise ValueError("a sleeper has to have a lie")
    if lie.poison is not None:
        raise ValueError(f"sleeper cannot be made of {lie.spec}")
    awake = lie

    def lie_sometimes(sight: Sight) -> Vector:
        return awake.tell(sight) if sight.rounds // rounds % 2 else sight.own

    spec = f"sleeper:{lie.spec}@{rounds}"
    return Attack(spec=spec, lie=lie_sometimes, refused=lie.refused, climbs=lie.climbs, own=lie.own)


@ATTACKS.add(
    WrapEntry(
        name="flood",
        written="flood[:LIE]",
        means="exchanges as fast as it can, with its model or with LIE",
        source="denial of service",
    )
)
def flood(lie: Attack | None) -> Attack:
    """Exchange too often: the liar's model counts more often than others."""
    if lie is None:
        return Attack(spec="flood", flood=True)
    return replace(lie, spec=f"flood:{lie.spec}", flood=True)
