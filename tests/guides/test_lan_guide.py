"""The page docs/how-to/lan.md explains what the doctor says, in the doctor's words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    line.split("|")[1].strip()
    for line in (ROOT / "docs/how-to/lan.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| the doctor says")
]


@pytest.mark.parametrize("row", ROWS)
def test_each_row_of_the_table_is_something_that_the_doctor_says(row):
    sources = [ROOT / "p2pfl/features/lan/doctor.py", ROOT / "p2pfl/features/lan/doctor.py"]
    said = re.sub(r"\s+", " ", " ".join(path.read_text(encoding="utf-8") for path in sources))
    words = [
        part.strip() for part in re.split(r", or: |, and in what|, but at \.\.\.|, or its clock.*|^runs another", row)
    ]
    assert [word for word in words if word and word not in said] == []
