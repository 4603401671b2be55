"""What may vary between the runs of a sweep, and what each option may be."""

from __future__ import annotations

from p2pfl.config.kinds import Kind, text, whole
from p2pfl.config.schema import GOSSIP, TRAINING, Kinds

OWN: Kinds = {
    "base": text(),
    "world": text(),
    "nodes": whole(2),
    "topology": text(),
    "partition": text(),
    "byzantine": whole(0),
    "attack": text(),
}
OPTIONS: Kinds = {**OWN, **TRAINING, **GOSSIP}

FILES = ("base", "world")
NONE = "none"
"""as `base`: the built-in digits; as `world`: the default world; as `attack`: nobody lies."""

EXCLUSIVE = (("rounds", "time_s"), ("local_steps", "local_epochs"))
"""pairs of which a run has one."""


def seeds() -> Kind:
    """A number of seeds, counted from 0, or a list of different ones; always a tuple afterwards."""

    def read(value: object) -> tuple[int, ...]:
        if isinstance(value, int):
            return tuple(range(whole(1, 100_000).read(value)))
        if not isinstance(value, list) or not value:
            raise ValueError
        listed = tuple(whole(0).read(one) for one in value)
        if len(set(listed)) < len(listed):
            raise ValueError
        return listed

    return Kind("how many, as 5 for 0 to 4, or a list of different whole numbers from 0", read)


def switch() -> Kind:
    def read(value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError  # noqa: TRY004 - what a kind raises
        return value

    return Kind("true or false", read)


HEAD: Kinds = {"seeds": seeds(), "skip_impossible": switch(), **OPTIONS}
