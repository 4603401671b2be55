"""What docs/how-to/tables.md writes into files are keys that the program reads, and its commands are commands."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))
import page_kit as pages

from p2pfl.learn.table import rows, schema, task

TEXT = pages.read("docs/how-to/tables.md")
DOCUMENTS = [tomllib.loads(block) for language, block in pages.blocks(TEXT) if language == "toml"]


def test_each_key_of_a_snippet_is_one_where_the_page_puts_it():
    known = {
        "task": {"name", *task.KEYS, *schema.KEYS},
        "data": {*task.KEYS, *rows.KEYS},
        "": {*schema.KEYS, *rows.KEYS},
    }
    for document in DOCUMENTS:
        tables = {key: value for key, value in document.items() if key in ("task", "data")} or {"": document}
        for name, table in tables.items():
            assert set(table) <= known[name]
    assert len(DOCUMENTS) == 5


def test_each_command_and_option_is_one():
    mistakes = [pages.command_mistake(words) for words in pages.commands(TEXT)]
    assert [mistake for mistake in mistakes if mistake] == []


@pytest.mark.long
@pytest.mark.slow
def test_the_snippets_make_a_federation_without_mistakes(tmp_path):
    """A node's table is written as its `[data]` says, with a row of another length at the end."""
    _, of_task, of_schema, of_data = [block for language, block in pages.blocks(TEXT) if language == "toml"]
    pages.shell(tmp_path, "p2pfl new ward --nodes north,south")
    head, _, rest = (tmp_path / "ward/federation.toml").read_text(encoding="utf-8").partition("[task]")
    (tmp_path / "ward/federation.toml").write_text(f"{head}{of_task}\n[training]{rest.partition('[training]')[2]}")
    (tmp_path / "ward/schema.toml").write_text(of_schema, encoding="utf-8")
    rows = [f"p{row};{30 + row % 50};{200 + row},5;{row % 5}" for row in range(100)]
    for name in ("north", "south"):
        node = tmp_path / "ward" / name
        (node / "north.csv").write_text("\n".join(["patient;age;Cholesterol (mg/dl);num", *rows, "one;cell"]))
        with (node / "node.toml").open("a", encoding="utf-8") as file:
            file.write(of_data.partition("[data]\n")[2] if "\n[data]" in (node / "node.toml").read_text() else of_data)
    said = pages.shell(tmp_path, "p2pfl check ward 2>&1")
    assert "no mistakes" in said
    assert "1 row of 101 is left out" in said
