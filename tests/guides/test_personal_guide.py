"""docs/how-to/personal-layers.md: its tasks run, with heads that are fine-tuned and adapters over a frozen model."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from p2pfl.config import TaskConfig, TrainingConfig
from p2pfl.learn import RoundStart, make_learner

TEXT = (Path(__file__).parents[2] / "docs/how-to/personal-layers.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE))


@pytest.fixture
def learner(tmp_path):
    """The learner of node 1 of four, of the page's task in this file."""

    def make(file, share, **settings):
        (tmp_path / file).write_text(BLOCKS[file], encoding="utf-8")
        training = TrainingConfig(**{"rounds": 3, "local_steps": 20, "batch_size": 16, "learning_rate": 0.2} | settings)
        place = {"node_index": 1, "node_count": 4, "node_name": "n1", "seed": 0, "base_dir": tmp_path}
        where = {"local": {}, "local_dir": tmp_path, "share": (share,)}
        return make_learner(TaskConfig(name=f"{file}:task"), training, **place, **where)

    return make


def trained(learner, rounds):
    model = learner.initial()
    for index in range(rounds):
        model = learner.train(RoundStart(model), index).vector
    return model


def test_a_head_is_fine_tuned_under_a_backbone_that_stays(learner):
    made = learner("task.py", "backbone.*")
    model = trained(made, 3)
    before, heads, kept = made.evaluate(model, "local"), made.local_state(), model.copy()
    tuned = made.finetune(model, 5)
    np.testing.assert_array_equal(tuned, kept)
    np.testing.assert_array_equal(made.model.flat.vector(), kept, "the heads were tuned to another backbone")
    assert made.evaluate(tuned, "local").loss < before.loss
    assert any((made.local_state()[name] != head).any() for name, head in heads.items())


def test_where_everything_is_shared_the_whole_model_is_fine_tuned(learner):
    made = learner("task.py", "*")
    model = trained(made, 1)
    tuned = made.finetune(model, 5)
    assert (tuned != model).any()
    assert made.evaluate(tuned, "local").loss < made.evaluate(model, "local").loss
    np.testing.assert_array_equal(made.finetune(model, 5), tuned)


def test_of_a_large_frozen_model_only_adapters_are_learned_and_sent(learner):
    made = learner("adapters.py", "*.lora_*", optimizer="adam", learning_rate=0.01)
    assert f"{made.size:,} values of {made.size + made.personal:,}" in TEXT
    model = trained(made, 5)
    assert made.local_state() == {}, "the frozen layers are the task's, and are not kept again"
    assert (made.finetune(model, 1) != model).any(), "nothing that it keeps to itself is trained"
    assert made.evaluate(model, "test").accuracy > 0.5 > made.evaluate(made.initial(), "test").accuracy
