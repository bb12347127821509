"""A requested run, its goal and its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from fedlada.methods.validation import count
from fedlada.training.history import History
from fedlada.training.target import lower_is_better
from fedlada.workbench.experiment import Experiment

DONE, UNFINISHED, DIVERGED = "done", "unfinished", "diverged"


@dataclass(frozen=True)
class Milestone:
    """A value to reach: at the first evaluation at which the mean of the last `smooth` ones is at or above it.

    A loss is reached at or below its value.
    """

    metric: str
    target: float
    smooth: int = 1

    def __post_init__(self) -> None:
        count("smooth", self.smooth)

    def round_in(self, history: History) -> int | None:
        """The round in which it was reached; None if it was not."""
        rounds, values = history.measured(self.metric)
        lower, means = lower_is_better(self.metric), moving_average(values, self.smooth)
        reached = (mean <= self.target if lower else mean >= self.target for mean in means)
        return next((round for round, is_it in zip(rounds[self.smooth - 1 :], reached, strict=True) if is_it), None)


@dataclass(frozen=True)
class Goal:
    """This many rounds, or fewer if every milestone is reached before."""

    rounds: int
    until: tuple[Milestone, ...] = ()

    def __post_init__(self) -> None:
        count("rounds", self.rounds)

    def end_in(self, history: History) -> int | None:
        """The round after which nothing more is needed; None if the history is shorter."""
        within = history[: self.rounds]
        if self.until:
            reached = [milestone.round_in(within) for milestone in self.until]
            if None not in reached:
                return max(round for round in reached if round is not None)
        return self.rounds if len(history) >= self.rounds else None


def moving_average(values: Sequence[float], length: int) -> list[float]:
    """The mean of each `length` consecutive values."""
    return [fmean(values[end - length : end]) for end in range(length, len(values) + 1)]


@dataclass(frozen=True)
class Request:
    """A run that is needed: its experiment, its goal and its label.

    The experiment's own `rounds` say how far anybody may ever need it; how far it is run is the goal's.
    """

    label: str
    group: str
    """Requests of one target and one group differ in their seed alone."""
    experiment: Experiment
    goal: Goal

    @property
    def name(self) -> str:
        """The label without the seed, which names these runs among those of other targets."""
        return self.label.removesuffix(f", seed {self.experiment.seed}")

    def __post_init__(self) -> None:
        every = self.experiment.eval_every
        if self.goal.rounds % every:
            raise ValueError(
                f"rounds must be a multiple of eval_every, which is {every}, so that the last round is evaluated; "
                f"got {self.goal.rounds}"
            )
        if self.goal.rounds > self.experiment.rounds:
            raise ValueError(f"the goal is round {self.goal.rounds}, but the run ends in {self.experiment.rounds}")


@dataclass(frozen=True, eq=False)
class Outcome:
    """A request and its run as far as it is there."""

    request: Request
    history: History
    """Exactly the requested rounds, even if others needed more; fewer if it is not done."""
    status: str
    folder: Path
    why: str = ""
    """Of a run that diverged or failed."""

    @property
    def is_settled(self) -> bool:
        """Whether it is final: a run that diverged would diverge again."""
        return self.status != UNFINISHED
