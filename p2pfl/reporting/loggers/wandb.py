"""`--log wandb:PROJECT`: a run of Weights & Biases for each node, in one project."""

from __future__ import annotations

from typing import Any

from p2pfl.reporting.logs import Row, figures_in, round_of

ROUNDS = "rounds"


class WandbLog:
    """The runs of a project. Where they go is W&B's own settings: `WANDB_MODE=offline` keeps them here."""

    needs = "wandb"

    def __init__(self, place: str) -> None:
        import wandb  # noqa: PLC0415 - an extra

        self._init, self._project = wandb.init, place
        self._runs: dict[str, Any] = {}

    def write(self, row: Row) -> None:
        node = str(row["node"])
        if node not in self._runs:
            run = self._runs[node] = self._init(project=self._project, name=node, reinit="create_new")
            run.define_metric("*", step_metric=ROUNDS)
        by_round: dict[int, dict[str, float]] = {}
        for name, value in figures_in(row).items():
            by_round.setdefault(round_of(row, name), {})[name] = value
        for rounds, figures in sorted(by_round.items()):
            self._runs[node].log({ROUNDS: rounds, **figures})

    def close(self) -> None:
        for run in self._runs.values():
            run.finish()
