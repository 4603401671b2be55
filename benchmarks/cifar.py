"""CIFAR-10 on 96 nodes, the field's own task: accuracy of the nodes and of their mean against rounds and bytes.

    P2PFL_DATA=/data python benchmarks/cifar.py --out FOLDER              # resumes where it was
    python benchmarks/cifar.py --out FOLDER --table --plot cifar.png      # from the files alone

GN-LeNet (89,834 parameters; Hsieh et al. 2020, arXiv 1910.00189), 5 steps of SGD on 8 images a round, no compressor but
fragments, all nodes in step, as arrays (`sim.arrays`). Each run is a JSON file. All systems of a split are taken a
slice of rounds further in turn, so that what a shorter run leaves can be compared. The folder `cifar10` has train.npz
and test.npz: the JPEG files one after another (`jpeg`), where each ends (`ends`) and `labels`.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import itertools
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from p2pfl import Task
from p2pfl.config.model import TaskConfig
from p2pfl.learn.task import NodeContext, Pair
from p2pfl.learn.tensors import TensorSamples
from sim.arrays.run import Together
from sim.arrays.setting import setting_of
from sim.federations import describe
from sim.learning.rounds import Rounds
from sim.worlds.model import WorldSpec

NODES, STEPS, ROWS, EVERY = 96, 5, 8, 20
SYSTEMS = {
    "static": ("random-regular:degree=7", "none"),
    "each-round": ("random-regular-each-round:degree=7,rounds=8", "none"),
    "base": ("base:k=1", "none"),
    "matchings": ("random-matchings:rounds=8", "none"),
    "fragments": ("random-regular:degree=7", "fragment:8"),
    "complete": ("complete", "none"),
    "one-peer": ("one-peer-exponential", "none"),
}
SPLITS = ("shards:2", "dirichlet:0.1")
HEADS = ("seeds", "nodes, mean", "worst", "mean model", "MB a node", "apart")
NODES_TESTED, IMAGES_ON_THE_WAY, IMAGES, IMAGES_OF_MEAN = 16, 500, 1_000, 2_000
"""On the way so many nodes are tested, on the first 500 images; at the end all, on 1,000; the mean model on 2,000."""


def gn_lenet() -> nn.Sequential:
    """Build the network: images (b, 3, 32, 32) to ten outputs (b, 10)."""
    parts: list[nn.Module] = []
    for before, channels in ((3, 32), (32, 32), (32, 64)):
        parts += [nn.Conv2d(before, channels, 5, padding=2), nn.MaxPool2d(2), nn.GroupNorm(2, channels), nn.ReLU()]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(64 * 4 * 4, 10))


def cifar(*, path: str, partition: str, tested: int | None = None) -> Task:
    """Build the task, with the first `tested` images of the test set."""

    def data(node: NodeContext) -> tuple[Pair, Pair]:
        train, rows = Path(path) / "train.npz", range(tested) if tested else None
        own = node.own_rows(np.load(train)["labels"], partition)
        return images_of(train, tuple(own)), images_of(Path(path) / "test.npz", rows)

    return Task(name="cifar", model=gn_lenet, data=data)


@cache
def images_of(file: Path, rows: Sequence[int] | None) -> tuple[Tensor, Tensor]:
    """Return images (n, 3, 32, 32) float32 in [-1, 1] and labels (n,) int64, of these rows, or of all."""
    from PIL import Image  # noqa: PLC0415 - it comes with matplotlib

    jpeg, ends, labels = (np.load(file)[name] for name in ("jpeg", "ends", "labels"))
    kept, begins = np.arange(len(ends)) if rows is None else np.array(rows), np.append(0, ends)
    images = np.empty((len(kept), 32, 32, 3), np.uint8)
    for number, row in enumerate(kept):
        raw = jpeg[begins[row] : ends[row]].tobytes()
        images[number] = Image.open(io.BytesIO(raw)).convert("RGB")
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    return pixels.float().div_(127.5).sub_(1.0), torch.from_numpy(labels[kept].astype(np.int64))


def go_on(asked: argparse.Namespace, split: str, goal: int, seed: int, system: str) -> str:
    """Take a run up to `goal` rounds, from where its files are; return a line about it."""
    record = {"system": system, "split": split, "seed": seed, "rate": asked.rate, "points": []}
    file = asked.out / f"{split.replace(':', '-')}.{system}.{seed}.json"
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        point = go_on_alone(asked, goal, json.loads(file.read_text()) if file.exists() else record, file)
    return f"{file.name}: {point['round']} rounds, {point['mean']:.3f}"


def go_on_alone(asked: argparse.Namespace, goal: int, record: dict[str, Any], file: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    points, kept = record["points"], file.with_suffix(".pt")
    done = points[-1]["round"] if points else 0
    if done > goal or (done == goal and goal < asked.rounds):
        return points[-1]
    graph: dict[str, Any] = dict(zip(("topology", "compressor"), SYSTEMS[record["system"]], strict=True))
    federation = describe(nodes=NODES, method="plain", seed=record["seed"], directed=True, **graph)
    training = replace(federation.training, local_steps=STEPS, batch_size=ROWS, learning_rate=record["rate"])
    task = TaskConfig(name="cifar", options={"path": str(asked.data), "partition": record["split"]}, given=cifar)
    federation = replace(federation, training=training, task=task)
    setting = setting_of(federation, WorldSpec(), None, clock="in-step", device=asked.device)
    rounds = Rounds(setting.grouped, setting.method, setting.device)
    together = Together(setting, rounds)
    stage, learner, record["training"] = together.stage, setting.learners[0], rounds.how
    if done:
        stage.x = torch.load(kept, map_location=setting.device)
    size = 4 * setting.size if setting.compressor is None else setting.compressor.size_bytes(setting.size)
    began = time.process_time()
    for number in stage.run(goal, 0, first=done):
        if number % EVERY and number < goal:
            continue
        together.done, mean = number, stage.x.mean(dim=0)
        point = {"round": number, "cpu_s": time.process_time() - began, "loss": float(rounds.losses.mean())}
        point["megabytes"] = int(np.sum(together.messages)) * size / NODES / 1e6
        point["distance"] = float((stage.x - mean).norm(dim=1).mean())
        point["mean_model"] = tested(learner, mean, IMAGES_OF_MEAN)
        points.append(point | nodes_tested(learner, stage.x[:: NODES // NODES_TESTED], IMAGES_ON_THE_WAY))
        torch.save(stage.x, kept.with_suffix(".new"))
        kept.with_suffix(".new").replace(kept)
        file.write_text(json.dumps(record, indent=1))
        began = time.process_time()
    if goal == asked.rounds and points[-1]["tested"] < NODES:
        points[-1] |= nodes_tested(learner, stage.x, IMAGES)
        file.write_text(json.dumps(record, indent=1))
    return points[-1]


def nodes_tested(learner: Any, models: Tensor, images: int) -> dict[str, float]:
    hits = [tested(learner, model, images) for model in models]
    return {"mean": float(np.mean(hits)), "worst": min(hits), "tested": len(hits)}


def tested(learner: Any, model: Tensor, images: int) -> float:
    """Return the accuracy of a model (d,) on the first `images` of the test set."""
    few = TensorSamples(learner.test_set.inputs[:images], learner.test_set.targets[:images])
    learner = learner.at_node(learner.context, learner.train_set, few)
    return float(learner.evaluate(model.cpu().numpy(), "test").accuracy)


def table(out: Path) -> str:
    """Return the tables in Markdown: all runs of a split at the last round that all of them have."""
    lines = []
    for split, runs in by_split(out).items():
        common = min(run["points"][-1]["round"] for run in runs)
        lines += [f"| {' | '.join((f'{split}, {common} rounds', *HEADS))} |", "| --- " * (len(HEADS) + 1) + "|"]
        for system in SYSTEMS:
            last = [p for run in runs if run["system"] == system for p in run["points"] if p["round"] == common]
            if last:
                mean = {key: float(np.mean([point[key] for point in last])) for key in last[0]}
                cells = *(f"{mean[key]:.3f}" for key in ("mean", "worst", "mean_model")), f"{mean['megabytes']:,.0f}"
                cells = system, str(len(last)), *cells, f"{mean['distance']:.2f}"
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def by_split(out: Path) -> dict[str, list[dict[str, Any]]]:
    runs = [json.loads(file.read_text()) for file in sorted(out.glob("*.json"))]
    return {split: kept for split in SPLITS if (kept := [run for run in runs if run["split"] == split])}


def picture(out: Path, file: Path) -> None:
    """Draw the nodes' mean accuracy and, dashed, the mean model's, against rounds and bytes."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import

    splits = by_split(out)
    figure = Figure(figsize=(11, 4 * len(splits)), layout="tight")
    rows = figure.subplots(len(splits), 2, squeeze=False, sharey="row")
    for (split, runs), row in zip(splits.items(), rows, strict=True):
        row[0].set(xlabel="rounds", ylabel="accuracy (dashed: mean model)", title=split)
        row[1].set(xlabel="MB sent by a node", xscale="log", title=split)
        for axis, key, run in itertools.product(row, ("round", "megabytes"), runs):
            if (axis is row[0]) == (key == "round"):
                points, color = run["points"], f"C{list(SYSTEMS).index(run['system'])}"
                for which, dashes in (("mean", "-"), ("mean_model", "--")):
                    name = run["system"] if which == "mean" and run["seed"] == 0 else None
                    axis.plot(
                        *([point[each] for point in points] for each in (key, which)), dashes, c=color, label=name
                    )
    rows[0, 1].legend(fontsize=8, loc="lower right")
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("P2PFL_DATA", ".")) / "cifar10")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--splits", nargs="+", choices=SPLITS, default=list(SPLITS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    for name, value in {"rounds": 300, "slice": 50, "rate": 0.05, "processes": 2, "device": "cpu"}.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if options.plot:
        picture(options.out, options.plot)
    if options.plot or options.table:
        print(table(options.out))
        return
    if not (options.data / "train.npz").exists():
        parser.error(f"{options.data} has no train.npz: P2PFL_DATA names the parent of cifar10")
    options.out.mkdir(parents=True, exist_ok=True)
    goals = [*range(options.slice, options.rounds, options.slice), options.rounds]
    # forked processes would share the parent's threads of torch, which torch does not allow
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        runs = itertools.product(options.splits, goals, options.seeds, options.systems)
        for line in [pool.submit(go_on, options, *run) for run in runs]:
            print(line.result(), flush=True)


if __name__ == "__main__":
    main()
