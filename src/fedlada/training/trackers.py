"""Observers that log rounds to experiment trackers; each needs its own package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from fedlada.methods.extras import missing
from fedlada.training.history import Row
from fedlada.training.simulation import Observer, Simulation


def scalars(row: Row) -> dict[str, float]:
    """The scalar metrics of a row, without lists of clients."""
    return {name: value for name, value in row.items() if isinstance(value, (int, float)) and name != "round"}


class _Tracker(Observer):
    """Logs the scalars of each round, also those that later callbacks or a last evaluation add to its row."""

    row: Row | None = None
    """The row that was logged last."""

    def log(self, values: Mapping[str, float], round: int) -> None:
        """Log values of a round."""
        raise NotImplementedError

    def close(self, ended: str) -> None:
        """End the tracker's run; `ended` is that of the simulation."""
        raise NotImplementedError

    def on_round(self, simulation: Simulation, row: Row) -> None:
        self._log_added()
        self.row, self.logged = row, scalars(row)
        self.log(self.logged, row["round"])

    def on_end(self, simulation: Simulation) -> None:
        try:
            self._log_added()
        finally:
            self.row = None
            self.close(simulation.ended)

    def _log_added(self) -> None:
        if self.row is None:
            return
        added = {name: value for name, value in scalars(self.row).items() if name not in self.logged}
        if added:
            self.log(added, self.row["round"])


class TensorBoard(_Tracker):
    """Curves for TensorBoard (the extra `tensorboard`)."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise missing("TensorBoard is not installed", "tensorboard") from None
        self.writer: Any = SummaryWriter
        self.folder = str(folder)

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        """Open the file; rounds that will be run again are hidden from the curves."""
        self.events = self.writer(self.folder, purge_step=simulation.round + 1)

    def log(self, values: Mapping[str, float], round: int) -> None:
        for name, value in values.items():
            self.events.add_scalar(name, value, round)

    def close(self, ended: str) -> None:
        self.events.close()


class WeightsAndBiases(_Tracker):
    """Curves for Weights & Biases (the extra `wandb`); the arguments are those of `wandb.init`."""

    EXIT_CODES: ClassVar = {"done": 0, "failed": 1, "interrupted": 255}
    """As W&B itself ends a script's run."""

    def __init__(self, **init: Any) -> None:
        try:
            import wandb
        except ModuleNotFoundError:
            raise missing("Weights & Biases is not installed", "wandb") from None
        self.wandb = wandb
        self.arguments = init

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        self.run = self.wandb.init(**self.arguments)

    def log(self, values: Mapping[str, float], round: int) -> None:
        self.run.log(dict(values), step=round)

    def close(self, ended: str) -> None:
        self.run.finish(exit_code=self.EXIT_CODES[ended])


class MLflow(_Tracker):
    """Curves for MLflow (the extra `mlflow`), in its active experiment; the arguments are those of `start_run`."""

    STATUS: ClassVar = {"done": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}

    def __init__(self, **start_run: Any) -> None:
        try:
            import mlflow
        except ModuleNotFoundError:
            raise missing("MLflow is not installed", "mlflow") from None
        self.mlflow = mlflow
        self.arguments = start_run

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        self.mlflow.start_run(**self.arguments)

    def log(self, values: Mapping[str, float], round: int) -> None:
        self.mlflow.log_metrics(dict(values), step=round)

    def close(self, ended: str) -> None:
        self.mlflow.end_run(self.STATUS[ended])
