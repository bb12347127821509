"""A grid of configurations, scored over seeds; with successive halving only the best are run to the end."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedlada.methods.validation import one_of
from fedlada.runs.metrics import is_evaluated
from fedlada.training.history import History
from fedlada.training.target import lower_is_better
from fedlada.workbench.campaign.over_seeds import OverSeeds, over_seeds
from fedlada.workbench.campaign.request import DONE, Goal, Outcome, Request
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.words import in_words

METRICS = ("validation_accuracy", "validation_loss", "train_loss", "full_train_accuracy", "full_train_loss")
"""Metrics by which a configuration may be chosen: none of the test set."""
SUMMARIES = ("last", "best", "mean")


@dataclass(frozen=True)
class Selection:
    """The rule for the best: a metric, and which of its values in a run."""

    metric: str = "validation_accuracy"
    by: str = "last"

    def __post_init__(self) -> None:
        if self.metric.startswith("test_"):
            raise ValueError(f"a configuration must not be chosen on the test set: select one of {', '.join(METRICS)}")
        one_of("select", self.metric, METRICS)
        one_of("by", self.by, SUMMARIES)

    def of(self, outcome: Outcome) -> float | None:
        """The score of one run; None where it is not done or has none."""
        # An archive has the training loss of evaluated rounds only, and must give the same scores as the run.
        evaluated = [row for row in outcome.history if is_evaluated(row)]
        history = History(evaluated) if evaluated else outcome.history
        values = history.measured(self.metric)[1] if outcome.status == DONE else []
        if not values:
            return None
        if self.by == "last":
            return values[-1]
        if self.by == "mean":
            return statistics.fmean(values)
        return min(values) if lower_is_better(self.metric) else max(values)

    def rank(self, score: OverSeeds) -> float:
        """A sort key: the best first, those without a score last."""
        if score.mean is None:
            return math.inf
        return score.mean if lower_is_better(self.metric) else -score.mean


@dataclass(frozen=True, eq=False)
class Candidate:
    """One configuration of a grid, for each seed."""

    values: Mapping[str, Any]
    """The values that the grid sets."""
    experiments: tuple[Experiment, ...]

    @property
    def label(self) -> str:
        """Its values as text."""
        return in_words(self.values)

    def requests(self, rounds: int) -> list[Request]:
        """Its runs up to a round."""
        return [Request(f"{self.label}, seed {one.seed}", self.label, one, Goal(rounds)) for one in self.experiments]


@dataclass(frozen=True, eq=False)
class Scored:
    """A candidate, its runs as far as they were needed, and its score there."""

    candidate: Candidate
    rounds: int
    outcomes: Sequence[Outcome]
    score: OverSeeds


@dataclass(frozen=True)
class Rung:
    """A step of successive halving: every remaining candidate is run to a round, then only the best continue."""

    rounds: int
    keep: int


def rungs(num_candidates: int, rounds: int, factor: int | None, eval_every: int) -> list[Rung]:
    """All to the end at once; or with a factor f the best 1/f continue to f times the rounds, until few are left."""
    if factor is None:
        return [Rung(rounds, num_candidates)]
    num_cuts, left = 0, num_candidates
    while left > 1 and rounds / factor ** (num_cuts + 1) >= eval_every:
        left, num_cuts = math.ceil(left / factor), num_cuts + 1
    steps, left = [], num_candidates
    for cut in range(num_cuts, -1, -1):
        left = math.ceil(left / factor) if cut else left
        steps.append(Rung(min(eval_every * math.ceil(rounds / factor**cut / eval_every), rounds), left))
    return steps


Carry = Callable[[Sequence[Request]], list[Outcome]]


def sweep(
    candidates: Sequence[Candidate], steps: Sequence[Rung], selection: Selection, carry_out: Carry
) -> list[Scored]:
    """All candidates, the best first; those that were dropped follow those that went further."""
    left = list(candidates)
    ended: list[Scored] = []
    for number, rung in enumerate(steps):
        requests = [candidate.requests(rung.rounds) for candidate in left]
        outcomes = iter(carry_out([request for own in requests for request in own]))
        scored = []
        for candidate, own in zip(left, requests, strict=True):
            runs = [next(outcomes) for _ in own]
            scored.append(Scored(candidate, rung.rounds, runs, over_seeds(runs, selection.of)))
        scored.sort(key=lambda one: selection.rank(one.score))
        is_complete = all(run.is_settled for one in scored for run in one.outcomes)
        if number == len(steps) - 1 or not is_complete:
            return scored + ended[::-1]
        going_on = [one for one in scored[: rung.keep] if one.score.mean is not None]
        if not going_on:
            return scored + ended[::-1]
        ended += [one for one in scored if one not in going_on][::-1]
        left = [one.candidate for one in going_on]
    raise AssertionError("there is always a last rung")
