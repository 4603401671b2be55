"""docs/how-to/python.md and docs/tutorials/python.ipynb: what they show runs as it stands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = re.findall(
    r"^```python\n(.*?)^```", (DOCS / "how-to" / "python.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)


def run_script(folder, text):
    script = folder / "script.py"
    script.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


GIVEN = {
    "metrics": "from typing import Any\nmodel: Any\ndata: Any\nloss: Any\n",
    "training": "import torch\nfrom p2pfl import Federation\nfederation: Federation\n",
}
"""What a page takes from its reader."""
MYPY = """
[mypy]
strict = True
python_version = 3.11
[mypy-flwr.*,lightning.*,peft.*,sklearn.*,transformers.*]
ignore_missing_imports = True
[mypy-untyped.*]
disallow_subclassing_any = False
disallow_untyped_calls = False
disallow_untyped_defs = False
disallow_incomplete_defs = False
"""
"""Functions of a reader may be without types, but on the pages about Python."""


def snippets():
    """The text of each Python file that the pages show, by a name. What does not begin with a file's name goes on."""
    for page in [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]:
        name = page.stem.replace("-", "_")
        kind = "typed" if name in ("README", "python", "notebook") else "untyped"
        files = [GIVEN.get(name, "")]
        for block in re.findall(r"(?ms)^ *```python\n(.*?)^ *```", page.read_text(encoding="utf-8")):
            if name == "adapters" or re.match(r"# \S+\.py\n", block):
                files.append("")
            files[-1] += block + "\n"
        yield from ((f"{kind}/{name}_{index}", text) for index, text in enumerate(files) if text)
    cells = json.loads((DOCS / "tutorials" / "python.ipynb").read_text(encoding="utf-8"))["cells"]
    yield "typed/cells", "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


@pytest.mark.long
def test_every_snippet_passes_mypy_strict_as_a_users_file(tmp_path):
    pytest.importorskip("mypy", reason="the extra dev has it")
    for kind in ("typed", "untyped"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "__init__.py").touch()
    for name, text in snippets():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    (tmp_path / "mypy.ini").write_text(MYPY, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", tmp_path / "cache", tmp_path],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": f"{DOCS.parent}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.glob("typed/*.py"))) == 5


@pytest.mark.long
@pytest.mark.parametrize(
    ("rounds", "reaches"), [(4, 0.3), pytest.param(40, 0.9, marks=pytest.mark.long)], ids=["few rounds", "as it stands"]
)
def test_the_page_runs_from_top_to_bottom(tmp_path, rounds, reaches):
    """As one script, but for the sweep, whose processes import the script that they are started from."""
    text = "\n".join(block for block in BLOCKS if "sweep(" not in block)
    said = run_script(tmp_path, re.sub(r"rounds=(\d+)", lambda found: f"rounds={min(int(found[1]), rounds)}", text))
    worst, mean = map(float, said.splitlines()[0].split())
    assert reaches < worst <= mean
    assert "Federation: rounds: impossible value (found -1); allowed: a whole number from 1" in said
    assert (tmp_path / "run.png").stat().st_size > 10_000


@pytest.mark.long
def test_the_notebook_executes_from_top_to_bottom(tmp_path):
    """No output is kept in git."""
    nbformat = pytest.importorskip("nbformat", reason="the extra dev has it")
    nbclient = pytest.importorskip("nbclient", reason="the extra dev has it")
    notebook = nbformat.read(DOCS / "tutorials" / "python.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    nbclient.NotebookClient(notebook, timeout=90, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    assert float(re.search(r"worst node: (\S+)", said)[1]) > 0.9
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert pictures
    assert "<table>" in "".join(output["data"].get("text/html", "") for output in outputs if "data" in output)


def test_the_notebook_is_as_small_as_it_looks():
    text = (DOCS / "tutorials" / "python.ipynb").read_text(encoding="utf-8")
    assert len(text) < 20_000
    assert json.loads(text)["nbformat"] == 4
