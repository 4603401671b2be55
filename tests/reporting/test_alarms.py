"""Every alarm and every event that the program raises has a text. docs/reference_pages.py makes the docs of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import p2pfl
from p2pfl.aggregate.likeness import LOOKS_UNLIKE, SENDS_BACK
from p2pfl.core import Alarm
from p2pfl.features import FEATURES
from p2pfl.features.status import BOARD_ALARMS
from p2pfl.node import NOTICES, Feed, alarm_texts
from p2pfl.reporting import BACK, OTHER, alarms

ALARMS = alarm_texts(FEATURES)
PACKAGE = Path(p2pfl.__file__).parent
RAISING = {"on_alarm", "raise_alarm", "_raise_alarm", "alarm", "_alarm", "stand"}
"""Functions whose first argument is the kind of an alarm."""


def raised():
    """Every kind that stands in a call that raises an alarm, in the whole program."""
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not any(name in text for name in (Alarm.__name__, *RAISING)):
            continue
        tree = ast.parse(text)
        constants = {name: value for name, value in vars(alarms).items() if isinstance(value, str)} | {
            target.id: statement.value.value
            for statement in tree.body
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
            for target in statement.targets
            if isinstance(target, ast.Name)
        }
        for call in ast.walk(tree):
            if isinstance(call, ast.Call):
                found |= kinds_in(call, constants)
    return found


def kinds_in(call, constants):
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    given = [keyword.value for keyword in call.keywords if keyword.arg == "kind"] if name == Alarm.__name__ else []
    if name in RAISING:
        given += call.args[:1]
    values = [one.value if isinstance(one, ast.Constant) else constants.get(getattr(one, "id", "")) for one in given]
    return {value for value in values if isinstance(value, str)}


def test_every_kind_that_is_raised_is_described_and_no_other():
    by_condition = {"no-budget", "request-refused", "reply-refused", LOOKS_UNLIKE, SENDS_BACK, *BOARD_ALARMS}
    assert (raised() | by_condition) - NOTICES == set(ALARMS)


@pytest.mark.parametrize("kind", ALARMS)
def test_what_ends_an_alarm_is_something_that_happens(kind):
    ended_by = ALARMS[kind].ended_by
    if ended_by is None:
        return
    sources = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    settled = {*re.findall(r'settle\("([a-z-]+)"', sources), *({BACK} if "settle(BACK" in sources else ())}
    assert ended_by in NOTICES | settled


def test_a_kind_of_another_version_has_a_description_too():
    assert Feed(str).text_of("never-heard-of") is OTHER
