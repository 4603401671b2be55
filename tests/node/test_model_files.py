"""Checkpoints: which rounds have one, how many stay, and what a disk that refuses costs."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from p2pfl.config import TrainingConfig
from p2pfl.learn import NodeContext, QuadraticTask, RoundStart, from_safetensors, metadata_of
from p2pfl.node import LearnerRunner, ModelFiles, Moment


@pytest.fixture
def files(tmp_path):
    context = NodeContext(node=0, nodes=2, name="pi1", seed=0, base_dir=Path())
    learner = QuadraticTask(size=3).learner(context, TrainingConfig())
    folder = tmp_path / "pi1" / "checkpoints"
    return ModelFiles(folder=folder, every=4, kept=2, learner=learner, about={"federation": "ward", "node": "pi1"})


def rounds_of(files):
    return [int(path.stem[-8:]) for path in files.files()]


def test_a_workshop_keeps_the_model_with_which_a_round_begins_and_the_last_one(files):
    shop = LearnerRunner(files.learner, 0, files=files)
    for index in range(11):
        shop.train(RoundStart(np.full(3, index, np.float32)), index)
    assert rounds_of(files) == [4, 8]
    shop.measure(np.full(3, 11, np.float32), Moment(11, 11))
    assert rounds_of(files) == [4, 8], "a test on the way is not the last one"
    shop.measure(np.full(3, 11, np.float32), Moment(11, 11, final=True))
    assert rounds_of(files) == [8, 11]
    content = files.files()[0].read_bytes()
    assert from_safetensors(files.learner, content).tolist() == [8.0] * 3
    assert {key: metadata_of(content)[key] for key in ("federation", "node", "rounds")} == {
        "federation": "ward",
        "node": "pi1",
        "rounds": "8",
    }


def test_other_files_of_the_folder_are_left_alone_and_rounds_are_numbers(files):
    files.folder.mkdir(parents=True)
    (files.folder / "round-mine.safetensors").touch()
    for rounds in (99_999_999, 100_000_000, 100_000_001):
        files.save(np.zeros(3, np.float32), rounds)
    assert [path.name for path in files.files()] == ["round-100000000.safetensors", "round-100000001.safetensors"]
    assert (files.folder / "round-mine.safetensors").exists()
    assert not list(files.folder.glob("*.tmp"))


def test_a_disk_that_refuses_costs_the_file_and_no_round(files, caplog):
    files.folder.parent.mkdir()
    files.folder.touch()
    with caplog.at_level(logging.WARNING, "p2pfl"):
        files.save(np.zeros(3, np.float32), 4)
    assert "no checkpoint after round 4" in caplog.text
