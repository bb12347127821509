"""A run's folder: configuration, metrics, checkpoints; how it is written, resumed and opened again."""

from fedlada.runs.checkpoints import Checkpoint, Checkpoints, DamagedCheckpoint
from fedlada.runs.folder import RunFolder, export
from fedlada.runs.load import StoredRun, open_run

__all__ = ["Checkpoint", "Checkpoints", "DamagedCheckpoint", "RunFolder", "StoredRun", "export", "open_run"]
