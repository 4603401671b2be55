"""Which tensors `[gossip] share` selects, and what a pattern that does not fit is told."""

from __future__ import annotations

import pytest

from p2pfl.errors import UserError
from p2pfl.learn import shared_names

NAMES = {name: [name] for name in ("neck.weight", "backbone.0.weight", "backbone.0.bias", "head.weight", "head.bias")}
TIED = {"encode.weight": ["encode.weight", "decode.weight"], "decode.bias": ["decode.bias"]}


@pytest.mark.parametrize(
    ("patterns", "shared"),
    [
        (("*",), list(NAMES)),
        (("backbone.*",), ["backbone.0.weight", "backbone.0.bias"]),
        (("*.bias", "neck.weight"), ["neck.weight", "backbone.0.bias", "head.bias"]),
        (("head.?ias", "head.[uvw]*"), ["head.weight", "head.bias"]),
        (("*", "!head.*"), ["neck.weight", "backbone.0.weight", "backbone.0.bias"]),
        (("!head.*",), ["neck.weight", "backbone.0.weight", "backbone.0.bias"]),
        (("!*.bias", "head.*"), ["head.weight"]),
    ],
)
def test_what_matches_is_shared_in_the_order_of_the_model_whatever_that_of_the_patterns(patterns, shared):
    assert shared_names(NAMES, patterns) == shared
    assert shared_names(NAMES, patterns[::-1]) == shared


@pytest.mark.parametrize(
    ("patterns", "shared"),
    [
        (("encode.*",), ["encode.weight"]),
        (("decode.*",), ["encode.weight", "decode.bias"]),
        (("decode.weight",), ["encode.weight"]),
        (("!encode.*",), ["decode.bias"]),
        (("*", "!decode.weight"), ["decode.bias"]),
    ],
)
def test_any_name_of_a_tied_tensor_counts(patterns, shared):
    assert shared_names(TIED, patterns) == shared


@pytest.mark.parametrize("wrong", ["tail.*", "Head.*", "!tail.*", "head", "!", ""])
def test_each_pattern_must_match_something(wrong):
    with pytest.raises(UserError) as caught:
        shared_names(NAMES, ("head.*", wrong))
    assert (caught.value.key, caught.value.value) == ("gossip.share", wrong)
    assert caught.value.allowed == ", ".join(NAMES)


@pytest.mark.parametrize("patterns", [("head.*", "!head.*"), ("!*",)])
def test_something_must_be_left_to_share(patterns):
    with pytest.raises(UserError, match="no tensor is left to share") as caught:
        shared_names(NAMES, patterns)
    assert caught.value.value == ", ".join(patterns)


def told(names):
    with pytest.raises(UserError) as caught:
        shared_names({name: [name] for name in names}, ("nothing",))
    return caught.value.allowed


def test_of_many_names_the_error_shows_how_they_begin():
    layers = [f"model.encoder.{layer}.{kind}" for layer in range(40) for kind in ("weight", "bias")]
    assert told([*layers, "model.head.weight", "model.head.bias", "model.scale"]) == (
        "model.encoder.* (80 tensors), model.head.* (2 tensors), model.scale"
    )


def test_of_many_beginnings_the_error_counts_those_that_it_leaves_out():
    text = told([f"layer{number:02}.{kind}" for number in range(15) for kind in ("weight", "bias")])
    assert text.startswith("layer00.* (2 tensors), layer01.*")
    assert text.endswith("layer11.* (2 tensors), and 3 more")


def test_many_names_without_a_dot_are_shortened_too():
    assert told([f"w{number}" for number in range(20)]).endswith("w11, and 8 more")
