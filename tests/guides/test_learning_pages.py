"""The pages about learning: their keys load, their commands exist, their Python runs, and their tables are complete."""

from __future__ import annotations

import json
import re
import tomllib

import page_kit as pages
import pytest
import torch

from p2pfl import Federation
from p2pfl.config import TrainingConfig, load_config, load_node, parse_stop
from p2pfl.core import parse_staleness
from p2pfl.learn.metrics import BUILT_IN
from p2pfl.methods import METHODS, make_method

HOW_TO = ("gpu", "methods", "metrics", "personal-layers", "python", "training")
PAGES = (
    *(f"docs/how-to/{name}.md" for name in HOW_TO),
    *(f"docs/explanation/{name}.md" for name in ("algorithm", "flows", "staleness")),
    "docs/reference/protocol.md",
    "docs/tutorials/notebook.md",
)
TABLES = [(page, block) for page in PAGES for language, block in pages.blocks(pages.read(page)) if language == "toml"]


def python_of(page):
    return [block for language, block in pages.blocks(pages.read(page)) if language == "python"]


def first_column(page, heading):
    """The code in the first column of the first table after a line that begins so."""
    _, _, rest = pages.read(page).partition(f"\n{heading}")
    rows = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)[0].splitlines()
    return [name for row in rows[2:] for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


@pytest.mark.parametrize(("page", "block"), TABLES)
def test_the_keys_of_a_block_load(page, block, tmp_path):
    folder = Federation(nodes=2).save(tmp_path / "ward")
    for file in (folder / "federation.toml", folder / "node0" / "node.toml"):
        text = file.read_text(encoding="utf-8")
        for name in tomllib.loads(block):
            (keys,) = re.findall(rf"^\[{name}\]\n((?:[^\[\n].*\n)+)", block, re.MULTILINE)
            text = re.sub(rf"^\[{name}\].*\n", lambda found, keys=keys: found[0] + keys, text, flags=re.MULTILINE)
        file.write_text(text, encoding="utf-8")
    for source in python_of(page):
        if file := re.search(r'method = "(\w+\.py):', block):
            (folder / file[1]).write_text(source, encoding="utf-8")
    federation = load_config(folder)
    node = load_node(folder / "node0", federation)
    told = {name: keys for name, keys in tomllib.loads(block).items() if name in ("training", "gossip", "node")}
    for name, keys in told.items():
        held = node if name == "node" else getattr(federation, name)
        assert [key for key in keys if not (hasattr(held, key) or hasattr(node.compute, key))] == []


def test_the_method_that_the_page_writes_is_the_built_in_one(tmp_path):
    (source,) = python_of("docs/how-to/methods.md")
    (tmp_path / "prox.py").write_text(source, encoding="utf-8")
    mine, built_in = (
        make_method(spec, TrainingConfig(), folder=tmp_path) for spec in ("prox.py:prox,mu=0.1", "prox:mu=0.1")
    )
    start = {"anchor": torch.ones(3)}
    g, w = torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])
    assert torch.equal(mine.gradient(g, w, start), built_in.gradient(g, w, start))


def test_the_page_has_each_built_in_method():
    names = {spec.partition(":")[0] for spec in first_column("docs/how-to/methods.md", "`p2pfl demo --method SPEC`")}
    assert names == set(METHODS)


def test_each_clause_of_a_stop_is_one():
    for clause in first_column("docs/how-to/training.md", "## When to stop"):
        example = clause.replace("FIGURE", "accuracy").replace(" X ", " 0.001 ").replace(" K ", " 20 ")
        assert parse_stop(example)


def test_the_default_staleness_has_the_weights_of_the_table():
    _, _, rest = pages.read("docs/explanation/staleness.md").partition("\n| `tau` |")
    ages, _, weights = rest.splitlines()[:3]
    weigh = parse_staleness("hinge-polynomial:4,0.5")
    told = [float(cell) for cell in weights.split("|")[2:-1]]
    exact = [weigh(int(re.sub(r"above 64", "65", age).split()[-1])) for age in ages.split("|")[:-1]]
    assert [round(weight, 2) for weight in exact] == told


def test_the_page_of_metrics_has_each_one_and_its_python_runs():
    assert set(first_column("docs/how-to/metrics.md", "`metric` is")) == {*BUILT_IN, "accuracy"}
    scope = {"model": lambda: torch.nn.Linear(2, 2), "data": lambda _node: None, "loss": torch.nn.functional.mse_loss}
    for block in python_of("docs/how-to/metrics.md"):
        exec(block, scope)
    assert scope["cost"].compute(torch.zeros(4), torch.ones(4)) == 12.5


@pytest.mark.slow
def test_the_page_hears_of_each_round(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = python_of("docs/how-to/training.md")
    exec(block.replace("% 50", "% 2"), {"torch": torch, "federation": Federation(nodes=2, rounds=2)})
    assert "node1 2 " in capsys.readouterr().out
    assert {file.name for file in tmp_path.glob("*.pt")} >= {"node0-2.pt", "node1-2.pt"}, "they may train on"


@pytest.mark.slow
def test_the_page_about_gpus_runs_without_one(capsys):
    (block,) = python_of("docs/how-to/gpu.md")
    exec(block, {})
    assert "'cpu'" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.slow
def test_the_page_about_the_notebook_shows_its_first_cells(capsys):
    """With fewer rounds here; the notebook as it stands runs in `test_python_guide`."""
    notebook = json.loads(pages.read("docs/tutorials/python.ipynb"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    blocks = python_of("docs/tutorials/notebook.md")
    assert [block.rstrip("\n") for block in blocks] == [cell.rstrip("\n") for cell in cells[:2]]
    scope = {}
    for block in blocks:
        exec(block.replace("rounds=40", "rounds=2"), scope)
    assert "worst node" in capsys.readouterr().out
