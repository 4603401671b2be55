"""Each defence is where its table says, its tests exist, and the page on threats names the same ones."""

from __future__ import annotations

import re

from defences import ROOT, defences

ALL = {each.name: each for each in defences()}
PAGE = (ROOT / "docs" / "explanation" / "threats.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")]
NAMED = {row[4]: row[3] for row in ROWS if row[4] and row[4] != "defence" and not row[4].startswith("---")}


def is_there(test):
    file, _, name = test.partition("::")
    text = (ROOT / "tests" / file).read_text(encoding="utf-8")
    return re.search(rf"^(async )?def {name}\(", text, re.MULTILINE) is not None


def test_each_defence_stands_once_in_its_file():
    count = {
        name: (ROOT / each.file).read_text(encoding="utf-8").count("\n".join(each.source)) for name, each in ALL.items()
    }
    assert count == dict.fromkeys(ALL, 1)


def test_all_tests_of_defences_and_of_the_page_exist():
    named = {row[3] for row in ROWS if "::" in row[3]} | {test for each in ALL.values() for test in each.tests}
    assert [test for test in sorted(named) if not is_there(test)] == []


def test_the_page_names_all_defences_each_with_a_test_of_its_own_and_no_other():
    assert len(ALL) == len(defences())
    assert NAMED.keys() == ALL.keys()
    assert [name for name, test in NAMED.items() if test not in ALL[name].tests] == []
