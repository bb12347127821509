"""The run folder: configuration, metrics and checkpoints, written and resumed."""

from fedlada.runs.checkpoints import Checkpoint, Checkpoints, DamagedCheckpoint
from fedlada.runs.folder import RunFolder, export

__all__ = ["Checkpoint", "Checkpoints", "DamagedCheckpoint", "RunFolder", "export"]
