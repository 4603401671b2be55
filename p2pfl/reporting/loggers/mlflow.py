"""`--log mlflow:EXPERIMENT`: a run of MLflow for each node, in one experiment."""

from __future__ import annotations

from p2pfl.reporting.logs import Row, figures_in, round_of


class MlflowLog:
    """The runs of an experiment. Where they go is MLflow's own setting, `MLFLOW_TRACKING_URI`."""

    needs = "mlflow"

    def __init__(self, place: str) -> None:
        from mlflow import MlflowClient  # noqa: PLC0415 - an extra

        self._client = MlflowClient()
        known = self._client.get_experiment_by_name(place)
        self._experiment = known.experiment_id if known is not None else self._client.create_experiment(place)
        self._runs: dict[str, str] = {}

    def write(self, row: Row) -> None:
        node = str(row["node"])
        if node not in self._runs:
            self._runs[node] = self._client.create_run(self._experiment, run_name=node).info.run_id
        for name, value in figures_in(row).items():
            self._client.log_metric(self._runs[node], name, value, step=round_of(row, name))

    def close(self) -> None:
        for run in self._runs.values():
            self._client.set_terminated(run)
