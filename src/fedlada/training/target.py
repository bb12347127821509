"""A value of any metric to reach, and which way is better."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedlada.methods.validation import finite, probability

LOWER = (
    "loss losses error errors err perplexity ppl drift mse rmse mae mape smape msle rmsle nll bce cross_entropy "
    "logloss deviance hinge huber ece mce brier wer cer ter eer fpr fnr fid kl divergence distance hamming "
    "hausdorff std regret"
)
"""Words in a metric's name by which lower is better; they count before those of `HIGHER`, as in `brier_score`."""
HIGHER = (
    "accuracy acc auc auroc auprc roc f1 fbeta precision recall sensitivity specificity tpr tnr r2 iou miou dice "
    "jaccard score map ap mrr ndcg hit hits kappa mcc correlation pearson spearman bleu rouge meteor chrf psnr ssim "
    "exact top reward"
)
"""Words in a metric's name by which higher is better."""
DECLARED = {"min": True, "max": False}
"""Prefixes that say whether lower is better, as in `min:test_nll`."""
ACCURACY, LOSS = "test_accuracy", "test_loss"
JUDGES = (
    ACCURACY,
    LOSS,
    "validation_accuracy",
    "validation_loss",
    "client_accuracy",
    "client_loss",
    "nodes_accuracy",
    "nodes_loss",
)
"""Metrics that judge a run by default, the first that is measured."""


@cache
def declared(metric: str) -> tuple[bool | None, str]:
    """Whether lower values are better, by the prefix or else the words of a metric's name, and the bare name.

    `min:test_gain` and `max:test_gain` say it. A name with no prefix and no known word says nothing: None.
    """
    prefix, colon, name = metric.partition(":")
    if colon and prefix in DECLARED:
        return DECLARED[prefix], name
    words = re.sub(r"(?<=[a-z]{2})\d+", "", re.sub(r"[^a-z0-9]+", "_", metric.lower()))  # acc5 is an accuracy
    return next((lower for lower, known in ((True, LOWER), (False, HIGHER)) if _has(words, known)), None), metric


def _has(words: str, known: str) -> bool:
    return any(f"_{one}_" in f"_{words}_" for one in known.split())


def column_of(metric: str) -> str:
    """The metric without the prefix that says which way is better."""
    return declared(metric)[1]


def in_words(metric: str) -> str:
    """The metric's name as text."""
    return column_of(metric).replace("_", " ")


def lower_is_better(metric: str) -> bool:
    """Whether lower values of a metric are better; refuses a name that does not say it."""
    lower, name = declared(metric)
    if lower is None:
        raise ValueError(
            f"the name {name!r} does not say whether lower or higher is better: write 'min:{name}' or 'max:{name}'"
        )
    return lower


def is_same_judge(stored: str, metric: str) -> bool:
    """Whether a stored metric is this one, in the same direction: once names that do not say it counted as higher."""
    lower, name = declared(stored)
    return name == column_of(metric) and bool(lower) == lower_is_better(metric)


def is_better(metric: str, value: float, other: float) -> bool:
    """Whether one value of a metric is better than another."""
    return value < other if lower_is_better(metric) else value > other


def is_reached(metric: str, value: float, target: float) -> bool:
    """Whether a value of a metric is at the target, or better."""
    return value <= target if lower_is_better(metric) else value >= target


def judged_by(names: Collection[str]) -> str:
    """The metric that judges a run by default: the first of these that is measured."""
    return next((name for name in JUDGES if name in names), ACCURACY)


def accuracy_of(names: Collection[str]) -> str:
    """The accuracy that a bare target is of; never a loss, which would be reached from the other side."""
    judge = judged_by(names)
    return ACCURACY if lower_is_better(judge) else judge


@dataclass(frozen=True)
class Target:
    """A metric and its target value: reached at or above it, or at or below where lower is better."""

    metric: str
    value: float

    def __post_init__(self) -> None:
        finite(f"the target of {self.metric}", self.value)
        object.__setattr__(self, "value", float(self.value))
        if "accuracy" in self.column.split("_"):
            probability("target" if self.metric == ACCURACY else f"the target of {self.metric}", self.value)

    @property
    def column(self) -> str:
        """The metric without a prefix."""
        return column_of(self.metric)

    @classmethod
    def parse(cls, text: str | float) -> Target:
        """Parse a target: `0.9` of the test accuracy, `test_loss:0.1` or `min:test_nll:0.1`."""
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
        return f"{self.value:g}" if self.column == ACCURACY else f"{in_words(self.metric)} {self.value:g}"


def stop_by(text: str | float) -> dict[str, Any]:
    """The argument of `simulate` that ends a run at a target; a plain number is of the accuracy that judges it."""
    target = Target.parse(text)
    return {"stop_at": {target.metric: target.value}} if isinstance(text, str) else {"stop_at_accuracy": target.value}
