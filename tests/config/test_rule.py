"""What a spec of `gossip.rule` may say, and the reasons for refusing others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.aggregate import RULES, ParsedRule, central, liars_of, parse_rule
from p2pfl.config import rule


@pytest.mark.parametrize("name", [name for name in RULES if name != "mean"])
def test_one_liar_is_meant_where_none_is_counted(name):
    assert str(parse_rule(name)) == f"{name}:b=1"
    assert liars_of(name) == 1
    assert parse_rule(f"{name}:b=3").liars == 3


def test_the_mean_bears_no_liar():
    assert liars_of("mean") == 0
    assert parse_rule("mean") == ParsedRule(name="mean")


@pytest.mark.parametrize("name", central())
def test_nnm_stands_before_rules_of_many_vectors(name):
    parsed = parse_rule(f"nnm+{name}:b=2")
    assert (parsed.before, parsed.name, parsed.liars) == ("nnm", name, 2)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("scc:tau=0.50", "scc:b=1,tau=0.5"),
        ("hampel:cut=2,b=1", "hampel:b=1"),
        ("byzfl:TrMean", "byzfl:TrMean,b=1"),
        ("rules/mine.py:Best,b=2", "rules/mine.py:Best,b=2"),
        ("a.b.c:best", "a.b.c:best,b=1"),
    ],
)
def test_there_is_one_spelling_of_each_rule(text, canonical):
    assert str(parse_rule(text)) == canonical
    assert parse_rule(canonical) == parse_rule(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "unknown rule ''"),
        ("Hampl", "did you mean hampel"),
        ("Krum:b=1", "Krum is gone: use byzfl:Krum,b=1, or nnm"),
        ("nnm:b=1", r"did you mean nnm\+trimmed-mean"),
        ("quorum", "there are mean, trimmed-mean"),
        ("mean:b=1", "tolerates no malicious neighbors"),
        ("median:b", "as in b=1"),
        ("median:f=1", "none of its parameters b"),
        ("median:b=1.5", "a whole number from 1"),
        ("median:b=1,b=2", "b appears twice"),
        ("scc:tau=nan", "above 0"),
        ("nnm+cs+:b=1", "nnm stands before one of"),
        ("+median:b=1", "only nnm may stand before a rule"),
        ("my.rules:best,c=1", "none of its parameters b"),
    ],
)
def test_what_is_wrong_is_named(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_rule(text)


@given(st.integers(1, 10**6), st.floats(1e-300, 1e30))
def test_every_number_comes_back_from_its_spelling(b, value):
    parsed = parse_rule(f"scc:b={b},tau={value!r}")
    assert parsed.parameters["tau"] == value
    assert parse_rule(str(parsed)) == parsed


@pytest.mark.parametrize("value", [3, None, ["mean"], True])
def test_a_file_holds_it_as_text(value):
    with pytest.raises(ValueError, match="not a text"):
        rule().read(value)


def test_a_file_may_leave_out_what_is_usual():
    assert rule().read("hampel:cut=2") == "hampel:b=1"
