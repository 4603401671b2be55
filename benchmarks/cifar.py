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
import io
import itertools
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from p2pfl import Task
from p2pfl.config.model import TaskConfig
from p2pfl.learn.samples import TensorSamples
from p2pfl.learn.task import NodeContext, Pair
from sim.arrays.run import Together
from sim.arrays.setting import setting_of
from sim.arrays.training import Rounds
from sim.federations import describe
from sim.worlds.model import WorldSpec

NODES, STEPS, ROWS = 96, 5, 8
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
HEADS = ("seeds", "nodes, mean", "worst", "mean model", "MB a node", "apart", "nodes at .4 after")
EVERY = 20
NODES_TESTED, IMAGES_ON_THE_WAY, IMAGES, IMAGES_OF_MEAN = 16, 500, 1_000, 2_000
"""On the way so many nodes are tested, on the first 500 images; at the end all, on 1,000; the mean model on 2,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One system on one split, up to a number of `rounds`, the `last` of which tests all nodes; `out` has its files."""

    system: str
    split: str
    seed: int
    rounds: int
    last: bool
    rate: float
    device: str
    out: Path

    @property
    def file(self) -> Path:
        return self.out / f"{self.split.replace(':', '-')}.{self.system}.{self.seed}.json"


def gn_lenet() -> nn.Sequential:
    """Build the network: images (b, 3, 32, 32) to ten outputs (b, 10)."""
    parts: list[nn.Module] = []
    for before, channels in ((3, 32), (32, 32), (32, 64)):
        parts += [nn.Conv2d(before, channels, 5, padding=2), nn.MaxPool2d(2), nn.GroupNorm(2, channels), nn.ReLU()]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(64 * 4 * 4, 10))


def cifar(*, path: str, partition: str) -> Task:
    def data(node: NodeContext) -> tuple[Pair, Pair]:
        (images, labels), test = images_of(Path(path) / "train.npz"), images_of(Path(path) / "test.npz")
        rows = torch.from_numpy(node.own_rows(labels.numpy(), partition))
        return (images[rows], labels[rows]), test

    return Task(name="cifar", model=gn_lenet, data=data)


@cache
def images_of(file: Path) -> tuple[Tensor, Tensor]:
    """Return images (n, 3, 32, 32) float32 in [-1, 1] and labels (n,) int64."""
    from PIL import Image  # noqa: PLC0415 - it comes with matplotlib

    found = np.load(file)
    jpeg, ends, labels = found["jpeg"], found["ends"].tolist(), found["labels"]
    images = np.empty((len(ends), 32, 32, 3), np.uint8)
    for number, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
        images[number] = Image.open(io.BytesIO(jpeg[first:end].tobytes())).convert("RGB")
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    return pixels.float().div_(127.5).sub_(1.0), torch.from_numpy(labels.astype(np.int64))


