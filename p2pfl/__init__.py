"""p2pfl: asynchronous peer-to-peer learning of one model, without a server.

The public API is `__all__`; docs/how-to/python.md shows it. A name is imported when it is first
used, so that `import p2pfl` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from p2pfl.names import foreign_package

if TYPE_CHECKING:
    from p2pfl.aggregate.catalog import Rule as Rule
    from p2pfl.compress.interface import Compressor as Compressor
    from p2pfl.errors import UserError as UserError
    from p2pfl.federation import Federation as Federation
    from p2pfl.federation import load_federation as load_federation
    from p2pfl.fleet.process import Node as Node
    from p2pfl.learn.interface import Learner as Learner
    from p2pfl.learn.interface import LocalRound as LocalRound
    from p2pfl.learn.task import Task as Task
    from p2pfl.methods.method import Method as Method
    from p2pfl.node.learner_runner import RoundState as RoundState
    from p2pfl.reporting.report import Report as Report

__distribution__ = "p2pfl-gossip"

_HOME = {
    "Compressor": "p2pfl.compress.interface",
    "Federation": "p2pfl.federation",
    "Learner": "p2pfl.learn.interface",
    "LocalRound": "p2pfl.learn.interface",
    "Method": "p2pfl.methods.method",
    "Node": "p2pfl.fleet.process",
    "Report": "p2pfl.reporting.report",
    "RoundState": "p2pfl.node.learner_runner",
    "Rule": "p2pfl.aggregate.catalog",
    "Task": "p2pfl.learn.task",
    "UserError": "p2pfl.errors",
    "load_federation": "p2pfl.federation",
}

__all__ = [*_HOME]  # noqa: PLE0604 - strings


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if (sentence := foreign_package()) is not None:
        raise ImportError(sentence)
    value = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
