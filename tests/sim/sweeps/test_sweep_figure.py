"""The figure of a sweep: which axis is shown how, and that any number of them can be drawn."""

from __future__ import annotations

import itertools
import re

import pytest

from p2pfl.errors import UserError
from sim import across, draw_sweep, estimate

TOPOLOGY = ["ring", "random-regular:degree=4", "complete"]
COMPRESSOR = ["none", "q4"]
CHAINS = [
    *("none", "float16", "q8", "q4", "rotate+q4", "q2", "sign", "rotate+sign", "rotate+q2", "q4+zstd"),
    *("top-k:0.05", "top-k:0.05+q8", "top-k:0.01+q8+zstd", "random-k:0.1", "random-k:0.1+q4", "sign+zstd"),
]


def results_of(axes, *, seeds=3, heights=("accuracy_worst",), without=()):
    rows = []
    for number, chosen in enumerate(itertools.product(*axes.values())):
        metrics = dict.fromkeys(("accuracy_worst", "loss", "consensus_distance"))
        if number not in without:
            metrics |= {
                name: estimate([0.9 - 0.01 * number - 0.001 * seed for seed in range(seeds)]) for name in heights
            }
        metrics["bytes_per_node"] = estimate([1e5 * (number + 1)] * seeds)
        rows.append({"values": dict(zip(axes, chosen, strict=True)), "metrics": metrics, "done": seeds})
    return {"axes": axes, "fixed": {"rounds": 40}, "seeds": list(range(seeds)), "level": 0.95, "rows": rows}


def across_of(**axes):
    return across(axes, results_of(axes)["rows"])


def words(path):
    """What is written in an SVG; its letters are drawn, and each text stands before them in a comment."""
    return re.findall(r"<!-- (.*?) -->", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("axes", "found"),
    [
        ({"compressor": COMPRESSOR, "topology": TOPOLOGY}, (None, True)),
        ({"topology": TOPOLOGY, "nodes": [10, 20, 40]}, ("nodes", True)),
        ({"topology": TOPOLOGY, "byzantine": [0, 2], "rule": ["a", "b"]}, ("topology", False)),
        ({"nodes": [10], "topology": TOPOLOGY}, ("topology", False)),
    ],
)
def test_bytes_go_across_where_the_compressor_is_an_axis_then_numbers_then_the_first_axis(axes, found):
    assert across_of(**axes) == found


def test_too_many_series_for_one_picture_are_refused(tmp_path):
    axes = {"nodes": [10, 20, 40], "rule": [f"rule{index}" for index in range(33)], "byzantine": [0, 1]}
    with pytest.raises(UserError, match="too many series"):
        draw_sweep(results_of(axes), tmp_path / "sweep.svg")


@pytest.mark.long
@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"topology": TOPOLOGY},
        {"nodes": [10, 100, 1000]},
        {"compressor": CHAINS, "nodes": [10, 20, 40]},
        {"share": ["*", "1.*, !*.bias"], "compressor": COMPRESSOR},
    ],
)
def test_any_number_of_axes_can_be_drawn(tmp_path, axes):
    """Of one seed, of two and of three."""
    path, seeds = tmp_path / "sweep.svg", 1 + len(axes) % 3
    draw_sweep(results_of(axes, seeds=seeds), path)
    written = words(path)
    assert any("seed" in text for text in written)
    assert "rounds = 40" in "".join(written)


def test_every_value_of_every_axis_is_named_in_the_picture(tmp_path):
    axes = {"topology": TOPOLOGY, "rule": ["mean", "median"], "attack": ["none", "zero"], "byzantine": [0, 3]}
    draw_sweep(results_of(axes), tmp_path / "sweep.svg")
    written = " ".join(words(tmp_path / "sweep.svg"))
    assert all(str(value) in written for values in axes.values() for value in values)


def test_what_is_missing_is_told(tmp_path):
    draw_sweep(results_of({"topology": TOPOLOGY}, without=(1,)), tmp_path / "sweep.svg")
    assert "1 of 3 combinations without a result" in words(tmp_path / "sweep.svg")


def test_a_task_without_accuracy_is_drawn_by_its_loss(tmp_path):
    draw_sweep(results_of({"topology": TOPOLOGY}, heights=("loss",)), tmp_path / "sweep.svg")
    assert "loss" in words(tmp_path / "sweep.svg")


def test_a_sweep_of_which_nothing_is_done_cannot_be_drawn(tmp_path):
    with pytest.raises(UserError, match="nothing to draw"):
        draw_sweep(results_of({"topology": TOPOLOGY}, without=(0, 1, 2)), tmp_path / "sweep.svg")


def test_the_same_results_are_the_same_bytes(tmp_path):
    for name in ("one.svg", "two.svg"):
        draw_sweep(results_of({"topology": TOPOLOGY, "compressor": COMPRESSOR}), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
