"""A value of any metric to reach, and which way is better."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from fedlada.methods.validation import probability

LOWER = {"loss", "perplexity", "error", "mse", "rmse", "mae", "drift"}
"""Parts of a metric's name that imply that lower is better."""
ACCURACY, LOSS = "test_accuracy", "test_loss"
JUDGES = (ACCURACY, LOSS, "validation_accuracy", "validation_loss", "client_accuracy", "client_loss")
"""Metrics that judge a run by default, the first that is measured."""


def lower_is_better(metric: str) -> bool:
    """Whether lower values of a metric are better, judged by its name: `test_loss`, `validation_rmse`."""
    return not LOWER.isdisjoint(metric.split("_"))


def is_better(metric: str, value: float, other: float) -> bool:
    """Whether one value of a metric is better than another."""
    return value < other if lower_is_better(metric) else value > other


def is_reached(metric: str, value: float, target: float) -> bool:
    """Whether a value of a metric is at the target, or better."""
    return value <= target if lower_is_better(metric) else value >= target


def judged_by(names: Collection[str]) -> str:
    """The metric that judges a run by default: the first of these that is measured."""
    return next((name for name in JUDGES if name in names), ACCURACY)


@dataclass(frozen=True)
class Target:
    """A metric and its target value: reached at or above it, for losses at or below."""

    metric: str
    value: float

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)) or not math.isfinite(self.value):
            raise ValueError(f"the target of {self.metric} must be a number, got {self.value!r}")
        if "accuracy" in self.metric.split("_"):
            probability("target" if self.metric == ACCURACY else f"the target of {self.metric}", self.value)

    @classmethod
    def parse(cls, text: str | float) -> Target:
        """Parse a target: `0.9` of the test accuracy, or `test_loss:0.1`."""
        if not isinstance(text, str):
            return cls(ACCURACY, text)
        metric, colon, value = text.rpartition(":")
        try:
            number = float(value)
        except ValueError:
            raise ValueError(f"target must be written like 0.9 or test_loss:0.1, got {text!r}") from None
        if colon and not metric.strip():
            raise ValueError(f"target must be written like 0.9 or test_loss:0.1, got {text!r}")
        return cls(metric.strip() or ACCURACY, number)

    def is_reached_by(self, value: float) -> bool:
        """Whether a value is at the target, or better."""
        return is_reached(self.metric, value, self.value)

    def __str__(self) -> str:
        return f"{self.value:g}" if self.metric == ACCURACY else f"{self.metric.replace('_', ' ')} {self.value:g}"


def stop_by(text: str | float) -> dict[str, Any]:
    """The argument of `simulate` that ends a run at a target; a plain number is of the accuracy that judges it."""
    target = Target.parse(text)
    return {"stop_at": {target.metric: target.value}} if isinstance(text, str) else {"stop_at_accuracy": target.value}
