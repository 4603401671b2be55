"""docs/reference/worlds.md: its examples load, and show every table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sim import SECTIONS, plan_faults, read_world, settle

GUIDE = (Path(__file__).parents[3] / "docs" / "reference" / "worlds.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```toml\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)
SIMULATE = (Path(__file__).parents[3] / "docs" / "how-to" / "simulate.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_loads_and_can_be_planned(write, federation_of, text):
    names = [f"pi{i}" for i in range(1, 6)] if "pi5" in text else [f"node{i}" for i in range(1000)]
    world = read_world(write(text), federation_of(names))
    plan_faults(settle(world, len(names), 0), len(names), 0)


def test_every_table_of_a_world_file_has_an_example():
    """But `[run]`; of `[liars]` where it sends to. All keys and attacks are in the generated reference."""
    shown = {name for example in EXAMPLES for name in re.findall(r"^\[+(\w+)\]", example, flags=re.MULTILINE)}
    assert shown == {*SECTIONS} - {"run", "liars"}
    assert "\n[liars]\n" in SIMULATE
