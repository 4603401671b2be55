"""docs/how-to/python.md and docs/tutorials/python.ipynb: what they show runs as it stands."""

from __future__ import annotations

import json
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
    pictures = [
        output for cell in notebook.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
    ]
    assert pictures


def test_the_notebook_is_as_small_as_it_looks():
    text = (DOCS / "tutorials" / "python.ipynb").read_text(encoding="utf-8")
    assert len(text) < 20_000
    assert json.loads(text)["nbformat"] == 4
