"""docs/how-to/adapters.md: its examples learn, simulated, and are as short as they say."""

from __future__ import annotations

import pytest
from page_kit import blocks, read

from p2pfl import Federation
from sim import simulate

PAGE = "docs/how-to/adapters.md"
EXAMPLES = {block.split("\n")[0]: block for language, block in blocks(read(PAGE)) if language == "python"}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of lightning's own code
@pytest.mark.parametrize(
    ("name", "needs", "reaches"),
    [
        ("# cancer.py", "sklearn", 0.93),
        ("# iris.py", "flwr", 0.7),
        pytest.param("# module.py", "lightning", 0.8, marks=pytest.mark.long),
    ],
    ids=["sklearn", "flower", "lightning"],
)
def test_each_example_learns_and_fits_on_a_screen(name, needs, reaches):
    pytest.importorskip(needs, reason=f"p2pfl.adapt needs {needs} for this example")
    assert sum(bool(line) for line in EXAMPLES[name].splitlines()) <= 30
    scope = {"__name__": "example"}
    exec(EXAMPLES[name], scope)
    federation = Federation(task=scope["task"], nodes=3, topology="complete", rounds=5)
    assert simulate(federation, references=False).accuracy.min > reaches
