"""Build a release in dist/ and upload nothing: wheel, sdist, bill of materials, requirements with hashes, checksums.

The commit must have a tag vMAJOR.MINOR.PATCH and nothing uncommitted; --trial builds whatever is there. What a wheel
needs beside torch is in requirements.txt, for all platforms with the hashes of all files, and in sbom.cdx.json
(CycloneDX), as a fresh environment of this Python gets it.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

DIST = Path("dist")
EXTRAS = "lan"
"""What a node in the field needs beside the core."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trial", action="store_true", help="of a commit without a tag, or of changed files")
    if not parser.parse_args().trial:
        check_tag()
    hooks = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["metadata"]["hooks"]
    if not hooks["custom"]["publisher"]:
        print("no publisher in pyproject.toml: links and addresses are left out of the metadata", file=sys.stderr)
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST)
    (wheel,) = DIST.glob("*.whl")
    with tempfile.TemporaryDirectory() as name:
        plain, python = Path(name), Path(name) / "bin/python"
        venv.create(plain, with_pip=True)
        ours = f"p2pfl-gossip[{EXTRAS}]=={wheel.name.split('-')[1]}"  # by name: the bill would tell where a file stood
        run(python, "-m", "pip", "install", "--quiet", "--find-links", DIST, ours)
        run("cyclonedx-py", "environment", "--output-reproducible", "--output-file", DIST / "sbom.cdx.json", python)
    locked = DIST / "requirements.txt"
    wanted = ["--extra", EXTRAS, "--universal", "--generate-hashes", "--no-header", "--quiet", "--output-file", locked]
    run("uv", "pip", "compile", "pyproject.toml", *wanted)
    files = sorted(path for path in DIST.iterdir() if path.is_file())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (DIST / "SHA256SUMS").write_text(sums, encoding="utf-8")
    print("\n".join(f"{path.stat().st_size:>10,}  {path}" for path in sorted(DIST.iterdir())))


def check_tag() -> None:
    """Exit with a sentence where this is no commit that may be released."""
    git = ["git", "tag", "--points-at", "HEAD"]
    found = subprocess.run(git, capture_output=True, text=True, check=False)
    if found.returncode:
        sys.exit("make release: this is no git checkout, so nothing says its version")
    tags = found.stdout.split()
    if not any(re.fullmatch(r"v\d+\.\d+\.\d+", tag) for tag in tags):
        has = f"the tag {', '.join(tags)}, which is no version" if tags else "no tag"
        sys.exit(f"make release: this commit has {has}; needed: git tag vMAJOR.MINOR.PATCH, such as v0.2.0")
    if subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=True).stdout:
        sys.exit("make release: there are uncommitted changes; commit them, or put them aside")


def run(*command: str | Path) -> None:
    """Run a command of this environment. Exits if it fails."""
    beside = Path(sys.executable).parent / str(command[0])
    words = [str(beside if beside.exists() else command[0]), *map(str, command[1:])]
    if subprocess.run(words, check=False).returncode:
        sys.exit(f"make release: {command[0]} failed")


if __name__ == "__main__":
    main()
