"""From a spec in `gossip.compressor`, such as `top-k:0.05+q8+zstd`, to the compressor: each stage wraps those after it.

Stages are joined by `+`; each occurs at most once, in the order of positions; without a stage for values they stay
float32, and `none` stands alone. An X with a decimal point is a fraction of the values, in (0, 1]; an integer counts
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from p2pfl.compress import blocks  # noqa: F401 - its stages add themselves
from p2pfl.compress.entropy import Entropy, zstd_is_installed
from p2pfl.compress.floats import Float32
from p2pfl.compress.fragments import Fragments
from p2pfl.compress.interface import (
    ALONE,
    ENTROPY,
    KEEP,
    ROTATION,
    SPARSIFIER,
    STAGES,
    VALUES,
    Compressor,
    RowCompressor,
    StageEntry,
    plain,
)
from p2pfl.compress.rotation import Rotation
from p2pfl.compress.sparse import Sparse
from p2pfl.errors import UserError
from p2pfl.specs import short

KEY = "gossip.compressor"
EXAMPLES = (
    *("none", "float16", "q8", "q4", "q2", "sign", "rotate+q4", "rotate+q2", "rotate+sign"),
    *("top-k:0.05", "top-k:0.05+q8", "random-k:0.1", "random-k:0.1+q8", "zstd", "q8+zstd", "top-k:0.05+q8+zstd"),
    *("bf16", "fragment:8", "fragment:8+bf16"),
)
"""Specs to show as examples."""
_PLACES = {
    SPARSIFIER: "a sparsifier",
    ROTATION: "a rotation",
    VALUES: "a code for the values",
    ENTROPY: "an entropy stage",
}
_FRACTION, _COUNT = re.compile(r"[0-9]{0,20}\.[0-9]{1,20}"), re.compile(r"[0-9]{1,20}")


# -- a chain as it is written ------------------------------------------------------------------------------------------


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
    zstd: bool = False

    def __str__(self) -> str:
        words = (
            f"{self.sparsifier}:{plain(self.keep)}" if self.sparsifier else "",
            "rotate" if self.rotate else "",
            self.values if self.values != "float32" else "",
            "zstd" if self.zstd else "",
        )
        return "+".join(filter(None, words)) or "none"


def allowed() -> str:
    """Describe all chains in words."""
    sparse, turned, values, packed = ([entry.written or entry.name for entry in _stages_at(place)] for place in _PLACES)
    counted = {
        parameter.name: parameter.kind.allowed for entry in _stages_at(SPARSIFIER) for parameter in entry.parameters
    }
    numbers = "; ".join(f"{name} {words}" for name, words in sorted(counted.items(), reverse=True))
    return (
        f'{" or ".join(ALONE)}, or stages joined by "+" in this order: {" or ".join(sparse)} ({numbers}), '
        f"{' or '.join(turned)}, one of {', '.join(values)}, {' or '.join(packed)}"
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
        chain, last = _with(chain, entry, option if colon else None), entry
    if chain.rotate and (chain.values not in STAGES or STAGES[chain.values].rotated is None):
        raise ValueError(_needed())
    return chain


def _stages_at(place: int) -> list[StageEntry]:
    return [entry for entry in STAGES.values() if entry.place == place]


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
    if before.before is not None and word not in before.before:
        raise ValueError(
            f"{before.name}+{word}: only {' or '.join(before.before)} may follow {before.name}, or nothing: there is "
            "no replica to keep what a code leaves out"
        )


def _with(chain: Chain, entry: StageEntry, option: str | None) -> Chain:
    """Add a stage to the chain; `option` is the text after its colon."""
    word = entry.name
    if entry.place == SPARSIFIER:
        return replace(chain, sparsifier=word, keep=_kept(entry, option))
    if option is not None:
        if option == "stochastic":
            raise ValueError(f"{word}:stochastic is gone: use {word}; error feedback makes up for what rounding leaves")
        raise ValueError(f"{short(f'{word}:{option}')}: {word} takes no option")
    if entry.place == VALUES:
        if chain.rotate and entry.rotated is None:
            raise ValueError(f"{word}: {_needed()}")
        return replace(chain, values=word)
    return replace(chain, rotate=True) if entry.place == ROTATION else replace(chain, zstd=True)


def _needed() -> str:
    *most, last = (entry.name for entry in _stages_at(VALUES) if entry.rotated is not None)
    return f"rotate needs {', '.join(most)} or {last} after it"


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
        raise ValueError(f"{stage}: {str(reason) or kind.allowed}") from None


# -- the compressor itself ---------------------------------------------------------------------------------------------


def make_compressor(spec: str) -> Compressor:
    """Make the compressor for a spec. Raises UserError if the spec is wrong."""
    try:
        chain = parse(spec)
    except ValueError as error:
        raise UserError(str(error), key=KEY, value=spec, allowed=allowed()) from None
    compressor = _values(chain)
    if chain.sparsifier:
        sparse: Sparse | Fragments = STAGES[chain.sparsifier].made(chain.keep, compressor)
        if isinstance(sparse, Fragments):
            return sparse
        compressor = sparse.packed() if chain.zstd else sparse
    return Entropy(compressor) if chain.zstd else compressor


def _values(chain: Chain) -> RowCompressor:
    if chain.values not in STAGES:
        return Float32()
    entry = STAGES[chain.values]
    made: RowCompressor = entry.made(**(entry.rotated or {} if chain.rotate else {}))
    return Rotation(made) if chain.rotate else made


def list_stages() -> Iterator[tuple[StageEntry, str]]:
    """Each word of the grammar, and the paper or standard that defines it."""
    for entry in (*ALONE.values(), *STAGES.values()):
        made = make_compressor(entry.shown)
        if entry.place != ENTROPY and isinstance(made, Entropy):
            made = made.inner
        yield entry, made.source


# -- what it needs -----------------------------------------------------------------------------------------------------


def require_library(compressor: Compressor) -> None:
    """Check that the libraries a chain needs are installed. Raises UserError if one is missing."""
    if isinstance(compressor, Entropy) and not zstd_is_installed():
        raise UserError(
            "zstd is not installed here",
            key=KEY,
            value=compressor.spec,
            allowed=f"{compressor.inner.spec}, or the same after: pip install backports.zstd",
        )


def require_replicas(compressor: Compressor, rule: str) -> None:
    """Check that there are replicas where a robust `rule` mixes them. Raises UserError if there are none."""
    if isinstance(compressor, Fragments):
        raise UserError(
            f"a robust rule ({rule}) mixes the replicas of all neighbors, and fragments leave none",
            key=KEY,
            value=compressor.spec,
            allowed="a compressor with replicas, such as q4, or gossip.rule = mean",
        )


def require_fit(compressor: Compressor, size: int) -> None:
    """Check that a count of values to keep does not exceed the `size` shared values. Raises UserError if it does."""
    chosen = compressor.inner if isinstance(compressor, Entropy) else compressor
    if isinstance(chosen, Fragments) and chosen.count > size:
        text, allowed = f"{chosen.count} fragments of {size} values that are shared", f"at most {size} fragments"
    elif isinstance(chosen, Sparse) and isinstance(chosen.keep, int) and chosen.keep > size:
        text = f"{chosen.keep} values to keep, of {size} that are shared"
        allowed = f"a count from 1 to {size}, or a fraction in (0, 1]"
    else:
        return
    raise UserError(text, key=KEY, value=compressor.spec, allowed=allowed)
