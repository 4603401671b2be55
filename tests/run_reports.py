"""Reports of runs as they stand in files, for whoever draws or reads them."""

from __future__ import annotations

SPREAD = {"mean": 0.5, "min": 0.25, "max": 0.75}
REFERENCE = {
    "centralized": {"one_node": {"accuracy": 0.9, "loss": 0.1}, "all_nodes": {"accuracy": 0.95, "loss": 0.05}},
    "fedavg": {
        "accuracy": 0.8,
        "loss": 0.3,
        "history": [
            {"rounds": 1, "bytes_sent": 100, "accuracy": 0.4},
            {"rounds": 2, "bytes_sent": 200, "accuracy": 0.8},
        ],
    },
}


def point(time_s, **figures):
    usual = {"rounds": SPREAD, "accuracy": SPREAD, "loss": SPREAD, "consensus_distance": 0.1, "bytes_sent": 400}
    return {"time_s": time_s, **usual, **figures}


def report(history=(), **more):
    nodes = [{"name": "a"}, {"name": "b"}]
    given = {"nodes": nodes, "topology": "ring", "config": {"federation": "ward"}, "simulated": True}
    return given | {"history": list(history)} | more
