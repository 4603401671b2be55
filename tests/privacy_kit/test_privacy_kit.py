"""The kit's arithmetic and promises, and one try of it on real processes; `make privacy` makes all tries."""

from __future__ import annotations

import black_box as box
import numpy as np
import pytest
import tries

DOCS = box.KIT.parents[1] / "docs"


def plain(text):
    return " ".join(text.split())


def test_each_promise_is_a_sentence_of_its_page_is_among_the_results_and_its_test_exists():
    known, left = tries.promises()
    results = (DOCS / "explanation" / "privacy-tried.md").read_text(encoding="utf-8")
    for promise in (*known, *left):
        page = plain((DOCS / promise.page).read_text(encoding="utf-8"))
        assert plain(promise.sentence) in page, promise
        assert f"| {promise.name} |" in results, promise.name
        for file, _, test in [word.partition("::") for word in promise.how.split() if "::" in word]:
            assert f"def {test}(" in (DOCS.parent / file).read_text(encoding="utf-8"), promise.name


@pytest.mark.parametrize(("noise", "least", "most"), [(0.0, 4, 5), (1.0, 0.7, 4.4), (50.0, 0.0, 1.0)])
def test_one_run_proves_no_more_than_the_noise_lets_it(noise, least, most):
    """A Gaussian of standard deviation 1 has epsilon 4.38 at delta 1e-5 (Balle and Wang 2018)."""
    chance = np.random.default_rng(3)
    included = chance.random(1000) < 0.5
    proven, _ = box.epsilon_proven(included + noise * chance.normal(size=1000), included, 1e-5, 200)
    assert least <= proven <= most


def test_without_a_budget_the_neighbor_of_a_real_node_finds_its_rows(tmp_path):
    name, kept, figure = next(tries.epsilon(tmp_path))
    assert (name, kept) == ("control: no budget", True), figure
