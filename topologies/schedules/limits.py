"""What every schedule is checked for before it is made, and the chance that a drawn one is made with."""

from __future__ import annotations

import hashlib

import numpy as np

from topologies.errors import TopologyError

LINKS_LIMIT = 60_000_000
"""of all rounds together: about a gigabyte."""
ROUNDS_LIMIT = 10_000


def check_links(family: str, nodes: int, links: int) -> None:
    """Raises TopologyError where a schedule of so many links is more than can be held."""
    if links > LINKS_LIMIT:
        text = f"{family} on {nodes} nodes has about {links:,} links, more than can be held"
        raise TopologyError(text, key="nodes", value=nodes, allowed=f"fewer: up to {LINKS_LIMIT:,} links in all rounds")


def check_rounds(family: str, nodes: int, rounds: int) -> None:
    """For a drawn schedule, in which a node has one link in a round."""
    if rounds > ROUNDS_LIMIT:
        key = f"{family}:rounds"
        raise TopologyError("too many", key=key, value=rounds, allowed=f"up to {ROUNDS_LIMIT}: they are repeated")
    check_links(family, nodes, nodes * rounds)


def impossible(family: str, nodes: int, allowed: str) -> TopologyError:
    return TopologyError(f"no {family} of this size", key="nodes", value=nodes, allowed=allowed)


def generator(family: str, nodes: int, seed: int) -> np.random.Generator:
    """The same draws for the same three values in every process. Parameters are left out on purpose: a schedule of
    more rounds begins with those of a shorter one.
    """
    text = f"{family} {nodes} {seed}".encode()
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text).digest()))
