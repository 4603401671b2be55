"""decentralizepy, from a clone at the pinned commit: eight processes that average models with neighbors, in step.

DECENTRALIZEPY names the clone. The search, rounds to .9 on shards:2, averaging alone, the weights and split of seed 0,
2,000 steps at most (steps a round, rate: rounds), all joined to all: 10, .2: 30; .4: 19; .8: 20; 20, .2: 27; .4: 14;
.8: 16; 50, .2: 22; .4: 13; .8: 17; 100, .2: 19; .4: 14; .8: 11. In decentralizepy, s after start to .9, CPU-s, rounds,
MB, at a load of 7 to 16: all to all at .4, 20 steps: .9, 6.8, 16, 9.8; 50: 1.3, 6.3, 13, 7.4; 20 and a random half of
the parameters: 13.3, 27.8, 121, 56; random neighbors, four each: 3.5, 10.8, 68, 28; ring: 14.0, 28.0, 170, 47;
epidemic, three receivers: 3.0, 9.9, 58, 17; the same with a timeout of .2 s: 12.3, 9.4, 51, 13; all to all, 12 bits of
fpzip, at a load of 31: 12.9, 9.6, 30, 5.1; 16 bits: not seen to end. Its Quantization does not restore what it was
given. D-PSGD waits for every neighbor; of its nodes EL_Local_Timeout alone does not. Each node tests after each round
up to the 49th, then after each second. Turned off: plots of the loss on the training rows.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("MPLCONFIGDIR", sys.prefix)  # else matplotlib looks for fonts at each start

import torch._dynamo  # noqa: F401 - once before the forks: else each node loads it at its first step
from common import CELL, evaluate, make_model, train

# typed
from decentralizepy.datasets.Dataset import Dataset
from decentralizepy.graphs.FullyConnected import FullyConnected

# end
from decentralizepy.graphs.Regular import Regular
from decentralizepy.graphs.Ring import Ring

# typed
from decentralizepy.mappings.Linear import Linear
from decentralizepy.models.Model import Model
from decentralizepy.training.Training import Training
from torch import multiprocessing as mp

# end

PINS = ["decentralizepy@a5d46be", "torch"]
CELLS = {
    "complete": {"graph": "complete", "rate": 0.4, "limit_s": 90.0, "mnist": {"steps": 20}},
    "epidemic": {"way": "EL_Local", "graph": "complete", "degree": 3, "rate": 0.4, "mnist": {"steps": 20}},
    "timeout": {"way": "EL_Local_Timeout", "graph": "complete", "degree": 3, "timeout": 0.2, "rate": 0.4},
}
SEARCH = [
    ("complete", {"graph": "complete", "rate": 0.4, "sharing": "SubSampling", "options": {"alpha": 0.5}}),
    ("complete", {"graph": "complete", "rate": 0.4, "steps": 50, "limit_s": 90.0}),
    ("complete", {"graph": "complete", "rate": 0.4, "lossy": "EliasFpzipLossy", "options": {"float_precision": 16}}),
    ("complete", {"graph": "complete", "rate": 0.4, "lossy": "EliasFpzipLossy", "options": {"float_precision": 12}}),
    ("regular", {"graph": "regular", "degree": 4, "rate": 0.4, "limit_s": 90.0}),
    ("ring", {"graph": "ring", "rate": 0.4}),
]


# typed
class Rows(Dataset):
    def get_testset(self) -> Any:
        return None

    def test(self, model: Any, _loss: Any) -> tuple[float, float]:
        return evaluate(model.layers, self.uid), 0.0


class Net(Model):
    def __init__(self) -> None:
        super().__init__()
        self.layers = make_model()


class Steps(Training):
    def train(self, _dataset: Any) -> None:
        train(self.model.layers, self.mapping.get_uid(self.rank, self.machine_id))


# end


def graph(nodes: int) -> Any:
    kind, degree = CELL["graph"], CELL.get("degree", 0)
    # typed
    made = {"ring": Ring, "complete": FullyConnected}[kind](nodes) if kind != "regular" else Regular(nodes, degree, 0)
    # end
    made.adj_list = [sorted(each) for each in made.adj_list]  # since Python 3.11 random.sample takes no set
    return made


def main() -> None:
    nodes, way = CELL["nodes"], CELL.get("way", "DPSGDNode")
    Path("ip.json").write_text('{"0": "127.0.0.1"}')
    module = f"decentralizepy.node.{'' if way == 'DPSGDNode' else 'EpidemicLearning.'}{way}"
    share = CELL.get("sharing", "PlainAverageSharing" if way != "DPSGDNode" else "Sharing")
    sharing = {"sharing_package": f"decentralizepy.sharing.{share}", "sharing_class": share} | CELL.get("options", {})
    if lossy := CELL.get("lossy"):
        sharing |= {"compress": True, "compression_package": f"decentralizepy.compression.{lossy}"}
        sharing |= {"compression_class": lossy}
    # typed
    config = {
        "DATASET": {"dataset_package": "decentralize", "dataset_class": "Rows", "model_class": "Net", "test_dir": "."},
        "OPTIMIZER_PARAMS": {"optimizer_package": "torch.optim", "optimizer_class": "SGD", "lr": CELL["rate"]},
        "TRAIN_PARAMS": {"training_package": "decentralize", "training_class": "Steps", "rounds": CELL["steps"]},
        "COMMUNICATION": {"comm_package": "decentralizepy.communication.TCP", "comm_class": "TCP"},
        "SHARING": sharing,
        "NODE": {"graph_degree": CELL.get("degree", 0), "timeout": CELL.get("timeout", 1)},
    }
    config["TRAIN_PARAMS"] |= {"loss_package": "torch.nn", "loss_class": "CrossEntropyLoss"}
    config["COMMUNICATION"] |= {"addresses_filepath": "ip.json"}
    node, mapping = getattr(importlib.import_module(module), way.removesuffix("_Timeout")), Linear(1, nodes)
    rest = [mapping, graph(nodes), config, CELL["rounds"], ".", ".", 20, 1, CELL["rounds"] + 1, 0]
    processes = [mp.Process(target=node, args=[rank, 0, *rest]) for rank in range(nodes)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    # end


# typed
# $ write ip.json: one line
# $ python decentralize.py
# end

if __name__ == "__main__":
    importlib.import_module("decentralize").main()
