"""How far a run must go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedlada.methods.validation import count
from fedlada.training.history import History


@dataclass(frozen=True)
class Milestone:
    """A value to reach: counted at the first evaluation whose mean over the last `smooth` ones is at or above it."""

    metric: str
    target: float
    smooth: int = 1

    def __post_init__(self) -> None:
        count("smooth", self.smooth)

    def round_in(self, history: History) -> int | None:
        """The round in which it was reached; None if it was not."""
        rounds, values = history.measured(self.metric)
        for round, value in zip(rounds[self.smooth - 1 :], moving_average(values, self.smooth), strict=True):
            if value >= self.target:
                return round
        return None


@dataclass(frozen=True)
class Goal:
    """So many rounds, or fewer where every milestone has been reached before."""

    rounds: int
    until: tuple[Milestone, ...] = ()

    def __post_init__(self) -> None:
        count("rounds", self.rounds)

    def end_in(self, history: History) -> int | None:
        """The round after which nothing more is needed; None if the history does not go so far."""
        within = history[: self.rounds]
        if self.until:
            reached = [milestone.round_in(within) for milestone in self.until]
            if None not in reached:
                return max(round for round in reached if round is not None)
        return self.rounds if len(history) >= self.rounds else None


def moving_average(values: Sequence[float], length: int) -> list[float]:
    """The mean of each `length` values that follow each other."""
    return [sum(values[end - length : end]) / length for end in range(length, len(values) + 1)]
