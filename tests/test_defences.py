"""Each defence is where its table says, its tests exist, and the page on threats names the same ones."""

from __future__ import annotations

import re

import pytest
from defences import ROOT, defences

ALL = {each.name: each for each in defences()}
PAGE = (ROOT / "docs" / "explanation" / "threats.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")]
NAMED = {row[4]: row[3] for row in ROWS if row[4] and row[4] != "defence" and not row[4].startswith("---")}
TESTS = sorted({row[3] for row in ROWS if "::" in row[3]} | {test for each in ALL.values() for test in each.tests})


@pytest.mark.parametrize("name", ALL)
def test_a_defence_stands_once_in_its_file(name):
    defence = ALL[name]
    assert (ROOT / defence.file).read_text(encoding="utf-8").count("\n".join(defence.source)) == 1
    assert defence.tests


@pytest.mark.parametrize("test", TESTS)
def test_a_test_of_the_page_or_of_a_defence_exists(test):
    file, _, name = test.partition("::")
    text = (ROOT / "tests" / file).read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE)


def test_the_page_names_all_defences_each_with_a_test_of_its_own_and_no_other():
    assert len(ALL) == len(defences())
    assert NAMED.keys() == ALL.keys()
    assert all(test in ALL[name].tests for name, test in NAMED.items())
