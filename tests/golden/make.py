"""Writes golden curves: `python tests/golden/make.py NAME ...`, only of a new method or where results should change."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import fedlada
from fedlada import recipes
from fedlada.data import Dirichlet
from tasks import blobs, small_net

FILE = Path(__file__).with_name("curves.json")


def curve(name: str) -> list[float]:
    """Training losses of eight rounds of a recipe with its defaults, in float64."""
    x, y = blobs()
    result = fedlada.simulate(
        small_net(),
        (x, y),
        method=recipes.RECIPES[name](weight_decay=1e-3, clip_norm=1.0),
        partition=Dirichlet(num_clients=6, concentration=0.3),
        cohort_size=3,
        local_epochs=2,
        batch_size=8,
        lr=0.01,
        lr_decay=0.99,
        rounds=8,
        dtype=torch.float64,
    )
    return result.history["train_loss"]


if __name__ == "__main__":
    curves = json.loads(FILE.read_text()) | {name: curve(name) for name in sys.argv[1:]}
    FILE.write_text(json.dumps(curves, indent=1) + "\n")
