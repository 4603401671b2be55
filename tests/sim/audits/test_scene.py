"""The copy that is attacked has the data that are here, and says what is missing."""

import numpy as np
import pytest
import torch

from p2pfl import Federation
from p2pfl.errors import UserError
from sim import layers_of, scene_of


def saved(folder, **keywords):
    return Federation(**{"task": "digits", "nodes": 6, "topology": "ring"} | keywords).save(folder)


def test_the_copy_is_a_node_and_its_neighbors(tmp_path):
    scene = scene_of(saved(tmp_path / "ward"), node="node3")

    assert [member.name for member in scene.federation.members] == ["node3", "node2", "node4"]
    assert scene.federation.edges == ((0, 1), (0, 2))
    assert "3 of the 6 nodes" in scene.notes[0]
    assert [one.samples for one in scene.learners(scene.federation)] == [len(one.train) for one in scene.data]


def test_where_one_node_alone_is_here_a_neighbor_has_half_of_its_rows(tmp_path):
    folder = table_federation(tmp_path, here=("node1",))

    scene = scene_of(folder)

    assert [member.name for member in scene.federation.members] == ["node1", "others"]
    assert [len(one.train) for one in scene.data] == [10, 10]
    assert "half of its rows" in scene.notes[0]


def test_without_data_it_says_what_is_missing(tmp_path):
    folder = table_federation(tmp_path, here=())

    with pytest.raises(UserError, match=r"the data of any node are not on this machine.*makes none up"):
        scene_of(folder)
    with pytest.raises(UserError, match="the data of node0 are not on this machine"):
        scene_of(table_federation(tmp_path / "other", here=("node1",)), node="node0")


def test_a_task_without_rows_is_refused(tmp_path):
    with pytest.raises(UserError, match="has a learner of its own"):
        scene_of(saved(tmp_path / "bowl", task="quadratic"))


def test_fragments_are_refused_because_whole_models_are_read(tmp_path):
    with pytest.raises(UserError, match="reads whole models, of which fragments show a part at a time"):
        scene_of(saved(tmp_path / "ward", compressor="fragment:2"))


def test_an_unknown_node_is_refused(tmp_path):
    with pytest.raises(UserError, match="no such node"):
        scene_of(saved(tmp_path / "ward"), node="nobody")


def test_a_layer_that_cannot_be_is_left_out_with_the_reason(tmp_path, no_accountant):
    def model():
        return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))

    scene = scene_of(table_federation(tmp_path, here=("node0", "node1")))
    scene = type(scene)(
        federation=scene.federation,
        task=type(scene.task)(name="mixing", model=model, data=scene.task.data),
        data=scene.data,
        victim=0,
    )

    layers = {layer.name: layer for layer in layers_of(scene)}

    assert "BatchNorm" in layers["record, epsilon 8"].missing
    assert layers["member, epsilon 8"].plan.unit == "member"


TASK = """\
import numpy as np, torch
from p2pfl import Task

def data(node):
    table = np.load(node.path())
    return (table["x"], table["y"]), None

task = Task(model=lambda: torch.nn.Linear(4, 2), data=data)
"""


def table_federation(tmp_path, here):
    """Two nodes with a task of their own; the data of those that are `here`."""
    tmp_path.mkdir(exist_ok=True)
    folder = saved(tmp_path / "own", nodes=2)
    (folder / "task.py").write_text(TASK)
    file = folder / "federation.toml"
    file.write_text(file.read_text().replace('name = "digits"', 'name = "task.py:task"'))
    rng = np.random.default_rng(0)
    for name in here:
        np.savez(folder / name / "rows.npz", x=rng.normal(size=(20, 4)), y=np.arange(20) % 2)
        node = folder / name / "node.toml"
        node.write_text(node.read_text().replace("\n[data]", '\n[data]\npath = "rows.npz" #', 1))
    return folder
