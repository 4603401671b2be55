"""From a spec to a compressor, and what the catalog says about its stages."""

from __future__ import annotations

import pytest

from p2pfl.compress import EXAMPLES, STAGES, allowed, list_stages, require_fit, require_replicas
from p2pfl.compress import make_compressor as build
from p2pfl.errors import UserError


def test_an_unknown_spec_names_the_key_the_reason_and_what_is_allowed():
    with pytest.raises(UserError) as caught:
        build("q8+top-k:0.1")
    assert str(caught.value) == (
        f"gossip.compressor: q8+top-k: top-k comes before q8 (found 'q8+top-k:0.1'); allowed: {allowed()}"
    )


@pytest.mark.parametrize("spec", ["q8:stochastic", "top-k:0.1+rotate+q2:stochastic+zstd"])
def test_an_option_that_is_gone_says_what_to_use(spec):
    with pytest.raises(UserError, match=r"q\d:stochastic is gone: use q\d"):
        build(spec)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (
            "fragment:8+q4",
            "only bf16 may follow fragment, or nothing: there is no replica to keep what a code leaves out",
        ),
        ("fragment:8+zstd", "only bf16 may follow fragment, or nothing"),
        ("fragment", "say how many, as in fragment:8+bf16"),
        ("fragment:0.5", "a whole number from 1 to 4096"),
        ("fragment:5000", "a whole number from 1 to 4096"),
    ],
)
def test_fragments_are_exact_or_without_bias_and_a_whole_number_of_them(spec, reason):
    with pytest.raises(UserError, match="fragment") as caught:
        build(spec)
    assert reason in str(caught.value)


def test_more_fragments_than_values_are_refused():
    with pytest.raises(UserError, match="8 fragments of 7 values"):
        require_fit(build("fragment:8"), 7)


def test_a_robust_rule_is_refused_where_nothing_is_left_of_any_neighbor():
    with pytest.raises(UserError, match="mixes the replicas of all neighbors, and fragments leave none") as caught:
        require_replicas(build("fragment:8"), "hampel")
    assert caught.value.allowed == "a compressor with replicas, such as q4, or gossip.rule = mean"
    require_replicas(build("q4"), "hampel")


@pytest.mark.parametrize("spec", EXAMPLES)
def test_every_example_is_a_contraction_at_every_size(spec):
    assert all(0 < build(spec).delta(size) <= 1 for size in (0, 1, 2, 255, 256, 257, 2410, 10**8))


def test_every_word_of_the_grammar_has_its_line_its_example_and_its_paper():
    words = list(list_stages())
    assert {stage.name for stage, _ in words} == {*STAGES, "none"}
    for stage, source in words:
        assert stage.name in stage.shown
        assert build(stage.shown).spec == stage.shown
        assert len(source) > 5
        assert len(stage.means) < 100


@pytest.mark.parametrize(
    ("spec", "size_bytes"),
    [
        ("none", 400_000_000),
        ("float16", 200_000_000),
        ("q8", 100_000_000 + 4 * 390_625),
        ("q4", 50_000_000 + 4 * 390_625),
        ("random-k:0.01", 8 + 4_000_000),
        ("top-k:0.01", 4_000_000 + (6 * 1_000_000 + 1_000_000 + 1_562_499 + 7) // 8),
        ("top-k:0.5", 200_000_000 + 12_500_000),
        ("top-k:1.0+q8", 100_000_000 + 4 * 390_625),
        ("q8+zstd", 1 + 100_000_000 + 4 * 390_625),
        ("fragment:8+bf16", 8 + 2 * (12_500_000 + 7)),
    ],
)
def test_sizes_of_a_hundred_million_parameters(spec, size_bytes):
    assert build(spec).size_bytes(100_000_000) == size_bytes
