"""Names that were there in the version before, and what to use instead; the next version forgets them."""

from __future__ import annotations

from collections.abc import Mapping

from topologies.errors import TopologyError

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
    "format": dict.fromkeys(("metis", "mtx", ".metis", ".graph", ".mtx"), "edgelist, graphml or npz"),
    "weights": {"max-degree": "metropolis or best-constant"},
    "mode": {"delay": "p2pfl sim run, whose nodes mix models of different age"},
    "command": {"augment": "p2pfl topology design SPEC --add K"},
    "option": {
        "--near": "--distances with a file of times",
        "--budget-bytes": "--minimize bytes",
        "--edges": "attack without it: nodes fail",
        "--repeat": "--seed for another draw",
        "--runs": "simulate without it",
        "--max-delay": "p2pfl sim run, whose nodes mix models of different age",
        "--epsilon": "rounds to a thousandth: k times as many for the k-th power of that",
    },
}


def is_gone(kind: str, name: object) -> str | None:
    """Say in a sentence what to use in place of `name`; None if it never was one of this kind."""
    instead = GONE[kind].get(name) if isinstance(name, str) else None
    return instead and f"{name} is gone; use {instead}"


def refuse_gone(kind: str, name: object) -> None:
    """Raises TopologyError if `name` was one of this kind in the version before."""
    if (said := is_gone(kind, name)) is not None:
        raise TopologyError(said, key=kind)
