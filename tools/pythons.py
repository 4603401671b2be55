"""Run the tests that need no torch under each Python that is here: `python tools/pythons.py [VERSION...] [OPTION...]`.

VERSION is such as 3.13 or 3.14t; OPTIONs are for pytest. A Python is one on the path, of pyenv, or that uv knows. No
environment, in .venv/pythons, gets torch, which lacks wheels for the newest: what fails for want of it is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13", "3.14", "3.14t")
USABLE = "import sys, venv, ensurepip; print(sys.executable)"


def find(version: str) -> str:
    """Return the path of a Python of this version that can make environments; empty if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    tries = [[str(path), "-c", USABLE] for path in (f"python{version}", *pyenv.glob(f"versions/*/bin/python{version}"))]
    for command in [*tries, ["uv", "python", "find", "--no-python-downloads", version]]:
        if shutil.which(command[0]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if not done.returncode:
                return str(done.stdout.strip())
    return ""


def test(python: str, folder: Path, options: list[str]) -> tuple[int, str]:
    """Return the exit code of pytest and its last line."""
    if not folder.exists():
        subprocess.run([python, "-m", "venv", folder], check=True)
    own = str(folder / "bin/python")
    subprocess.run([own, "-m", "pip", "install", "--quiet", "--editable", ".[test]"], check=True)
    words = [own, "-m", "pytest", "-q", "-r", "fE", "-p", "without_torch", *options]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path.cwd()), "tests"])}
    line = ""
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as running:
        for line in running.stdout or ():
            print(line, end="", flush=True)
    return running.returncode, line.strip()


def main(*words: str) -> int:
    versions = [word for word in words if word in VERSIONS]
    options = [word for word in words if word not in versions]
    results = {}
    for version in versions or VERSIONS:
        python = find(version)
        results[version] = test(python, Path(".venv/pythons") / version, options) if python else (0, "is not here")
    print("\n".join(f"Python {version}: {line}" for version, (_, line) in results.items()))
    return max(code for code, _ in results.values())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
