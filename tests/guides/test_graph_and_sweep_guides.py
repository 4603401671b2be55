"""The pages on graphs, compressors, simulations and sweeps: their commands exist, and their files can be run."""

from __future__ import annotations

import re

import page_kit as pages
import pytest

from p2pfl.config import load_config
from p2pfl.learn import parse_partition
from p2pfl.learn.task import ALLOWED
from sim import build, load_sweep, read_world
from sim.sweeps.plan import make_plan

GRAPHS = "docs/how-to/which-graph.md"


def test_the_sweep_of_the_guide_is_sixty_runs(tmp_path):
    text, _ = [block for language, block in pages.blocks(pages.read("docs/how-to/sweeps.md")) if language == "toml"]
    path = tmp_path / "sweep.toml"
    path.write_text(text, encoding="utf-8")
    assert len(make_plan(load_sweep(path)).jobs) == 60


def test_the_sweep_of_ones_own_federation_in_the_guide_has_its_settings_but_for_those_that_it_names(tmp_path):
    _, text = [block for language, block in pages.blocks(pages.read("docs/how-to/sweeps.md")) if language == "toml"]
    path = tmp_path / "ward.toml"
    path.write_text(text, encoding="utf-8")
    pages.shell(tmp_path, "p2pfl new ward-7 --nodes 4 --topology complete")
    plan = make_plan(load_sweep(path))
    assert len(plan.jobs) == 2 * 2 * 3
    federation, _ = build(next(iter(plan.jobs.values())))
    assert (federation.name, federation.topology, federation.training.rounds) == ("ward-7", "complete", 20)


def test_the_guide_has_every_way_to_partition_and_each_of_its_specs_is_one():
    page = pages.read("docs/how-to/simulate.md")
    _, _, section = page.partition("## Who holds which rows\n")
    rows = re.findall(r"^\| `([^`]+)` \|", section.partition("\n## ")[0], re.MULTILINE)
    known = {
        part.partition(":")[0]
        for part in re.split(r",? (?=[a-z])", ALLOWED.replace(" (one per node)", ""))
        if ":" in part or part.isalpha()
    }
    assert {parse_partition(spec).name for spec in rows} == known


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
        return script.replace("--rounds 20", "--rounds 2").replace("design -n 20", "design -n 8")

    said = pages.follow(GRAPHS, tmp_path, quicker)
    assert "mixing rate" in said[0]
    assert "qualifies" in said[-2]
    assert " True " in said[-1]
    for name in ("one.png", "ring.json", "torus.json", "both.png", "graph.json"):
        assert (tmp_path / name).stat().st_size > 0, name