def go_on(run: Run, data: Path) -> str:
    """Take a run up to its rounds, from where its files are; return a line about it."""
    torch.set_num_threads(1)
    kept = run.file.with_suffix(".pt")
    record: dict[str, Any] = {name: getattr(run, name) for name in ("system", "split", "seed", "rate")} | {"points": []}
    if run.file.exists():
        record = json.loads(run.file.read_text())
    points = record["points"]
    done = points[-1]["round"] if points else 0
    if done > run.rounds or (done == run.rounds and not run.last):
        return f"{run.file.name}: has {done} rounds"
    topology, compressor = SYSTEMS[run.system]
    federation = describe(
        nodes=NODES, topology=topology, compressor=compressor, method="plain", seed=run.seed, directed=True
    )
    training = replace(federation.training, local_steps=STEPS, batch_size=ROWS, learning_rate=run.rate)
    task = TaskConfig(name="cifar", options={"path": str(data), "partition": run.split}, given=cifar)
    federation = replace(federation, training=training, task=task)
    setting = setting_of(federation, WorldSpec(), None, clock="in-step", device=run.device)
    rounds = Rounds(setting.grouped, setting.method, setting.device)
    together = Together(setting, rounds)
    stage, learner = together.stage, setting.learners[0]
    if done:
        stage.x = torch.load(kept, map_location=setting.device)
    size = 4 * setting.size if setting.compressor is None else setting.compressor.size_bytes(setting.size)
    began = time.process_time()
    for number in stage.run(run.rounds, 0, first=done):
        if number % EVERY and number < run.rounds:
            continue
        together.done, cpu_s, mean = number, time.process_time() - began, stage.x.mean(dim=0)
        point = {
            "round": number,
            "megabytes": int(together.messages.sum()) * size / NODES / 1e6,
            "mean_model": tested(learner, mean, IMAGES_OF_MEAN),
            "distance": float((stage.x - mean).norm(dim=1).mean()),
            "loss": float(np.nanmean(rounds.losses)),
            "training_cpu_s": cpu_s,
        }
        points.append(point | nodes_tested(learner, stage.x[:: NODES // NODES_TESTED], IMAGES_ON_THE_WAY))
        torch.save(stage.x, kept.with_suffix(".new"))
        kept.with_suffix(".new").replace(kept)
        run.file.write_text(json.dumps(record | {"training": rounds.how}, indent=1))
        began = time.process_time()
    if run.last and points[-1]["tested"] < NODES:
        points[-1] |= nodes_tested(learner, stage.x, IMAGES)
        run.file.write_text(json.dumps(record | {"training": rounds.how}, indent=1))
    return f"{run.file.name}: {points[-1]['round']} rounds, {points[-1]['mean']:.3f}"


def nodes_tested(learner: Any, models: Tensor, images: int) -> dict[str, float]:
    hits = [tested(learner, model, images) for model in models]
    return {"mean": float(np.mean(hits)), "worst": min(hits), "tested": len(hits)}


def tested(learner: Any, model: Tensor, images: int) -> float:
    """Return the accuracy of a model (d,) on the first `images` of the test set."""
    few = TensorSamples(learner.test_set.inputs[:images], learner.test_set.targets[:images])
    one = learner.at_node(learner.context, learner.train_set, few)
    return float(one.evaluate(model.cpu().numpy(), "test").accuracy)


def table(out: Path) -> str:
    """Return the table in Markdown: all runs of a split at the last round that all of them have."""
    lines = []
    for split, runs in by_split(out).items():
        common = min(run["points"][-1]["round"] for run in runs)
        heads = f"{split}, {common} rounds", *HEADS
        lines += [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
        for system in SYSTEMS:
            chosen = [run["points"] for run in runs if run["system"] == system]
            last = [next(point for point in points if point["round"] == common) for points in chosen]
            if not last:
                continue
            means = {key: float(np.mean([point[key] for point in last])) for key in last[0]}
            first = [next((point for point in points if point["mean"] >= 0.4), None) for points in chosen]
            until = "-"
            if None not in first:
                rounds, megabytes = (np.mean([p[key] for p in first if p]) for key in ("round", "megabytes"))
                until = f"{rounds:.0f} rounds, {megabytes:,.0f} MB"
            lines.append(
                f"| {system} | {len(last)} | {means['mean']:.3f} | {means['worst']:.3f} | {means['mean_model']:.3f} | "
                f"{means['megabytes']:,.0f} | {means['distance']:.2f} | {until} |"
            )
        lines.append("")
    return "\n".join(lines)


def by_split(out: Path) -> dict[str, list[dict[str, Any]]]:
    runs = [json.loads(file.read_text()) for file in sorted(out.glob("*.json"))]
    return {split: found for split in SPLITS if (found := [run for run in runs if run["split"] == split])}


def picture(out: Path, file: Path) -> None:
    """Draw the nodes' mean accuracy and, dashed, the mean model's, against rounds and bytes."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - as above

    splits = by_split(out)
    figure, axes = plt.subplots(len(splits), 2, figsize=(11, 4 * len(splits)), squeeze=False, sharey="row")
    for (split, runs), row in zip(splits.items(), axes, strict=True):
        for (axis, key), (place, system) in itertools.product(
            zip(row, ("round", "megabytes"), strict=True), enumerate(SYSTEMS)
        ):
            for number, points in enumerate(run["points"] for run in runs if run["system"] == system):
                x = [point[key] for point in points]
                name = None if number else system
                axis.plot(x, [point["mean"] for point in points], color=f"C{place}", label=name, linewidth=1.5)
                axis.plot(x, [point["mean_model"] for point in points], "--", color=f"C{place}", linewidth=0.8)
            axis.set(xlabel="rounds" if key == "round" else "MB sent by a node", title=split)
            axis.set_xscale("linear" if key == "round" else "log")
        row[0].set_ylabel("accuracy (dashed: mean model)")
    axes[0, 0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("P2PFL_DATA", ".")) / "cifar10")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--splits", nargs="+", choices=SPLITS, default=list(SPLITS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--slice", type=int, default=50, help="rounds of each system before the next one's turn")
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if options.plot:
        picture(options.out, options.plot)
    if options.table or options.plot:
        print(table(options.out))
        return
    if not (options.data / "train.npz").exists():
        parser.error(f"{options.data} has no train.npz: P2PFL_DATA names the parent of cifar10")
    options.out.mkdir(parents=True, exist_ok=True)
    goals = [*range(options.slice, options.rounds, options.slice), options.rounds]
    # forked processes would share the parent's threads of torch, which torch does not allow
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for split, goal in itertools.product(options.splits, goals):
            shared = {"rounds": goal, "last": goal == options.rounds, "rate": options.rate, "device": options.device}
            runs = [
                Run(system=system, split=split, seed=seed, out=options.out, **shared)
                for seed, system in itertools.product(options.seeds, options.systems)
            ]
            for line in pool.map(go_on, runs, itertools.repeat(options.data)):
                print(line, flush=True)


if __name__ == "__main__":
    main()
