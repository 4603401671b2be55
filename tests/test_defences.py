"""Each defence of tests/defences.py is where it says, its tests exist, and the page on threats names the same ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from defences import ROOT, defences

PAGE = ROOT / "docs" / "explanation" / "threats.md"
ALL = {each.name: each for each in defences()}


def is_there(test):
    file, _, name = test.partition("::")
    path = ROOT / "tests" / file
    return path.exists() and re.search(rf"^(async )?def {name}\(", path.read_text(encoding="utf-8"), re.MULTILINE)


def rows():
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def test_no_two_defences_have_one_name():
    assert len(ALL) == len(defences())


@pytest.mark.parametrize("name", ALL)
def test_a_defence_stands_once_in_its_file_and_its_tests_exist(name):
    defence = ALL[name]
    assert Path(ROOT, defence.file).read_text(encoding="utf-8").count(defence.source) == 1
    assert defence.tests
    assert all(map(is_there, defence.tests))
