"""Takes the core and the simulator's control plane from a compiled unit, where `tools/compile.py` has built one.

Without a unit nothing changes. A unit that was built from other sources, or for another Python, or that cannot be
loaded, is not used: a warning says so once, and the plain modules do the same work. P2PFL_COMPILED=0 leaves it aside.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "compiled"
MANIFEST = "unit.json"
SUFFIX = EXTENSION_SUFFIXES[0]
UNIT = "p2pfl_unit"
"""The name of the library that all compiled modules share."""
_ROOT = Path(__file__).parent.parent
_SAID = "P2PFL_COMPILED_SAID"


class Manifest(NamedTuple):
    """For which Python a unit was built, and from which sources: `modules` maps each to its fingerprint."""

    python: str
    suffix: str
    modules: dict[str, str]


def fingerprint(source: Path) -> str:
    return hashlib.blake2b(source.read_bytes(), digest_size=16).hexdigest()


class CompiledFinder:
    """Finds modules in the unit of `folder`, which is checked when the first one is imported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._modules: dict[str, str] | None = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002 - importlib's
        if not name.startswith(("p2pfl.core.", "sim.")):
            return None
        if self._modules is None:
            self._modules = self._load()
        return self._spec(name) if name in self._modules else None

    def _spec(self, name: str) -> ModuleSpec | None:
        file = str(self.folder / f"{name.rpartition('.')[2] if name.startswith(UNIT) else name}{SUFFIX}")
        return spec_from_file_location(name, file, loader=ExtensionFileLoader(name, file))

    def _load(self) -> dict[str, str]:
        """Load the shared library; return the unit's modules, none if it cannot be used."""
        try:
            manifest = Manifest(**json.loads((self.folder / MANIFEST).read_text(encoding="utf-8")))
            reason = _mismatch(manifest)
            if not reason:
                self._load_library()
                return manifest.modules
        except (OSError, ValueError, TypeError, ImportError) as error:
            reason = f"it cannot be loaded ({error})"
        _say(f"the compiled unit in {self.folder} is not used: {reason}. Plain Python does the same, more slowly")
        return {}

    def _load_library(self) -> None:
        name = f"{UNIT}__mypyc"
        spec = self._spec(name)
        if spec is None or spec.loader is None:
            raise ImportError(name)
        sys.modules[name] = library = module_from_spec(spec)
        spec.loader.exec_module(library)


def _mismatch(manifest: Manifest) -> str:
    """Return why the unit does not fit, empty if it does."""
    python = sys.version.split()[0]
    if (manifest.python.split(".")[:2], manifest.suffix) != (python.split(".")[:2], SUFFIX):
        return f"it was built for Python {manifest.python} ({manifest.suffix}), and this is {python} ({SUFFIX})"
    for module, expected in manifest.modules.items():
        if fingerprint(_ROOT / f"{module.replace('.', '/')}.py") != expected:
            return f"{module} has changed since it was built (python tools/compile.py builds it anew)"
    return ""


def _say(text: str) -> None:
    """Warn once, and not again in processes that this one starts."""
    if not os.environ.get(_SAID):
        os.environ[_SAID] = "1"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def use_compiled() -> None:
    """Import from the unit from now on, if there is one."""
    if (FOLDER / MANIFEST).exists() and os.environ.get("P2PFL_COMPILED", "1") != "0":
        sys.meta_path.insert(0, CompiledFinder(FOLDER))
