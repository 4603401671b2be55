"""Compiles the core and the simulator's control plane with mypyc, as one unit: `python tools/compile.py`.

The unit goes into the folder `p2pfl/compiled`, from which `p2pfl.compiling` takes it. It needs a C compiler, mypy and
setuptools. The sources are compiled as they are but for three textual changes (`adapted`), which concern only how
classes are laid out. Sources that change afterwards make the unit stale: plain Python is used until it is built again.

    python tools/compile.py            build, and keep the unit if a simulation has the same digest with and without it
    python tools/compile.py --remove   go back to plain Python
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from p2pfl.compiling import FOLDER, MANIFEST, SUFFIX, UNIT, Manifest, fingerprint  # noqa: E402 - this checkout's

LEFT_OUT = ("__init__", "messages", "events", "effects", "profiles", "early_stopping", "records")
"""Modules of the core that stay as they are: what msgspec reads or writes, and classes with abstract properties."""
SIMULATOR = ("host", "kernel", "links", "machine", "network", "trace", "lazy/control", "lazy/plane")
SETTINGS = """
[mypy]
follow_imports = silent
ignore_missing_imports = True
[mypy-torch.*,networkx.*,scipy.*,topologies.*,p2pfl.aggregate.*,p2pfl.compress.*,p2pfl.config.*,p2pfl.crypto.*]
follow_imports = skip
[mypy-p2pfl.engine.*,p2pfl.learn.torch_model,p2pfl.methods.*,p2pfl.plugins,p2pfl.reporting.*,sim.attacks.*]
follow_imports = skip
[mypy-sim.learning.*,nacl.*]
follow_imports = skip
"""
BUILD = """
import sys
from mypyc.build import mypycify
from setuptools import setup
parts = mypycify(["--config-file", "mypy.ini", *sys.argv[2:]], opt_level="1", debug_level="0", group_name=sys.argv[1])
setup(name="unit", packages=[], py_modules=[], ext_modules=parts, script_args=["build_ext", "--build-lib", "built"])
"""
PROBE = """
from dataclasses import replace
from sim import simulate
from sim.federations import describe
from sim.worlds.model import LinkSpec, WorldSpec
federation = describe(nodes=8, rounds=3, topology="ring", compressor="q4", partition="draw:14")
world = WorldSpec(links=replace(LinkSpec(), loss=0.05))
print(simulate(federation, world=world, references=False).digest)
"""


def module_files() -> list[Path]:
    """Return the sources of the unit, relative to the root."""
    core = sorted(path for path in (ROOT / "p2pfl" / "core").glob("*.py") if path.stem not in LEFT_OUT)
    return [path.relative_to(ROOT) for path in core] + [Path("sim", f"{name}.py") for name in SIMULATOR]


def adapted(text: str) -> str:
    """Return a source as mypyc takes it: its classes have neither slots nor ABC, plain ones may inherit from `Course`,
    and constants are final.
    """
    text = re.sub(r"^([A-Z][A-Z_0-9]+) = ", r"\1: Final = ", text, flags=re.MULTILINE)
    if ": Final = " in text:
        text = text.replace("import annotations\n", "import annotations\n\nfrom typing import Final\n", 1)
    text = re.sub(r"@dataclass\(slots=True\)", "@dataclass", text)
    text = re.sub(r"(@dataclass\(.*?)slots=True, ", r"\1", text)
    text = re.sub(r"(@dataclass\(.*?), slots=True", r"\1", text)
    text = text.replace("class Exchange(ABC):", "class Exchange:")
    if "\nclass Course:\n" in text:
        decorator = "from mypy_extensions import mypyc_attr\n\n\n@mypyc_attr(allow_interpreted_subclasses=True)\n"
        text = text.replace("\n\nclass Course:\n", f"\n{decorator}class Course:\n")
    return text


def build(work: Path) -> Path:
    """Compile in the folder `work`; return the folder with what was built."""
    for package in ("p2pfl", "sim"):
        shutil.copytree(ROOT / package, work / package, ignore=shutil.ignore_patterns("__pycache__", FOLDER.name))
    files = module_files()
    for file in files:
        (work / file).write_text(adapted((ROOT / file).read_text(encoding="utf-8")), encoding="utf-8")
    (work / "mypy.ini").write_text(SETTINGS, encoding="utf-8")
    (work / "build_unit.py").write_text(BUILD, encoding="utf-8")
    command = [sys.executable, "build_unit.py", UNIT, *map(str, files)]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "warning:" not in line]
        sys.exit("nothing was compiled, and plain Python stays in use:\n" + "\n".join(lines[-20:]))
    return work / "built"


def install(built: Path) -> None:
    """Put what was built into place, all modules in one folder, with the manifest that says from what."""
    remove()
    FOLDER.mkdir()
    for file in built.rglob(f"*{SUFFIX}"):
        parts = file.relative_to(built).parts
        shutil.copy(file, FOLDER / ".".join((*parts[:-1], parts[-1])))
    modules = {".".join(file.with_suffix("").parts): fingerprint(ROOT / file) for file in module_files()}
    manifest = Manifest(python=sys.version.split()[0], suffix=SUFFIX, modules=modules)
    (FOLDER / MANIFEST).write_text(json.dumps(manifest._asdict(), indent=1), encoding="utf-8")


def remove() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)


def digest(*, compiled: bool) -> str:
    """Return the digest of a small simulation, in a process of its own."""
    surroundings = os.environ | {"P2PFL_COMPILED": "1" if compiled else "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PROBE], env=surroundings, capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--remove", action="store_true", help="remove the unit: plain Python is used again")
    if parser.parse_args().remove:
        remove()
        return
    if not sysconfig.get_config_var("CC"):
        sys.exit("this Python names no C compiler: nothing was compiled, and plain Python stays in use")
    with tempfile.TemporaryDirectory() as work:
        install(build(Path(work)))
    plain, compiled = digest(compiled=False), digest(compiled=True)
    if plain != compiled:
        remove()
        sys.exit(f"the unit was removed: a simulation has the digest {plain} without it, and with it:\n{compiled}")
    print(f"compiled {len(module_files())} modules into {FOLDER}; a simulation has the same digest as in plain Python")


if __name__ == "__main__":
    main()
