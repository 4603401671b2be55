"""What a spec of `gossip.compressor` may say, and the reasons for refusing others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.compress import STAGES, Chain, parse
from p2pfl.config import compressor

values = st.sampled_from(["float32", "float16", "sign", "q8", "q4", "q2"])
fractions = st.floats(0, 1, exclude_min=True).filter(lambda x: x >= 1e-15).map(lambda x: round(x, 15) or 1.0)


@st.composite
def chains(draw):
    code = draw(values)
    sparsifier = draw(st.sampled_from(["", "top-k", "random-k"]))
    return Chain(
        sparsifier=sparsifier,
        keep=draw(fractions | st.integers(1, 10**12)) if sparsifier else 1.0,
        rotate=draw(st.booleans()) and code not in ("float32", "float16"),
        values=code,
        zstd=draw(st.booleans()),
    )


@given(chains())
def test_every_chain_is_read_back_from_its_canonical_spelling(chain):
    assert parse(str(chain)) == chain
    assert compressor().read(str(chain)) == str(chain)


@pytest.mark.parametrize(
    ("spelled", "canonical"),
    [
        ("top-k:.05", "top-k:0.05"),
        ("top-k:0.0500+q8", "top-k:0.05+q8"),
        ("random-k:007", "random-k:7"),
        ("top-k:0.00001", "top-k:0.00001"),
    ],
)
def test_one_chain_has_one_canonical_spelling(spelled, canonical):
    assert compressor().read(spelled) == canonical


REASONS = {
    "": "an empty stage: stages are joined by one '+' each",
    "q3": f"unknown stage 'q3': there are {', '.join(STAGES)}",
    "Q8": "unknown stage 'Q8': did you mean q8?",
    "drive": "unknown stage 'drive': did you mean rotate+sign?",
    "none+q8": "none: it stands alone, and the values of a chain stay float32 where no word changes them",
    "q8+q8": "q8: the stage is given twice",
    "q8+q4": "q8+q4: each is a code for the values, and a chain has only one",
    "top-k:0.1+random-k:0.1": "top-k+random-k: each is a sparsifier, and a chain has only one",
    "q8+top-k:0.1": "q8+top-k: top-k comes before q8",
    "rotate": "rotate needs q8, q4, q2 or sign after it",
    "q8:nearest": "q8:nearest: q8 takes no option",
    "q4:stochastic": "q4:stochastic is gone: use q4; error feedback makes up for what rounding leaves",
    "top-k": "top-k: say how many values to keep, as in top-k:0.05 or top-k:1000",
    "top-k:0": "top-k:0: a count lies from 1 to 1000000000000",
    "top-k:1.5": "top-k:1.5: a fraction lies in (0, 1]",
}


@pytest.mark.parametrize("spec", REASONS)
def test_a_refusal_names_the_stage_and_what_would_be_right(spec):
    with pytest.raises(ValueError) as caught:
        compressor().read(spec)
    assert str(caught.value) == REASONS[spec]


@pytest.mark.parametrize(
    "number", ["nan", "inf", "-1", "-0.1", "1e-3", "0x10", "5%", "\u0663", "9" * 30, "0.1.2", " 5"]
)
def test_what_is_no_plain_number_is_refused(number):
    with pytest.raises(ValueError, match=r"write a fraction in \(0, 1\] like 0.05, or a whole number from 1$"):
        parse(f"top-k:{number}")


@pytest.mark.parametrize("value", [None, 8, 0.5, ["q8"], {"q8": 1}])
def test_what_is_no_text_is_refused(value):
    with pytest.raises(ValueError, match="not a text"):
        compressor().read(value)
