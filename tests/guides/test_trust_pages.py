"""The pages on privacy and on neighbors that lie: their commands are real, and the how-to pages can be followed."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest

from p2pfl.config.sections import PRIVACY
from p2pfl.features.privacy.findings import DEAF, FREE, WEAK
from sim.audits.audit import ATTACKS

sys.path.insert(0, str(Path(__file__).parent))
import page_kit as pages

PRIVACY_GUIDE = "docs/how-to/privacy.md"
LIARS_GUIDE = "docs/how-to/liars.md"


def quicker(script):
    """The same with fewer rounds and attacks, for a machine that does other things too."""
    return script.replace("--rounds 10", "--rounds 2").replace("--quick", "--quick --attacks rank-one")


def privacy_table():
    (table,) = [block for language, block in pages.blocks(pages.read(PRIVACY_GUIDE)) if language == "toml"]
    return table


def test_the_table_that_it_shows_has_keys_of_the_program():
    assert set(tomllib.loads(privacy_table())["privacy"]) <= set(PRIVACY)


def test_the_bounds_of_check_are_those_of_the_page():
    text = pages.read(PRIVACY_GUIDE)
    assert f"| above {WEAK:g} |" in text
    assert f"up to {FREE:g}" in text
    assert f"above {DEAF:g}" in text


def test_every_attack_on_privacy_has_its_row():
    table = pages.read("docs/explanation/privacy.md").partition("| attack | does | figure |")[2].partition("\n\n")[0]
    assert [row.split("`")[1] for row in table.splitlines() if row.startswith("| `")] == list(ATTACKS)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_page_on_privacy_is_followed_to_a_spent_budget_and_an_audit(tmp_path):
    pytest.importorskip("opacus")
    pages.shell(tmp_path, "p2pfl new ward && sed -i 's/^rounds = .*/rounds = 4/' ward/federation.toml")
    with (tmp_path / "ward/federation.toml").open("a", encoding="utf-8") as file:
        file.write("\n" + privacy_table())
    said = pages.follow(PRIVACY_GUIDE, tmp_path, quicker)
    assert "spent" in said[0]
    assert "epsilon 8" in said[1]
    report = json.loads((tmp_path / "ward/report.json").read_text(encoding="utf-8"))
    assert {node["privacy"]["budget"] for node in report["nodes"]} == {8.0}


@pytest.mark.long
def test_the_federation_with_a_robust_rule_passes_check_as_the_page_says(tmp_path):
    (script,) = [block for language, block in pages.blocks(pages.read(LIARS_GUIDE)) if language == "sh"]
    said = pages.shell(tmp_path, script)
    assert "no mistakes, no warnings" in said
    assert "hampel:b=1" in said
