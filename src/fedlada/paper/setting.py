"""A reproduction's setting: from a method and one of the paper's data sets to the runs that are needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedlada.methods.recipes import hyper_parameters
from fedlada.methods.validation import count, one_of
from fedlada.paper.choices import Values, values_of
from fedlada.paper.published import DATASETS, NAMES, TITLES
from fedlada.paper.scales import Accuracies, Scale, scale_of
from fedlada.workbench.campaign.request import Goal, Milestone, Request
from fedlada.workbench.experiment import Experiment


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Scale, preset, seeds and where to compute."""

    scale: Scale
    preset: str
    seeds: tuple[int, ...]
    device: str = "auto"
    data_dir: str | None = None
    max_rounds: int | None = None
    """Stop every run at this round."""
    smooth: int = 1
    """Evaluations in a moving average."""
    chosen_datasets: tuple[str, ...] = ()
    """The paper's data sets to use, if not all; the first stands for those left out."""
    chosen_methods: tuple[str, ...] = ()
    """The methods of a target to run, if not all."""
    messages: str = "float32"
    """The compression of every run's messages."""
    tell: Callable[[str], None] | None = field(default=None, compare=False)
    """Called with a description of what is being computed without runs."""
    folder: Path | None = field(default=None, compare=False)
    """The folder that stores such results, so that they are computed once."""

    @classmethod
    def named(cls, scale: str, *, data_dir: str | None = None, **others: Any) -> Setting:
        """The setting of the scale of that name, with its data where they are found."""
        found, place = scale_of(scale, data_dir)
        return cls(scale=found, data_dir=place, **others)

    def __post_init__(self) -> None:
        count("smooth", self.smooth)
        for dataset in self.chosen_datasets:
            if len(self.scale.datasets) == 1:
                raise ValueError(f"the {self.scale.name} scale has {self.scale.datasets[0]} alone: leave datasets out")
            one_of("datasets", dataset, self.scale.datasets)
        for method in self.chosen_methods:
            one_of("methods", method, tuple(NAMES))
        if self.max_rounds is not None and (self.max_rounds < 1 or self.max_rounds % self.scale.eval_every):
            raise ValueError(
                f"rounds must be a multiple of {self.scale.eval_every}, the rounds between two evaluations of the "
                f"{self.scale.name} scale; got {self.max_rounds}"
            )

    def datasets(self, *papers: str) -> tuple[str, ...]:
        """Those of the paper's data sets that are used here, or the first, for which another stands."""
        return tuple(paper for paper in papers if paper in self._used) or papers[:1]

    @property
    def _used(self) -> tuple[str, ...]:
        return self.chosen_datasets or self.scale.datasets

    def dataset(self, paper: str) -> str:
        """The data set that is, or stands for, one of the paper's."""
        return paper if paper in self._used else self._used[0]

    def methods(self, *all_methods: str) -> tuple[str, ...]:
        """Those of a target's methods that are run here."""
        chosen = tuple(method for method in all_methods if method in (self.chosen_methods or all_methods))
        if not chosen:
            raise ValueError(f"methods must have one of {', '.join(all_methods)} here")
        return chosen

    def values(self, paper: str, method: str, *, preset: str | None = None, dataset: str | None = None) -> Values:
        """A method's hyperparameters; where one of the paper's data sets stands for another they are its own."""
        dataset = dataset or self.dataset(paper)
        return values_of(preset or self.preset, dataset if dataset in DATASETS else paper, dataset, method)

    def title(self, paper: str) -> str:
        """The data set's title."""
        return TITLES[self.dataset(paper)]

    def accuracies(self, paper: str) -> Accuracies:
        """The accuracies to reach on it."""
        return self.scale.accuracies[self.dataset(paper)]

    def milestone(self, target: float, metric: str = "test_accuracy") -> Milestone:
        """An accuracy to reach, with this setting's moving average."""
        return Milestone(metric, target, self.smooth)

    def goal(self, rounds: int, *until: Milestone) -> Goal:
        """This many rounds, or as many as are allowed."""
        return Goal(rounds if self.max_rounds is None else min(rounds, self.max_rounds), until)

    def requests(
        self,
        group: str,
        paper: str,
        method: str,
        goal: Goal,
        *,
        hyper: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> list[Request]:
        """A method's run for each seed; `changes` are fields of the experiment."""
        experiment = self.experiment(paper, method, hyper=hyper, **changes)
        label = group if self.title(paper) in group else f"{group} on {self.title(paper)}"
        return [Request(f"{label}, seed {seed}", group, replace(experiment, seed=seed), goal) for seed in self.seeds]

    def experiment(
        self, paper: str, method: str, *, hyper: Mapping[str, Any] | None = None, **changes: Any
    ) -> Experiment:
        """A method's run on one of the paper's data sets at this scale."""
        dataset = self.dataset(paper)
        values = self.values(paper, method)
        printed_for = dataset if dataset in DATASETS else paper
        fields = {
            "local_epochs": self.scale.epochs[5 if printed_for == "cifar10" else 2],
            "lr": values.lr,
            "lr_decay": values.lr_decay,
            "rounds": self.scale.longest,
            "eval_every": self.scale.eval_every,
            "eval_train_every": self.scale.eval_train_every,
            "checkpoint_every": self.scale.checkpoint_every,
            "checkpoint_minutes": self.scale.checkpoint_minutes,
            "messages": self.messages,
            **self.scale.settings,
            **changes,
        }
        return Experiment(
            method=method,
            dataset=dataset,
            data_dir=None if dataset == "digits" else self.data_dir,
            # All of them: missing values would become the defaults of the data set that stands for the paper's.
            hyper={**hyper_parameters(method), **values.hyper, **(hyper or {})},
            device=self.device,
            **fields,
        )


def name_of(method: str) -> str:
    """A method as the paper writes it."""
    return NAMES[method]


def main_lines(setting: Setting, paper: str, methods: Sequence[str], goal: Goal) -> dict[str, list[Request]]:
    """Each method's run for each seed, by the method's name."""
    return {
        name_of(method): setting.requests(main_group(setting, paper, method), paper, method, goal)
        for method in setting.methods(*methods)
    }


def main_group(setting: Setting, paper: str, method: str) -> str:
    """The name of such runs in results."""
    return f"{name_of(method)} on {setting.title(paper)}"


def stands_for(setting: Setting, paper: str) -> str:
    """Which data were used, in a few words for a title."""
    own = setting.title(paper)
    return own if own == TITLES[paper] else f"{own} in the place of {TITLES[paper]}"
