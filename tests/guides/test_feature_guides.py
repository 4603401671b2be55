"""The pages of features: what they write into files is read, their tables are complete, and they can be followed."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import page_kit as pages
import pytest

from p2pfl.config import PRIVACY, STATS, Mistakes, StatsConfig, read_stats
from p2pfl.features.privacy import DEAF, FREE, WEAK
from p2pfl.learn.table import KEYS, rows
from sim.audits.audit import ATTACKS

STATISTICS_GUIDE = "docs/how-to/statistics.md"
PRIVACY_GUIDE = "docs/how-to/privacy.md"
LIARS_GUIDE = "docs/how-to/liars.md"
TABLES_GUIDE = pages.read("docs/how-to/tables.md")
DOCUMENTS = [tomllib.loads(block) for language, block in pages.blocks(TABLES_GUIDE) if language == "toml"]
ROWS = [
    line.split("|")[1].strip()
    for line in pages.read("docs/how-to/lan.md").splitlines()
    if line.startswith("| ") and not line.startswith("| the doctor says")
]


@pytest.mark.parametrize("row", ROWS)
def test_each_row_of_the_table_is_something_that_the_doctor_says(row):
    said = re.sub(r"\s+", " ", pages.read("p2pfl/features/lan/doctor.py"))
    words = [
        part.strip() for part in re.split(r", or: |, and in what|, but at \.\.\.|, or its clock.*|^runs another", row)
    ]
    assert [word for word in words if word and word not in said] == []


def test_the_table_of_statistics_has_each_key_and_says_the_defaults():
    (text,) = [block for language, block in pages.blocks(pages.read(STATISTICS_GUIDE)) if language == "toml"]
    table, mistakes = tomllib.loads(text)["stats"], Mistakes(Path("node.toml"))
    found = read_stats(table, mistakes)
    assert (mistakes.errors, table.keys()) == ([], STATS.keys())
    assert (found.a_day, found.least_rows) == (StatsConfig().a_day, StatsConfig().least_rows)


def test_what_is_tried_of_the_ten_questions_is_on_the_page():
    rows = re.findall(r"^\| (\d+)\. ", pages.read(STATISTICS_GUIDE), re.MULTILINE)
    tries = re.findall(r"^def test_(\d+)_", pages.read("tests/stats/test_ten_questions.py"), re.MULTILINE)
    assert rows == [str(number) for number in range(1, 11)]
    assert set(tries) < set(rows)


def test_each_key_of_a_snippet_is_one_where_the_page_puts_it():
    task = pytest.importorskip("p2pfl.learn.table.task", reason="torch is not installed")
    known = {
        "task": {"name", *task.KEYS, *KEYS},
        "data": {*task.KEYS, *rows.KEYS},
        "": {*KEYS, *rows.KEYS},
    }
    for document in DOCUMENTS:
        tables = {key: value for key, value in document.items() if key in ("task", "data")} or {"": document}
        for name, table in tables.items():
            assert set(table) <= known[name]
    assert len(DOCUMENTS) == 5


@pytest.mark.long
@pytest.mark.slow
def test_the_snippets_make_a_federation_without_mistakes(tmp_path):
    """A node's table is written as its `[data]` says, with a row of another length at the end."""
    _, of_task, of_schema, of_data, _ = [block for language, block in pages.blocks(TABLES_GUIDE) if language == "toml"]
    pages.shell(tmp_path, "p2pfl new ward --nodes north,south")
    head, _, rest = (tmp_path / "ward/federation.toml").read_text(encoding="utf-8").partition("[task]")
    (tmp_path / "ward/federation.toml").write_text(f"{head}{of_task}\n[training]{rest.partition('[training]')[2]}")
    (tmp_path / "ward/schema.toml").write_text(of_schema, encoding="utf-8")
    lines = [f"p{row};{30 + row % 50};{200 + row},5;{row % 5}" for row in range(100)]
    for name in ("north", "south"):
        node = tmp_path / "ward" / name
        (node / "north.csv").write_text("\n".join(["patient;age;Cholesterol (mg/dl);num", *lines, "one;cell"]))
        with (node / "node.toml").open("a", encoding="utf-8") as file:
            file.write(of_data.partition("[data]\n")[2] if "\n[data]" in (node / "node.toml").read_text() else of_data)
    said = pages.shell(tmp_path, "p2pfl check ward 2>&1")
    assert "no mistakes" in said
    assert "1 row of 101 is left out" in said


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
