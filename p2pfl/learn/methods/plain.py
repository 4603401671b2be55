"""`plain`: local steps and mixing, and nothing else. Lian et al., arXiv 1705.09056."""

from __future__ import annotations

from p2pfl.learn.methods.method import Method


class Plain(Method):
    """The base class, unchanged."""

    meaning = "local steps and mixing, nothing else"
    source = "Lian et al., arXiv 1705.09056"
