"""The text that names an attack: what is one, what is none, and that the list tells all."""

from __future__ import annotations

import pytest

from sim import ALLOWED_ATTACKS, ATTACKS, parse_attack


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_every_attack_can_be_written_as_its_usage_says_and_has_a_source(name):
    entry = ATTACKS[name]
    written = {"flood": ["nan"], "sleeper": ["nan", "nan@3"]}.get(name, ["0.5"] * len(entry.parameters))
    for told in written:
        assert parse_attack(f"{name}:{told}").spec.startswith(f"{name}:{told}")
    if "[:" in entry.usage or not written:
        assert parse_attack(name).spec == name
    else:
        with pytest.raises(ValueError):
            parse_attack(name)
    assert entry.usage in ALLOWED_ATTACKS
    assert all((entry.shows, entry.source, entry.knows))


def test_what_is_left_out_has_its_default():
    assert parse_attack("sleeper:ipm").spec == "sleeper:ipm@10"
    assert parse_attack("flood:nan").refused
    assert parse_attack("sleeper:nan").refused
    assert parse_attack("flood:alie").sees


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("alei", "no such attack; did you mean alie?"),
        ("quatsch", "no such attack"),
        ("mimic:1", "mimic takes no parameter"),
        ("ipm:-1", "attack ipm: write ipm[:EPS], EPS a number above 0 up to 1e+06"),
        ("alie:x", "attack alie: write alie[:Z], Z a number from -1e+06 up to 1e+06"),
        ("noise", "attack noise: write noise:SIGMA, SIGMA a number above 0 up to 1e+06"),
        ("sleeper", "a sleeper has to have a lie"),
        ("sleeper:nan@0", "ROUNDS of sleeper: write a whole number from 1 to 1000000"),
        ("sleeper:nan@x", "ROUNDS of sleeper: write a whole number from 1 to 1000000"),
        ("sleeper:label-flip", "sleeper cannot be made of label-flip"),
        ("flood:nan@3", "flood: write flood[:LIE]"),
        ("zero", "zero is gone: use sign-flip, or your own: docs/how-to/liars.md"),
        ("flood:alei", "no such attack; did you mean alie?"),
    ],
)
def test_a_mistake_says_what_is_wrong(text, said):
    with pytest.raises(ValueError) as refused:
        parse_attack(text)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    "text",
    [
        *("", "sign_flip", "flip", "sign-flip:", "sign-flip:0", "sign-flip:-1", "sign-flip:x", "sign-flip:nan"),
        *("backdoor:0", "backdoor:inf", "sleeper", "sleeper:", "sleeper:nothing", "sleeper:nan@", "sleeper:nan@0"),
        *("sleeper:nan@-1", "sleeper:nan@1.5", "sleeper:nan@10000000", "sleeper:sleeper:nan", "sleeper:flood"),
        "nan@3",
        *(3, None, ["nan"]),
    ],
)
def test_what_names_no_attack_is_refused(text):
    with pytest.raises(ValueError):
        parse_attack(text)
