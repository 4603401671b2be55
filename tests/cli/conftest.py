"""Federations as a user of the command line has them."""

from __future__ import annotations

import pytest

from p2pfl.cli.main import main
from p2pfl.config import load_config, load_node
from p2pfl.core import CommitRound, StartRound
from p2pfl.engine import entry, image
from p2pfl.node import make_engine, read_setup, snapshot_header
from p2pfl.storage import State, Store

TASK = """
import torch
from p2pfl import Task
from p2pfl.learn.digits import load_digits

UNITS = 20


def data(node):
    (inputs, targets), test = load_digits()
    rows = node.partition(targets, "iid")
    return (inputs[rows], targets[rows]), test


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(64, UNITS)
        self.norm = torch.nn.BatchNorm1d(UNITS)
        self.out = torch.nn.Linear(UNITS, 10)
        self.scale = torch.nn.Parameter(torch.ones(UNITS, dtype=torch.bfloat16))
        self.again = self.out

    def forward(self, pixels):
        return self.again(torch.relu(self.norm(self.hidden(pixels))) * self.scale.float())


task = Task(model=Net, data=data)
"""


@pytest.fixture
def ward(p2pfl, tmp_path):
    assert p2pfl("new", "ward", "--nodes", "4").code == 0
    return tmp_path / "ward"


def change(file, right, wrong):
    text = file.read_text(encoding="utf-8")
    assert right in text
    file.write_text(text.replace(right, wrong), encoding="utf-8")


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="session")
def learned(tmp_path_factory):
    """A federation, for reading only, whose node0 was killed after three rounds and whose node1 never ran.

    Its model has integer buffers, a tensor in bfloat16 and one with two names.
    """
    ward = tmp_path_factory.mktemp("learned") / "ward"
    with pytest.raises(SystemExit):
        main(["new", str(ward), "--nodes", "2"])
    (ward / "task.py").write_text(TASK, encoding="utf-8")
    run_rounds(ward, "node0", 3)
    return ward


@pytest.fixture
def trained():
    return run_rounds


def run_rounds(ward, name, rounds):
    """Train alone; the newest snapshot is one round old, the last round is in the log alone."""
    federation = load_config(ward)
    setup = read_setup(federation, load_node(ward / name, federation))
    engine, store = make_engine(setup, None), Store.open(setup.node.state_dir, durability="exchange")
    for index in range(rounds):
        engine.state.local = setup.learner.local_state()
        picture = image(engine.state, with_replicas=True)
        header = picture.header | snapshot_header(setup)
        store.checkpoint(State(header=header, arrays=picture.arrays, blobs=picture.blobs))
        start = engine.begin_round(StartRound(index=0, accompanied=True))
        engine.outcomes.put((start.model, setup.learner.train(start, index)))
        effect = CommitRound(version=index + 1, trained=True, rho=1.0, elapsed_s=0.0, least_samples=0.0)
        store.append(*entry(engine.run(effect).change))
        store.flush()
    store.close()
