"""A run that somebody needs, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedlada.training.history import History
from fedlada.workbench.campaign.goal import Goal
from fedlada.workbench.experiment import Experiment

DONE, UNFINISHED, DIVERGED = "done", "unfinished", "diverged"


@dataclass(frozen=True)
class Request:
    """A run that is needed: which, how far, and what to call it.

    The experiment's own `rounds` say how far anybody may ever need it; how far it is run is the goal's.
    """

    label: str
    group: str
    """Requests of one target and one group differ in their seed alone."""
    experiment: Experiment
    goal: Goal

    @property
    def name(self) -> str:
        """The label without the seed: what such runs are called among those of other targets."""
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
    """Exactly the rounds that were asked for, whoever else needed more; fewer where it is not done."""
    status: str
    folder: Path
    why: str = ""
    """Of a run that diverged or failed."""

    @property
    def is_settled(self) -> bool:
        """Whether nothing will be added: a run that diverged would do so again."""
        return self.status != UNFINISHED
