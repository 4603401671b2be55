"""The grammar of `gossip.compressor`: stages joined by `+`, for instance `top-k:0.05+q8+zstd`.

Each stage occurs at most once, in the order of positions; without a stage for values they stay float32, and `none`
stands alone. An X with a decimal point is a fraction of the values, in (0, 1]; an integer counts them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from p2pfl.compress.entry import ALONE, ENTROPY, KEEP, ROTATION, SPARSIFIER, STAGES, VALUES, StageEntry, plain
from p2pfl.specs import short

_PLACES = {
    SPARSIFIER: "a sparsifier",
    ROTATION: "a rotation",
    VALUES: "a code for the values",
    ENTROPY: "an entropy stage",
}
_FRACTION, _COUNT = re.compile(r"[0-9]{0,20}\.[0-9]{1,20}"), re.compile(r"[0-9]{1,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A parsed spec; `str` gives its canonical spelling."""

    sparsifier: str = ""
    """The name of a sparsifier, or empty."""
    keep: int | float = 1.0
    """How many values the sparsifier keeps: a float is a fraction in (0, 1], an int a count from 1. Of `fragment`: how
    many fragments there are.
    """
    rotate: bool = False
    values: str = "float32"
    """The name of a stage for values, or float32."""
    stochastic: bool = False
    zstd: bool = False

    def __str__(self) -> str:
        words = (
            f"{self.sparsifier}:{plain(self.keep)}" if self.sparsifier else "",
            "rotate" if self.rotate else "",
            self.values + self.stochastic * ":stochastic" if self.values != "float32" else "",
            "zstd" if self.zstd else "",
        )
        return "+".join(filter(None, words)) or "none"


def stages_at(place: int) -> list[StageEntry]:
    """Return the stages that may stand at a position in a chain."""
    return [entry for entry in STAGES.values() if entry.place == place]


def allowed() -> str:
    """Describe all chains in words."""
    drawn = ", ".join(name for name, entry in STAGES.items() if entry.stochastic)
    sparse, turned, values, packed = ([entry.written or entry.name for entry in stages_at(place)] for place in _PLACES)
    counted = {one.name: one.kind.allowed for entry in stages_at(SPARSIFIER) for one in entry.parameters}
    numbers = "; ".join(f"{name} {words}" for name, words in sorted(counted.items(), reverse=True))
    return (
        f'{" or ".join(ALONE)}, or stages joined by "+" in this order: {" or ".join(sparse)} ({numbers}), '
        f"{' or '.join(turned)}, one of {', '.join(values)} ({drawn} also with :stochastic), {' or '.join(packed)}"
    )


def parse(spec: str) -> Chain:
    """Read a chain spec. Raises ValueError that names the wrong stage, what is wrong with it and what is allowed."""
    if spec in ALONE:
        return Chain()
    chain, last = Chain(), None
    for text in spec.split("+"):
        word, colon, option = text.partition(":")
        entry = _required(word, text)
        if last is not None:
            _require_order(last, entry)
            if last.before is not None and word not in last.before:
                raise ValueError(f"{last.name}+{word}: {_before(last)}")
        chain, last = _with(chain, entry, option if colon else None), entry
    if chain.rotate and (chain.values not in STAGES or STAGES[chain.values].rotated is None):
        raise ValueError(_needed())
    return chain


def _before(entry: StageEntry) -> str:
    return (
        f"only {' or '.join(entry.before or ())} may follow {entry.name}, or nothing: there is no replica to keep "
        "what a code leaves out"
    )


def _needed() -> str:
    *most, last = (entry.name for entry in stages_at(VALUES) if entry.rotated is not None)
    return f"rotate needs {', '.join(most)} or {last} after it"


def _with(chain: Chain, entry: StageEntry, option: str | None) -> Chain:
    """Add a stage to the chain; `option` is the text after its colon."""
    word = entry.name
    if entry.place == SPARSIFIER:
        return replace(chain, sparsifier=word, keep=_kept(entry, option))
    stochastic = option == "stochastic" and entry.stochastic
    if option is not None and not stochastic:
        after = "only stochastic may stand after the colon" if entry.stochastic else f"{word} takes no option"
        raise ValueError(f"{short(f'{word}:{option}')}: {after}")
    if entry.place == VALUES:
        if chain.rotate and entry.rotated is None:
            raise ValueError(f"{word}: {_needed()}")
        return replace(chain, values=word, stochastic=stochastic)
    return replace(chain, rotate=True) if entry.place == ROTATION else replace(chain, zstd=True)


def _required(word: str, text: str) -> StageEntry:
    if not word:
        raise ValueError("an empty stage: stages are joined by one '+' each")
    if word in ALONE:
        raise ValueError(f"{word}: it stands alone, and the values of a chain stay float32 where no word changes them")
    return STAGES.require(word, text, besides=ALONE)


def _require_order(before: StageEntry, entry: StageEntry) -> None:
    word = entry.name
    if word == before.name:
        raise ValueError(f"{word}: the stage is given twice")
    if before.place == entry.place:
        raise ValueError(f"{before.name}+{word}: each is {_PLACES[entry.place]}, and a chain has only one")
    if entry.place < before.place:
        raise ValueError(f"{before.name}+{word}: {word} comes before {before.name}")


def _kept(entry: StageEntry, option: str | None) -> int | float:
    """Return the fraction or count after `top-k:`, `random-k:` or `fragment:`."""
    word, kind = entry.name, entry.parameters[0].kind
    stage = short(f"{word}:{option or ''}")
    if not option:
        if kind is KEEP.kind:
            raise ValueError(f"{stage.rstrip(':')}: say how many values to keep, as in {word}:0.05 or {word}:1000")
        raise ValueError(f"{stage.rstrip(':')}: say how many, as in {entry.shown}")
    if not (_COUNT.fullmatch(option) or _FRACTION.fullmatch(option)):
        raise ValueError(f"{stage}: write {kind.allowed}")
    try:
        return kind.read(float(option) if "." in option else int(option))  # type: ignore[no-any-return]
    except ValueError as reason:
        raise ValueError(f"{stage}: {reason}") from None
