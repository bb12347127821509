"""Observers that log rounds to experiment trackers; each needs its own package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedlada.methods.extras import missing
from fedlada.training.history import Row
from fedlada.training.simulation import Observer, Simulation


def scalars(row: Row) -> dict[str, float]:
    """The scalar metrics of a row, without lists of clients."""
    return {name: value for name, value in row.items() if isinstance(value, (int, float)) and name != "round"}


class TensorBoard(Observer):
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

    def on_round(self, simulation: Simulation, row: Row) -> None:
        for name, value in scalars(row).items():
            self.events.add_scalar(name, value, row["round"])

    def on_end(self, simulation: Simulation) -> None:
        self.events.close()


class WeightsAndBiases(Observer):
    """Curves for Weights & Biases (the extra `wandb`); the arguments are those of `wandb.init`."""

    def __init__(self, **init: Any) -> None:
        try:
            import wandb
        except ModuleNotFoundError:
            raise missing("Weights & Biases is not installed", "wandb") from None
        self.run = wandb.init(**init)

    def on_round(self, simulation: Simulation, row: Row) -> None:
        self.run.log(scalars(row), step=row["round"])

    def on_end(self, simulation: Simulation) -> None:
        self.run.finish()


class MLflow(Observer):
    """Curves for MLflow (the extra `mlflow`), in its active experiment; the arguments are those of `start_run`."""

    def __init__(self, **start_run: Any) -> None:
        try:
            import mlflow
        except ModuleNotFoundError:
            raise missing("MLflow is not installed", "mlflow") from None
        self.mlflow = mlflow
        self.arguments = start_run

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        self.mlflow.start_run(**self.arguments)

    def on_round(self, simulation: Simulation, row: Row) -> None:
        self.mlflow.log_metrics(scalars(row), step=row["round"])

    def on_end(self, simulation: Simulation) -> None:
        self.mlflow.end_run()
