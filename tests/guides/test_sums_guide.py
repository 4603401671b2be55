"""What docs/how-to/sums.md shows runs as it stands, and prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "sums.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_page_runs_from_top_to_bottom_and_prints_what_it_says(tmp_path):
    text = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
    script = tmp_path / "script.py"
    script.write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"^(?:# |    print\(error\)  # )(.*)$", text, re.MULTILINE)
