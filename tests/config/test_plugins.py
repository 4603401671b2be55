"""The user's own files: what they say when they are asked for is what runs."""

from __future__ import annotations

import os
import sys

from p2pfl.plugins import _module_from_file


def test_a_file_that_was_changed_within_a_second_runs_as_it_is_now_and_leaves_nothing_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "mine.py"
    for value in (32, 14):
        file.write_text(f"value = {value}\n", encoding="utf-8")
        os.utime(file, (1_000_000_000, 1_000_000_000))
        assert _module_from_file("task", file).value == value
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]
