"""Compile `kernels.c`: `python -m p2pfl.aggregate.build`. A node needs it for speed alone; see `kernels`."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from p2pfl.aggregate.kernels import SOURCE, Kernels, library
from p2pfl.errors import UserError

FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=off", "-fPIC", "-shared")
CLONES = ("-DCLONES", "-UCLONES")
"""The first of these that compiles is used: with copies for several kinds of processors, or for the plainest one."""


def build(into: Path | None = None) -> Path:
    """Compile the library and return its path: beside this file, or in the folder `into`.

    Raises UserError if there is no compiler, it fails, or the folder cannot be written.
    """
    target = (into or SOURCE.parent) / library().name
    compiler = os.environ.get("CC") or "cc"
    if shutil.which(compiler) is None:
        raise UserError(
            "no C compiler", key="CC", value=compiler, allowed="a C compiler such as gcc (Debian: apt install gcc)"
        )
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            fresh = Path(folder) / target.name
            for clones in CLONES:
                command = [compiler, *FLAGS, clones, str(SOURCE), "-o", str(fresh), "-lm"]
                ran = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - the user's compiler
                if ran.returncode == 0:
                    break
            else:
                raise UserError(f"the compiler failed: {ran.stderr.strip()[-300:]}", key="CC", value=compiler)
            Kernels(fresh)
            fresh.replace(target)
    except OSError as error:
        raise UserError(f"cannot write or load the library: {error.strerror or error}", file=target) from error
    for old in target.parent.glob(f"kernels-{platform.machine()}-*.so"):
        if old != target:
            old.unlink(missing_ok=True)
    return target


def main() -> None:
    try:
        print(f"built {build()}")  # noqa: T201 - a command
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
