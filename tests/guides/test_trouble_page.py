"""The page docs/how-to/when-something-is-wrong.md quotes what the program prints."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import page_kit as pages
from reference_pages import NEWS

from p2pfl.features import FEATURES
from p2pfl.node import alarm_texts

PAGE = "docs/how-to/when-something-is-wrong.md"
FOREIGN = {"Address already in use", "Illegal instruction", "status=4/ILL"}
"""What the system says, not the program."""
TEXT = pages.read(PAGE)
CODE = re.findall(r"`([^`\n]+)`", TEXT)
CELLS = "\n".join(line.split(" | ")[0] for line in TEXT.splitlines() if line.startswith("| "))
SENTENCES = {code for code in CODE if code.count(" ") > 1 and not re.search(r"^p2pfl |=|/", code)}
QUOTED = sorted((SENTENCES | {*re.findall(r"`([^`]+)`", CELLS)}) - FOREIGN)
NAMED = {code for code in CODE if re.fullmatch(r"[a-z]+(-[a-z]+)+", code)}


@cache
def said():
    """Every text in the program's source; what is put into an f-string is left out."""
    found = []
    for path in sorted((pages.ROOT / "p2pfl").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(one.value if isinstance(one, ast.Constant) else "{}" for one in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return " ".join("\n".join(found).split())


@pytest.mark.parametrize("quote", QUOTED)
def test_each_message_is_one_of_the_program(quote):
    assert quote in said()


def test_each_alarm_and_event_that_it_names_is_one():
    assert sorted(NAMED - {*alarm_texts(FEATURES), *NEWS}) == []


@pytest.mark.long
@pytest.mark.slow
def test_the_three_first_commands_say_that_nobody_runs(tmp_path):
    """With a folder that was made and never started, and no log."""
    (first,) = [block for _, block in pages.blocks(TEXT)]
    status, doctor, _ = first.splitlines()
    pages.shell(tmp_path, "p2pfl new ward --base-port 21470")
    assert "not running here" in pages.shell(tmp_path, f"{status.partition('#')[0]} || true")
    assert "nothing listens on that port" in pages.shell(tmp_path, f"{doctor.partition('#')[0]} || true")
