"""Tests import a name from its package, whichever of its modules has it (`from p2pfl.core import Core`): code can move.

Importing this module brings it about: `conftest.py` does, and what tests run in processes of their own.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from pkgutil import iter_modules, walk_packages
from types import ModuleType

import p2pfl
import sim
import topologies


def face(package: ModuleType, *, deep: bool = False) -> Callable[[str], object]:
    """Return a `__getattr__` that imports the package's modules (with `deep`, those of its packages too) one after the
    other, until one has the name.
    """
    own = vars(package).get("__getattr__")

    walk = walk_packages if deep else iter_modules
    modules = cache(lambda: {each.name: each.ispkg for each in walk(package.__path__, f"{package.__name__}.")})

    def find(name: str) -> object:
        if own:
            with suppress(AttributeError):
                return own(name)
        if not name.startswith("__") and f"{package.__name__}.{name}" not in modules():
            for module, is_package in modules().items():
                if not module.endswith("__main__") and (deep or not is_package):
                    value = vars(import_module(module)).get(name, package)
                    if not isinstance(value, ModuleType):
                        return value
        raise AttributeError(f"module {package.__name__!r} has no attribute {name!r}")

    return find


for package in (sim, topologies):
    package.__getattr__ = face(package, deep=True)
for each in walk_packages(p2pfl.__path__, "p2pfl."):
    if each.ispkg and each.name != "p2pfl.features":
        package = import_module(each.name)
        package.__getattr__ = face(package)
