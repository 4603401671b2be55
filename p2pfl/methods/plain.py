"""`plain`: local steps and mixing, and nothing else. Lian et al., arXiv 1705.09056."""

from __future__ import annotations

from p2pfl.methods.method import METHODS, Method
from p2pfl.specs import Entry


@METHODS.add(
    Entry(
        name="plain",
        place=-1,
        aliases=("fedavg", "sgd", "none", "dsgd"),
        means="local steps and mixing, nothing else",
        source="Lian et al., arXiv 1705.09056",
    )
)
class Plain(Method):
    """The base class, unchanged."""
