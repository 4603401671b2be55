"""What docs/how-to/statistics.md names is there, and its table of a node file loads."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import page_kit as pages

from p2pfl.config.sections import STATS, StatsConfig, read_stats
from p2pfl.config.tables import Mistakes

PAGE = "docs/how-to/statistics.md"


def test_its_table_has_each_key_and_says_the_defaults():
    (text,) = [block for language, block in pages.blocks(pages.read(PAGE)) if language == "toml"]
    table, mistakes = tomllib.loads(text)["stats"], Mistakes(Path("node.toml"))
    found = read_stats(table, mistakes)
    assert (mistakes.found, table.keys()) == ([], STATS.keys())
    assert (found.a_day, found.least_rows) == (StatsConfig().a_day, StatsConfig().least_rows)


def test_each_of_the_ten_questions_is_tried():
    rows = re.findall(r"^\| (\d+)\. ", pages.read(PAGE), re.MULTILINE)
    tries = re.findall(r"^def test_(\d+)_", pages.read("tests/stats/test_ten_questions.py"), re.MULTILINE)
    assert rows == tries == [str(number) for number in range(1, 11)]
