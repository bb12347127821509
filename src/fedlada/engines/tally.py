"""What a cohort's answers add up to, one client after another in the order of their numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fedlada.engines.engine import CohortResult
from fedlada.method import average
from fedlada.plan import Assignment
from fedlada.state import Kept, Upload


class Tally:
    """Who was accepted with what weight, and the weighted sums of what is reported."""

    def __init__(self) -> None:
        self.kept: dict[int, Kept] = {}
        self.refused: list[int] = []
        self.weights: list[float] = []
        self.steps = self.loss = self.square = 0.0
        self.bytes_up = 0

    def accept(self, work: Assignment, kept: Kept, train_loss: float, square_delta: float) -> None:
        """A client's answer is finite: its upload goes into the mean next."""
        self.kept[work.client] = kept
        self.weights.append(work.weight)
        self.steps += work.weight * work.num_steps
        self.loss += work.weight * train_loss
        self.square += work.weight * square_delta

    def mean(self, uploads: Iterator[Upload]) -> Upload | None:
        """The mean of the uploads, or None of none; `accept` is called just ahead of each, so the weights are there."""
        first = next(uploads, None)
        if first is None:
            return None

        def everything() -> Iterator[Upload]:
            yield first
            yield from uploads

        return average(everything(), self.weights)

    def result(self, mean: Upload | None, *, keeps_memory: bool, bytes_down: int) -> CohortResult:
        """All of it."""
        total = sum(self.weights)
        return CohortResult(
            mean=mean,
            kept=self.kept if keeps_memory else {},
            accepted=tuple(self.kept),
            refused=tuple(self.refused),
            weight=total,
            num_steps=self.steps / total if total else 0.0,
            train_loss=self.loss / total if total else math.nan,
            mean_square_delta=self.square / total if total else math.nan,
            bytes_down=bytes_down,
            bytes_up=self.bytes_up,
        )
