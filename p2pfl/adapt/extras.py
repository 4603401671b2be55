"""The package that an adapter needs, or one error that says how to install it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from p2pfl.errors import UserError


def needed(module: str, extra: str, what: str) -> Any:
    """Import and return a module. Raises UserError: it is not installed, or cannot be imported."""
    try:
        return import_module(module)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        text = f"needs {what}, which " + ("is not installed" if missing else f"cannot be imported: {error}")
        raise UserError(text, file=f"p2pfl.adapt.{extra}", allowed=f"pip install 'p2pfl-gossip[{extra}]'") from error
