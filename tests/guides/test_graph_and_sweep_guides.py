"""The pages on graphs, compressors, simulations and sweeps: their commands exist, and their files can be run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import page_kit as pages

from p2pfl.config.load import load_config
from sim.sweeps.plan import load_sweep, make_plan
from sim.worlds.world import read_world

GRAPHS = "docs/how-to/which-graph.md"
PAGES = (
    GRAPHS,
    "docs/how-to/fewer-bytes.md",
    "docs/how-to/simulate.md",
    "docs/how-to/sweeps.md",
    "docs/reference/worlds.md",
    "docs/explanation/study.md",
    "docs/appendix/bytes.md",
    "docs/appendix/study.md",
)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_option_that_a_page_names_is_one(page):
    assert [mistake for words in pages.commands(pages.read(page)) if (mistake := pages.command_mistake(words))] == []


def test_the_sweep_of_the_guide_is_sixty_runs(tmp_path):
    (text,) = [block for language, block in pages.blocks(pages.read("docs/how-to/sweeps.md")) if language == "toml"]
    path = tmp_path / "sweep.toml"
    path.write_text(text, encoding="utf-8")
    assert len(make_plan(load_sweep(path)).jobs) == 60


def test_the_compressors_of_the_guide_may_stand_in_a_federation(tmp_path):
    pages.shell(tmp_path, "p2pfl new ward --nodes pi1,pi2,pi3,pi4 && sed -i '/compressor = /d' ward/federation.toml")
    path = tmp_path / "ward/federation.toml"
    plain = path.read_text(encoding="utf-8")
    tables = [block for language, block in pages.blocks(pages.read("docs/how-to/fewer-bytes.md")) if language == "toml"]
    for table in tables:
        own, _, edges = table.removeprefix("[gossip]\n").partition("[[edge]]")
        text = plain.replace("[gossip]\n", f"[gossip]\n{own}", 1) + (f"\n[[edge]]{edges}" if edges else "")
        path.write_text(text, encoding="utf-8")
        assert load_config(path).gossip.compressor in own


def test_the_far_site_of_the_guide_on_graphs_is_a_world(tmp_path):
    (text,) = [block for _, block in pages.blocks(pages.read(GRAPHS)) if block.startswith("# far.toml")]
    (tmp_path / "far.toml").write_text(text, encoding="utf-8")
    pages.shell(tmp_path, "p2pfl new ward --nodes 16")
    world = read_world(tmp_path / "far.toml", load_config(tmp_path / "ward"))
    assert world.slow[0].nodes == (12, 13, 14, 15)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_guide_on_graphs_goes_from_a_comparison_to_a_picture_of_two_simulations(tmp_path):
    (world,) = [block for _, block in pages.blocks(pages.read(GRAPHS)) if block.startswith("# far.toml")]
    (tmp_path / "far.toml").write_text(world, encoding="utf-8")

    def quicker(script):
        return script.replace("--rounds 20", "--rounds 2 --no-references").replace("design -n 20", "design -n 8")

    said = pages.follow(GRAPHS, tmp_path, quicker)
    assert "mixing rate" in said[0]
    assert "qualifies" in said[-2]
    assert " True " in said[-1]
    for name in ("heat.png", "one.png", "ring.json", "torus.json", "both.png", "graph.json"):
        assert (tmp_path / name).stat().st_size > 0, name
