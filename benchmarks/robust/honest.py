"""What closing rounds that train, momentum and an adjusted loss cost the honest: accuracy, calibration, distance.

    python benchmarks/robust/honest.py            # 20 nodes of degree 6, digits, in step, two seeds: some ten minutes

Each line: rule, partition, what was set, rounds before closing (10 closing rounds follow); then mean and worst node's
accuracy, mean negative log-likelihood and expected calibration error (ten bins) on the test set, and how far the models
end apart.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sim.learning.nodes import load_learners
from sim.simulation import simulate
from sim.sweeps.job import build, make_job

WAYS = (
    (30, {}),
    (40, {}),
    (30, {"closing": "train"}),
    (40, {"momentum": 0.5}),
    (30, {"closing": "train", "momentum": 0.5}),
    (30, {"closing": "train", "momentum": 0.5, "logit_adjust": 1.0}),
)
BINS = 10


def figures(options: dict[str, Any], seed: int) -> NDArray[np.float64]:
    """Return accuracy (mean, worst), negative log-likelihood, calibration error and distance of one run."""
    federation, world = build(make_job(options | {"arrays": True, "clock": "in-step"}, seed))
    kept: list[NDArray[Any]] = []
    report = simulate(federation, world=world, arrays=True, clock="in-step", on_models=kept.append)
    learner: Any = load_learners(federation)[0]
    inputs, targets = learner.test_set.inputs, learner.test_set.targets
    rows = []
    for model in kept[0]:
        learner.model.flat.load(model)
        with torch.no_grad():
            shares = learner.model.module.eval()(inputs).softmax(1)
        right = shares.argmax(1) == targets
        likelihood = -shares[torch.arange(len(targets)), targets].clamp_min(1e-9).log().mean()
        rows.append((float(right.float().mean()), float(likelihood), calibration_error(shares, right)))
    table = np.array(rows)
    accuracy, likelihoods, errors = table.T
    return np.array([accuracy.mean(), accuracy.min(), likelihoods.mean(), errors.mean(), report.consensus_distance])


def calibration_error(shares: torch.Tensor, right: torch.Tensor) -> float:
    """Return the mean distance of confidence and accuracy over bins of confidence, weighted by their rows."""
    sure, hits = shares.max(1).values.numpy(), right.numpy()
    places = np.minimum((sure * BINS).astype(int), BINS - 1)
    parts = [places == place for place in np.unique(places)]
    return float(sum(part.mean() * abs(sure[part].mean() - hits[part].mean()) for part in parts))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=2)
    seeds = arguments.parse_args().seeds
    torch.set_num_threads(1)
    for rule in ("hampel:b=1", "mean"):
        for partition in ("iid", "dirichlet:0.5", "shards:2"):
            for rounds, way in WAYS:
                options = {"nodes": 20, "topology": "random-regular:degree=6", "partition": partition, "rule": rule}
                options |= {"rounds": rounds, "closing_rounds": 10, **way}
                means = np.mean([figures(options, seed) for seed in range(seeds)], axis=0)
                words = "acc {:.3f} worst {:.3f} nll {:.3f} ece {:.3f} apart {:.2g}".format(*means)
                print(rule, partition, way or "plain", rounds, words, flush=True)


if __name__ == "__main__":
    main()
