"""The only error of this package: a request that no graph can meet; and what was there in the version before."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Mapping
from pathlib import Path

SHOWN_LIMIT = 200
"""The maximum number of characters of a value that an error shows."""

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS)


class TopologyError(ValueError):
    """A wrong request. `key` names the part at fault, `value` is what it was, `allowed` what would be right."""

    def __init__(
        self, message: str, *, key: str | None = None, value: object = None, allowed: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.key = key
        self.value = value
        self.allowed = allowed

    def __str__(self) -> str:
        text = f"{self.key}: {self.message}" if self.key else self.message
        if self.value is not None:
            shown = repr(self.value)
            text += f" (found {shown if len(shown) <= SHOWN_LIMIT else shown[:SHOWN_LIMIT] + '...'})"
        if self.allowed:
            text += f"; allowed: {self.allowed}"
        return text


class DisconnectedError(TopologyError):
    """The graph has nodes that cannot reach each other, and so never agree."""

    exit_code = 3


class UnwritableError(TopologyError):
    """The disk is full or broken, which is nobody's mistake."""

    exit_code = 1


def not_written(message: str, error: OSError, *, key: str, path: Path) -> TopologyError:
    """Make the error for a file that could not be written: either its path is wrong, or the disk cannot take it."""
    kind = UnwritableError if error.errno in _DISK else TopologyError
    return kind(f"{message}: {error.strerror}", key=key, value=str(path), allowed="a file in a folder that exists")


def nearest(word: object, words: Iterable[str]) -> str:
    """List `words` on one line, with the one closest to `word` first, ignoring case, if one is close."""
    known = sorted(words)
    listed = ", ".join(known) or "nothing"
    plain = {other.lower(): other for other in known}
    close = difflib.get_close_matches(word.lower(), plain, n=1, cutoff=0.6) if isinstance(word, str) else []
    return f"did you mean {plain[close[0]]!r}? One of: {listed}" if close else listed


_FILE = "a graph file with its edges"
_DENSE = "random-regular with the same degree"

GONE: Mapping[str, Mapping[str, str]] = {
    "topology": {
        "wheel": "hierarchical:gateways=G with G nodes around the hub",
        "complete-bipartite": _FILE,
        "tree": _FILE,
        "dumbbell": "barbell",
        "lollipop": _FILE,
        "star-of-cliques": "d-cliques",
        "ring-of-cliques": "d-cliques",
        "u-equi-static": "circulant with the offsets that you want",
        **dict.fromkeys(("paley", "margulis", "chordal-cycle"), _DENSE),
        **dict.fromkeys(("moore", "folded-hypercube", "projective-plane"), "p2pfl topology design"),
        "directed-exponential": "exponential",
        **dict.fromkeys(("de-bruijn", "kautz", "d-equi-static", "od-equi-dyn"), "one-peer-exponential"),
        "simple-base": "base",
        "hyper-hypercube": "base, which is the same where n is a product of numbers up to k + 1",
        "ou-equi-dyn": "random-matchings",
    },
    "format": dict.fromkeys(("metis", "mtx", "gexf", ".metis", ".graph", ".mtx", ".gexf"), "edgelist, graphml or npz"),
    "strategy": dict.fromkeys(("fiedler", "betweenness"), "degree"),
    "weights": {"max-degree": "metropolis or best-constant"},
    "d-cliques:inter": dict.fromkeys(("small-world", "fractal"), "ring or full"),
    "command": {"augment": "p2pfl topology design SPEC --add K"},
    "option": {
        **dict.fromkeys(("--near", "--distances"), "--far NODES=TIME"),
        "attack --output": "attack without it: it names the nodes that failed",
        "--sort": "--format csv, and a spreadsheet or sort",
        "--schedules": "compare with the schedules beside it",
        "--top": "design without it: ten are listed",
        "--budget-bytes": "--minimize bytes",
        "--dimension": "simulate without it",
        "--edges": "attack without it: nodes fail",
        "--repeat": "--seed for another draw",
        "--runs": "simulate without it",
        "--mode": "simulate without it: all nodes mix at once; in p2pfl sim run each at its own pace",
        "--max-delay": "p2pfl sim run, whose nodes mix models of different age",
        "--epsilon": "rounds to a thousandth: k times as many for the k-th power of that",
    },
}


def is_gone(kind: str, name: object) -> str | None:
    """Say in a sentence what to use in place of `name`; None if it never was one of this kind."""
    instead = GONE[kind].get(name) if isinstance(name, str) and kind in GONE else None
    return instead and f"{name} is gone: use {instead}"


def refuse_gone(kind: str, name: object) -> None:
    """Raises TopologyError if `name` was one of this kind in the version before."""
    if (said := is_gone(kind, name)) is not None:
        raise TopologyError(said, key=kind)
