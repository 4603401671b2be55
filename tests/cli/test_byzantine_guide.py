"""docs/how-to/liars.md says what the program does: its rules, its faults, its attacks, its commands."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from p2pfl.aggregate import ADVICE, RULES, parse_rule
from p2pfl.cli import cli
from p2pfl.core import FORGIVEN_S, POINTS, Fault, Reputation
from p2pfl.limits import FIRST_QUARANTINE_S, LONGEST_QUARANTINE_S
from p2pfl.reporting import bearings
from sim import ATTACKS, ROBUST_RULES, SECTIONS, LiarSpec, WorldSpec, describe, parse_attack, simulate

GUIDE_FOLDER = Path(__file__).parents[2] / "docs" / "how-to"
GUIDE = (GUIDE_FOLDER / "liars.md").read_text(encoding="utf-8")
PROSE = " ".join(GUIDE.split())
COMMANDS = re.findall(r"(?m)^p2pfl .*--attack .*", GUIDE)


def options_of(command):
    """What click makes of it, without running it; a mistake in an option raises."""
    words, found = shlex.split(command)[1:], cli
    while hasattr(found, "get_command"):
        found = found.get_command(None, words.pop(0))
    return found.make_context(found.name, words).params


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_one_that_there_is_with_a_rule_an_attack_and_a_graph_that_there_are(command):
    options = options_of(command)
    rule = options["rule"] or "mean"
    parse_rule(rule)
    parse_attack(options["attack"])
    described = describe(nodes=options["nodes"], topology=options["topology"], rule=rule)
    assert all(one.mixes for one in bearings(described))


@pytest.mark.long
def test_the_attacks_of_ones_own_that_it_shows_can_be_told_in_a_simulation(tmp_path, monkeypatch):
    (source,) = re.findall(r"(?ms)^```python\n(.*?)^```", GUIDE)
    (tmp_path / "lies.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    asked = [options_of(command)["attack"] for command in COMMANDS]
    own = [attack for attack in asked if "lies.py" in attack]
    assert own == ["lies.py:backwards", "sleeper:lies.py:Uphill@5"]
    federation = describe(nodes=4, topology="complete", rounds=2, rule="hampel:b=1", partition="iid")
    federation = replace(federation, training=replace(federation.training, local_steps=1, closing_rounds=0))
    for attack in (own[0], "sleeper:lies.py:Uphill@1"):
        world = WorldSpec(liars=LiarSpec(attack=attack, nodes=(3,)), evaluate_every_s=10.0)
        report = simulate(federation, world=world, references=False)
        assert report.attack == attack
        assert report.byzantine == ["node3"]


ROBUST = [name for name in RULES if name != "mean"]


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_named(name):
    assert re.search(rf"`(\S*\+)?{re.escape(name)}[:`]|\"{re.escape(name)}\"", GUIDE)


def test_the_kinds_of_faults_are_those_that_count():
    table = GUIDE.partition("| kind | is |")[2].partition("\n\n")[0]
    assert re.findall(r"`(\w+)`", table.replace("`mean`", "")) == [str(fault) for fault in Fault]


def test_times_of_quarantine_are_those_of_the_core():
    assert (FIRST_QUARANTINE_S, LONGEST_QUARANTINE_S) == (60.0, 3600.0)
    assert "The quarantine lasts a minute, then two, four, up to an hour" in PROSE
    assert FORGIVEN_S * POINTS.get(Fault.PAYLOAD, 1.0) == 300.0
    assert "forgiven in five minutes" in PROSE


def test_five_refused_models_within_two_minutes_are_too_many_as_it_says():
    reputation = Reputation()
    led = [reputation.note(Fault.PAYLOAD, "not finite", now) for now in (0.0, 30.0, 60.0, 90.0, 120.0)]
    assert led == [False] * 4 + [True]


def test_the_number_of_attacks_is_right():
    assert "lists eighteen" in PROSE
    assert len(ATTACKS) == 18


def test_all_rules_want_as_many_neighbors():
    wanted = {name: bearings(describe(nodes=20, topology="complete", rule=f"{name}:b=2"))[0].needed for name in ROBUST}
    assert wanted == dict.fromkeys(ROBUST, 5)


def test_every_table_that_it_sends_to_a_world_file_for_is_one_of_a_world_file():
    named = re.findall(r"`\[+(\w+)\]+` in a\s+\[world file\]", GUIDE)
    assert named
    assert set(named) <= set(SECTIONS)


def test_the_table_of_advice_is_the_one_of_check_and_plan():
    rows = re.findall(r"(?m)^\| ((?:most|few) classes, [^|]+) \| ([^|]+) \| ([^|]+) \|$", GUIDE)
    assert [(world, rules.replace(":b=B", "").replace("`", ""), text) for world, rules, text in rows] == [
        (one.world, ", ".join(one.rules), one.measured) for one in ADVICE
    ]
    assert {rule for one in ADVICE for rule in one.rules} < {*ROBUST_RULES}


def test_what_attacks_take_from_the_advised_rule_is_what_the_study_measured():
    """Each cell of the study: no attack, the worst of seven, ascent, foreign; degrees 4, 6 and 8, in step and apart."""
    study = (GUIDE_FOLDER.parent / "explanation" / "robust-rules.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"(?m)^\| hampel \| mix \|.*\n\| +\| train \|(.+)\|$", study)
    cells = [[float(text.replace("–", "nan")) for text in re.findall(r"\.\d+|–", cell)] for cell in row.split("|")]
    lost = [[cell[0] - cell[attack] for attack in (1, 2, 3)] for cell in cells if cell]
    few, many = [lost[k] for k in range(len(lost)) if k % 3 != 2], lost[2::3]
    strongest = [taken for _, *ascending in few for taken in ascending]
    assert f"{min(strongest):.2f} to {max(strongest):.2f}".replace("0.", ".") in ADVICE[0].measured
    assert max(taken for losses in many for taken in losses if not math.isnan(taken)) < 0.01
    assert "more than .01" in ADVICE[1].measured
    seven = [taken for taken, *_ in few if not math.isnan(taken)]
    assert f"{min(seven):.2f} to {max(seven):.2f}".replace("0.", ".") in ADVICE[0].measured
