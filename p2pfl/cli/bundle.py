"""Bundles for `p2pfl deploy push`: all that one kind of board needs to install p2pfl without a network.

A bundle is a folder with wheels, install.sh, the unit, KIND (processor, Python, C library, version) and SHA256SUMS, the
hashes of all these files. pip fetches the wheels for the board, which may have another processor and another Python
than this machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

from p2pfl.errors import UserError
from p2pfl.names import DISTRIBUTION
from p2pfl.plugins import software

CHECKOUT = Path(__file__).parents[2]
IS_CHECKOUT = (CHECKOUT / "pyproject.toml").is_file()
INSTALLER = ("install.sh", "p2pfl@.service")
OLDEST_LIBC = 17
PIP = """
import json, runpy, sys
from pip._vendor.packaging import markers
ours, board = markers.default_environment, json.loads(sys.argv.pop(1))
markers.default_environment = lambda: {**ours(), **board}
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
"""pip evaluates conditions of requirements ("python_version < '3.14'") for the machine on which it runs: here they are
those of the board.
"""


class Kind(NamedTuple):
    """What the packages of a board depend on; `libc` is its glibc's version."""

    processor: str
    python: str
    libc: str

    def pip_words(self) -> list[str]:
        """Return pip's options for the wheels that such a board runs."""
        newest = int(self.libc.split(".")[1])
        tags = [f"manylinux_2_{minor}" for minor in range(newest, OLDEST_LIBC - 1, -1)] + ["manylinux2014", "linux"]
        platforms = [f"--platform={tag}_{self.processor}" for tag in tags]
        return ["--only-binary", ":all:", "--implementation", "cp", "--python-version", self.python, *platforms]

    def markers(self) -> dict[str, str]:
        system = {"platform_system": "Linux", "sys_platform": "linux", "os_name": "posix"}
        version = {"python_version": self.python, "python_full_version": f"{self.python}.0"}
        return {"platform_machine": self.processor, **system, **version}


def installer() -> list[Path]:
    """Return install.sh and the unit, of the checkout or as installed with p2pfl."""
    if IS_CHECKOUT:
        return [CHECKOUT / "deploy" / name for name in INSTALLER]
    files = distribution(DISTRIBUTION).files or ()
    return [Path(str(file.locate())) for name in INSTALLER for file in files if file.name == name]


def own_wheel(folder: Path) -> Path:
    """Make or fetch the wheel of this p2pfl into `folder`. Raises UserError: pip failed."""
    if IS_CHECKOUT:
        _pip("this checkout", {}, "wheel", "--no-deps", "--wheel-dir", folder, CHECKOUT)
    else:
        _pip(DISTRIBUTION, {}, "download", "--no-deps", "--dest", folder, f"{DISTRIBUTION}=={software()}")
    return next(folder.glob("*.whl"))


def make_bundle(kind: Kind, wheel: Path, extras: str, words: Sequence[str | Path], folder: Path) -> Path:
    """Return the bundle for this kind of board in `folder`, made if it is not there yet; an older one goes.

    `words` are pip's words for what is wanted beside the wheel with its extras. Raises UserError: pip does not find it.
    """
    files = [wheel, *installer(), *(word for word in words if isinstance(word, Path))]
    parts = [*kind, extras, *map(str, words), *(f"{file.name} {digest(file)}" for file in files)]
    prefix = f"{kind.processor}-py{kind.python}-"
    bundle = folder / f"{prefix}{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]}"
    if bundle.is_dir():
        return bundle
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=folder) as name:
        made = Path(name) / "bundle"
        _fetch(kind, wheel, extras, words, made / "wheels")
        for file in installer():
            shutil.copyfile(file, made / file.name)
        (made / "KIND").write_text(f"{' '.join(kind)} {wheel.name.split('-')[1]}\n", "ascii")
        inside = sorted(file for file in made.rglob("*") if file.is_file())
        sums = "".join(f"{digest(file)}  {file.relative_to(made).as_posix()}\n" for file in inside)
        (made / "SHA256SUMS").write_text(sums, "utf-8")
        for older in folder.glob(f"{prefix}*"):
            shutil.rmtree(older)
        made.rename(bundle)
    return bundle


def _fetch(kind: Kind, wheel: Path, extras: str, words: Sequence[str | Path], folder: Path) -> None:
    """Fetch the wheels; those of a release by the hashes in its requirements.txt, which is beside its wheel."""
    board: list[str | Path] = ["download", "--quiet", "--dest", folder, *kind.pip_words()]
    wanted: list[str | Path] = [f"{DISTRIBUTION}[{extras}] @ {wheel.resolve().as_uri()}", *words]
    locked = wheel.with_name("requirements.txt")
    if locked.is_file() and "--hash=" in locked.read_text("utf-8"):
        _pip(str(locked), kind.markers(), *board, "--require-hashes", "--no-deps", "-r", locked)
        pins = folder.parents[1] / "pins.txt"
        pins.write_text("".join("{}=={}\n".format(*file.name.split("-")[:2]) for file in folder.iterdir()), "utf-8")
        wanted += ["--find-links", folder, "--constraint", pins]
    _pip(f"the packages for {kind.processor} with Python {kind.python}", kind.markers(), *board, *wanted)


def _pip(what: str, markers: dict[str, str], *words: str | Path) -> None:
    command = [sys.executable, "-c", PIP, json.dumps(markers), *map(str, words)]
    environment = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)  # noqa: S603
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
        raise UserError(f"pip cannot get {what}: {' '.join(errors)}")


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def needs_bytes(bundle: Path) -> int:
    """Return about how many bytes a board needs free: wheels are compressed, and byte code is added."""
    return (50 << 20) + 6 * sum(file.stat().st_size for file in (bundle / "wheels").iterdir())
