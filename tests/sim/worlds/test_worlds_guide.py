"""docs/reference/worlds.md: its examples load, its defaults are the defaults, and it names every key and attack."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sim.attacks import ATTACKS
from sim.worlds import model
from sim.worlds.drawn import settle
from sim.worlds.faults import plan_faults
from sim.worlds.model import WorldSpec
from sim.worlds.speeds import read_trace
from sim.worlds.world import read_world

GUIDE = (Path(__file__).parents[3] / "docs" / "reference" / "worlds.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```toml\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)
TRACE = re.search(r"^```csv\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)[1]


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_loads_and_can_be_planned(write, federation_of, text):
    names = [f"pi{i}" for i in range(1, 6)] if "pi5" in text else [f"node{i}" for i in range(1000)]
    write("node,time_s,speed\n" + "".join(f"{name},0,1\n" for name in names), "speeds.csv")
    world = read_world(write(text), federation_of(names))
    plan_faults(settle(world, len(names), 0), len(names), 0)


def test_the_file_that_changes_nothing_is_the_default_world(write, federation):
    (text,) = [example for example in EXAMPLES if "engine_s" in example]
    assert replace(read_world(write(text), federation), path=None) == WorldSpec()


def test_the_trace_of_the_guide_can_be_read(write):
    assert [len(steps) for steps in read_trace(write(TRACE), ["node0", "node1"])] == [2, 1]


def test_every_key_and_attack_is_in_the_guide():
    tables = (model.COMPUTE, model.LINKS, model.WHO, model.SLOW, model.PARTITION, model.CRASH, model.CHURN)
    keys = {"nodes", "groups"}.union(*tables, model.JOIN, model.LIARS, model.RUN)
    assert not {key for key in keys if not re.search(rf"\b{key}\b", GUIDE)}
    assert not {name for name in ATTACKS if f"`{name}" not in GUIDE}
    assert not {name for name in model.SECTIONS if f"[{name}]" not in GUIDE}
