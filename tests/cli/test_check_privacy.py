"""What `p2pfl check` says of noise: in words to decide by, and a warning where next to nothing would be learned."""

from __future__ import annotations

import importlib.util
import json
import re

import pytest

from p2pfl.features.privacy import DEAF, FREE, Loudness

# Not imported here: it takes seconds.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("opacus") is None, reason="the extra privacy")


def ward(p2pfl, tmp_path, privacy, *, nodes=3, rounds=40):
    """Nodes with digits, and this `[privacy]`."""
    assert p2pfl("new", "ward", "--nodes", str(nodes), "--task", "digits").code == 0
    file = tmp_path / "ward" / "federation.toml"
    text = re.sub(r"(?m)^rounds = \d+", f"rounds = {rounds}", file.read_text(encoding="utf-8"))
    file.write_text(f"{text}\n[privacy]\n{privacy}\n", encoding="utf-8")
    return "ward"


def test_the_noise_of_a_step_is_compared_with_what_it_can_learn(p2pfl, tmp_path):
    """DP-SGD: noise * clip * sqrt(d) / rows beside a mean of gradients no longer than the clip."""
    folder = ward(p2pfl, tmp_path, "noise = 2.0\ndelta = 1e-4\nclip = 0.5")
    report = json.loads(p2pfl("check", folder, "--format", "json").out)
    steps, of_a_step = report["privacy"]["nodes"][0]["steps"], 2.0 * report["traffic"]["parameters"] ** 0.5 / 16
    said = f"{of_a_step:.2g} times the signal in one step, {of_a_step / (steps * 3) ** 0.5:.2g} times over all"
    assert said in report["privacy"]["noise_in_words"]
    assert not [text for text in report["warnings"] if "little will be learned" in text]


def test_noise_that_drowns_everything_is_warned_of(p2pfl, tmp_path):
    folder = ward(p2pfl, tmp_path, "noise = 20.0\ndelta = 1e-4", rounds=3)
    report = json.loads(p2pfl("check", folder, "--format", "json").out)
    (text,) = [text for text in report["warnings"] if "little will be learned" in text]
    assert "rule of thumb" in text


def test_a_whole_member_hides_behind_one_noise_a_round(p2pfl, tmp_path):
    folder = ward(p2pfl, tmp_path, 'unit = "member"\nepsilon = 8\ndelta = 1e-2')
    report = json.loads(p2pfl("check", folder, "--format", "json").out)
    node = report["privacy"]["nodes"][0]
    of_a_step = node["noise"] * report["traffic"]["parameters"] ** 0.5
    assert f"{of_a_step:.2g} times the signal in one step" in report["privacy"]["noise_in_words"]
    assert [text for text in report["warnings"] if "little will be learned" in text]


@pytest.mark.parametrize(
    ("ratio", "steps", "nodes", "kept"),
    [
        # (noise of a step beside its signal, steps, nodes, the share of the accuracy that is left):
        # docs/how-to/simulate.md, eight nodes with 180 digits, complete;
        # docs/explanation/privacy.md, sixteen with 90 digits and with 3,750 of MNIST
        (4.76, 800, 8, 0.95),
        (9.83, 800, 8, 0.90),
        (25.05, 800, 8, 0.67),
        (6.39, 400, 16, 0.91),
        (13.71, 400, 16, 0.76),
        (35.33, 400, 16, 0.26),
        (3.84, 400, 16, 0.99),
        (89.8, 20, 16, 0.10),
        (292.0, 20, 16, 0.08),
    ],
)
def test_the_rule_of_thumb_is_what_the_guides_have_measured(ratio, steps, nodes, kept):
    over = Loudness(of_a_step=ratio, steps=steps, nodes=nodes).of_the_run
    assert (over > DEAF) == (kept < 0.7)
    assert (over > FREE) == (kept < 0.96)
