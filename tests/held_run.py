"""Runs that wait after their first round until they are let go: there even a short one can be interrupted."""

from __future__ import annotations

from pathlib import Path

MODULE = """
import time
from pathlib import Path

from torch import nn


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        while is_held():
            time.sleep(0.01)
        return super().forward(x)


def is_held():
    try:
        wanted = int(Path("hold").read_text())
    except FileNotFoundError:
        return False
    return sum(path.stat().st_size > 0 for path in Path().rglob("metrics.jsonl")) >= wanted
"""


def hold(folder: Path, num_runs: int = 1) -> list[str]:
    """Flags of runs, started in this folder, that are held when as many of them have a round."""
    (folder / "held.py").write_text(MODULE)
    (folder / "hold").write_text(str(num_runs))
    return ["--model", "held:Net", "--local-steps", "2", "--num-clients", "8", "--cohort-size", "2"]


def let_go(folder: Path) -> None:
    (folder / "hold").unlink()
