"""T1: rounds to a target accuracy, on the training and on the test data."""

from __future__ import annotations

from collections.abc import Sequence

from fedlada.paper.main_runs import by_method, main_runs, stands_for
from fedlada.paper.published import DATASETS, SEVEN, SPEED_TEST, SPEED_TRAIN
from fedlada.paper.rules import NEVER_RULE, RATIO_RULE, rounds_rule
from fedlada.paper.setting import Setting, name_of
from fedlada.paper.target import Results, Shown, Target, printed, ratios
from fedlada.workbench.campaign.curves import outcome_curves
from fedlada.workbench.campaign.over_seeds import over_seeds, rounds_to
from fedlada.workbench.campaign.request import Request
from fedlada.workbench.report.table import Table

PRINTED_RATIOS = (
    "The paper's ratios are computed here from its rounds: those it prints for the test data of CIFAR-10 divide by "
    "575, a figure of the training data."
)
METRICS = {"train": ("full_train_accuracy", SPEED_TRAIN), "test": ("test_accuracy", SPEED_TEST)}


def requests(setting: Setting) -> list[Request]:
    """Every method on every data set until it has reached both targets."""
    needed = []
    for paper in setting.datasets(*DATASETS):
        wanted = setting.accuracies(paper)
        milestones = (
            setting.milestone(wanted.train, "full_train_accuracy"),
            setting.milestone(wanted.test, "test_accuracy"),
        )
        needed += main_runs(setting, paper, SEVEN, setting.goal(setting.scale.longest, *milestones))
    return needed


def show(setting: Setting, results: Results) -> Shown:
    """One table and two charts for each data set."""
    tables, charts = [], []
    for paper in setting.datasets(*DATASETS):
        wanted = setting.accuracies(paper)
        targets = {"train": wanted.train, "test": wanted.test}
        columns, cells = ["method"], [[name_of(method)] for method in setting.methods(*SEVEN)]
        for mode, target in targets.items():
            metric, published = METRICS[mode]
            columns += [f"{mode}: paper", f"ours, to {100 * target:g} %", "paper's ratio", "our ratio"]
            for row, more in zip(cells, _columns(setting, results, paper, metric, target, published), strict=True):
                row.extend(more)
        tables.append(
            Table(
                f"T1: rounds to a target on {stands_for(setting, paper)}",
                tuple(columns),
                tuple(map(tuple, cells)),
                (rounds_rule(setting), NEVER_RULE, RATIO_RULE, PRINTED_RATIOS),
            )
        )
        lines = by_method(setting, results, paper, SEVEN)
        charts += [
            outcome_curves(f"{setting.title(paper)}: {mode} accuracy", lines, METRICS[mode][0], targets=[target])
            for mode, target in targets.items()
        ]
    return Shown(tuple(tables), tuple(charts))


def _columns(
    setting: Setting, results: Results, paper: str, metric: str, target: float, published: dict[str, dict[str, float]]
) -> list[Sequence[str]]:
    """Paper, ours and both ratios to the best, for each method."""
    value = rounds_to(setting.milestone(target, metric))
    ours = [over_seeds(outcomes, value) for outcomes in by_method(setting, results, paper, SEVEN).values()]
    theirs = [published[method][paper] for method in setting.methods(*SEVEN)]
    shown = [[printed(one, 0) for one in theirs], [one.text() for one in ours]]
    return list(zip(*shown, ratios(theirs), ratios([one.mean for one in ours]), strict=True))


TARGET = Target(
    name="T1", title="Rounds to a target accuracy", papers=DATASETS, methods=SEVEN, requests=requests, show=show
)
