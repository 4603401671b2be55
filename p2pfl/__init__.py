"""p2pfl: asynchronous peer-to-peer learning of one model, without a server.

The public names are imported when they are first asked for, so that `import p2pfl` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p2pfl.learn.methods.method import Method as Method
    from p2pfl.learn.task import Task as Task
    from p2pfl.runtime.node import Node as Node

_PUBLIC = {"Method": "p2pfl.learn.methods.method", "Node": "p2pfl.runtime.node", "Task": "p2pfl.learn.task"}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
