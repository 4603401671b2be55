"""An attack of a user's own: how it is named, where it is looked for, and what comes of one that is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sights import MODELS, sight

from p2pfl.errors import UserError
from sim import file_of, make_attack, parse_attack, with_absolute_path

SOURCE = """
import numpy as np

def opposite(sight):
    return -sight.victim

class Rising:
    def __init__(self):
        self.told = 0

    def __call__(self, sight):
        self.told += 1
        return np.full_like(sight.own, self.told)

def broken(sight):
    return 1 / 0

def flat(sight):
    return 3.0

def words(sight):
    return ["a", "b"]

number = 7
"""


@pytest.fixture
def lies(tmp_path):
    path = tmp_path / "my@lies.py"
    path.write_text(SOURCE)
    return path


def test_a_function_is_called_with_what_the_liar_sees(lies):
    shown = make_attack(f"{lies}:opposite").tell(sight())
    assert np.array_equal(shown, -MODELS[0])
    assert shown.dtype == MODELS[4].dtype


def test_a_class_is_made_once_and_may_remember(lies):
    attack = make_attack(f"{lies}:Rising")
    assert [attack.tell(sight())[0] for _ in range(3)] == [1, 2, 3]


def test_the_truth_is_told_to_others_in_league(lies):
    assert np.array_equal(make_attack(f"{lies}:opposite").tell(sight(peer=5)), MODELS[4])


def test_it_can_sleep_and_flood(lies):
    sleeper = make_attack(f"sleeper:{lies}:opposite@3")
    assert np.array_equal(sleeper.tell(sight(rounds=2)), MODELS[4])
    assert np.array_equal(sleeper.tell(sight(rounds=3)), -MODELS[0])
    assert sleeper.spec == f"sleeper:{lies}:opposite@3"
    assert make_attack(f"sleeper:{lies}:opposite").spec.endswith("@10")
    assert make_attack(f"flood:{lies}:opposite").flood


def test_a_name_alone_imports_nothing():
    attack = parse_attack("nix.py:lie")
    assert (attack.spec, attack.sees) == ("nix.py:lie", True)
    assert parse_attack("package.module:lie").own.name == "package.module:lie"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nix", "has no 'nix'"),
        ("number", "not an attack: it cannot be called (found "),
    ],
)
def test_what_cannot_be_an_attack_is_refused_before_anything_runs(lies, name, said):
    with pytest.raises(UserError) as refused:
        make_attack(f"{lies}:{name}")
    assert said in str(refused.value)
    assert refused.value.key == "attack"


def test_a_file_or_module_that_is_not_there_is_named():
    with pytest.raises(UserError, match=r"there is no file .*nix\.py"):
        make_attack("nix.py:lie")
    with pytest.raises(UserError, match="there is no module nix"):
        make_attack("nix.da:lie")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", r"the attack failed: ZeroDivisionError.*my@lies\.py, line 16"),
        ("flat", r"the attack returned float64 of shape \(\), not \(4,\)"),
        ("words", r"the attack returned <U1 of shape \(2,\), not \(4,\)"),
    ],
)
def test_a_lie_that_fails_or_is_no_vector_ends_the_run_in_one_line(lies, name, said):
    with pytest.raises(UserError, match=said):
        make_attack(f"{lies}:{name}").tell(sight())


def test_the_path_of_a_file_is_made_absolute_and_nothing_else_changes(tmp_path):
    assert with_absolute_path("lies.py:own", tmp_path) == f"{tmp_path}/lies.py:own"
    assert with_absolute_path("sleeper:a/lies.py:own@5", tmp_path) == f"sleeper:{tmp_path}/a/lies.py:own@5"
    assert with_absolute_path("/x/lies.py:own", tmp_path) == "/x/lies.py:own"
    for spec in ("alie:2", "sleeper:ipm@3", "package.module:lie", "none"):
        assert with_absolute_path(spec, tmp_path) == spec
        assert file_of(spec) is None
    assert file_of("flood:a/lies.py:own") == Path("a/lies.py")
