"""Rounds to a target accuracy: T1, on the training and on the test data, and T6, early and in the middle."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fedlada.paper.published import DATASETS, SEVEN, SPEED_TEST, SPEED_TRAIN, STAGE_TARGETS, STAGES
from fedlada.paper.rules import NEVER_RULE, RATIO_RULE, rounds_rule
from fedlada.paper.setting import Setting, main_lines, name_of, stands_for
from fedlada.paper.target import Lines, Results, Shown, Target, each_once, of_lines, printed, ratios
from fedlada.workbench.campaign.curves import outcome_curves
from fedlada.workbench.campaign.over_seeds import OverSeeds, Value, over_seeds, rounds_to
from fedlada.workbench.campaign.request import Outcome
from fedlada.workbench.report.table import Table

PRINTED_RATIOS = (
    "The paper's ratios are computed here from its rounds: those it prints for the test data of CIFAR-10 divide by "
    "575, a figure of the training data."
)
METRICS = {"train": ("full_train_accuracy", SPEED_TRAIN), "test": ("test_accuracy", SPEED_TEST)}


def _both_lines(setting: Setting, paper: str) -> Lines:
    """Every method until it has reached both targets."""
    milestones = [setting.milestone(target, METRICS[mode][0]) for mode, target in _both_targets(setting, paper).items()]
    return main_lines(setting, paper, SEVEN, setting.goal(setting.scale.longest, *milestones))


def _both_targets(setting: Setting, paper: str) -> dict[str, float]:
    wanted = setting.accuracies(paper)
    return {"train": wanted.train, "test": wanted.test}


def _show_both(setting: Setting, results: Results) -> Shown:
    """One table and two charts for each data set."""
    tables, charts = [], []
    for paper in setting.datasets(*DATASETS):
        lines, columns = of_lines(_both_lines(setting, paper), results), [_names(setting)]
        for mode, target in _both_targets(setting, paper).items():
            metric, published = METRICS[mode]
            theirs = [published[method][paper] for method in setting.methods(*SEVEN)]
            ours = _over_lines(lines, rounds_to(setting.milestone(target, metric)))
            names = (f"{mode}: paper", f"ours, to {100 * target:g} %", "paper's ratio", "our ratio")
            columns += zip(names, _compared(theirs, ours, digits=0), strict=True)
            title = f"{setting.title(paper)}: {mode} accuracy"
            charts.append(outcome_curves(title, lines, metric, targets=[target]))
        title = f"T1: rounds to a target on {stands_for(setting, paper)}"
        tables.append(_table(title, columns, (rounds_rule(setting), NEVER_RULE, RATIO_RULE, PRINTED_RATIOS)))
    return Shown(tuple(tables), tuple(charts))


def stage_lines(setting: Setting, paper: str) -> Lines:
    """Every method on one data set until it has reached the targets of both stages."""
    milestones = [setting.milestone(target) for target in stage_targets(setting, paper)]
    return main_lines(setting, paper, SEVEN, setting.goal(setting.scale.curve, *milestones))


def stage_targets(setting: Setting, paper: str) -> tuple[float, float]:
    """The accuracies of the two stages."""
    wanted = setting.accuracies(paper)
    return wanted.early, wanted.middle


def _show_stages(setting: Setting, results: Results) -> Shown:
    """One table and one chart for each data set."""
    tables, charts = [], []
    unit, size = setting.scale.bytes_unit
    for paper in setting.datasets(*DATASETS):
        lines, columns = of_lines(stage_lines(setting, paper), results), [_names(setting)]
        targets = stage_targets(setting, paper)
        for stage, target in enumerate(targets):
            theirs = [STAGES[method][paper][stage] for method in setting.methods(*SEVEN)]
            value = rounds_to(setting.milestone(target))
            travelled = [one.text() for one in _over_lines(lines, travelled_to(value, size))]
            names = (f"paper, {STAGE_TARGETS[paper][stage]:g} %", f"ours, {100 * target:g} %")
            compared = _compared(theirs, _over_lines(lines, value), digits=1)
            columns += zip((*names, "paper's ratio", "our ratio"), compared, strict=True)
            columns.append((f"our {unit}", travelled))
        bytes_rule = f"{unit}: the vectors that travelled up and down until then, without their envelopes."
        title = f"T6: rounds to the early and the middle stage on {stands_for(setting, paper)}"
        tables.append(_table(title, columns, (rounds_rule(setting), NEVER_RULE, RATIO_RULE, bytes_rule)))
        charts.append(outcome_curves(f"{setting.title(paper)}: test accuracy", lines, "test_accuracy", targets=targets))
    return Shown(tuple(tables), tuple(charts))


def travelled_to(reached: Value, size: float) -> Value:
    """Traffic up to a round, in both directions and for all clients, in units of `size` bytes."""

    def count(outcome: Outcome) -> float | None:
        round = reached(outcome)
        if round is None or math.isnan(round):
            return round
        return float(sum(row["bytes_up"] + row["bytes_down"] for row in outcome.history[: int(round)])) / size

    return count


Column = tuple[str, Sequence[str]]


def _names(setting: Setting) -> Column:
    return "method", [name_of(method) for method in setting.methods(*SEVEN)]


def _over_lines(lines: Results, value: Value) -> list[OverSeeds]:
    return [over_seeds(outcomes, value) for outcomes in lines.values()]


def _compared(theirs: Sequence[float], ours: Sequence[OverSeeds], *, digits: int) -> Iterator[Sequence[str]]:
    """The paper's rounds, ours, and both relative to the best of their column."""
    yield [printed(one, digits) for one in theirs]
    yield [one.text() for one in ours]
    yield ratios(theirs)
    yield ratios([one.mean for one in ours])


def _table(title: str, columns: Sequence[Column], notes: tuple[str, ...]) -> Table:
    names, cells = zip(*columns, strict=True)
    return Table(title, names, tuple(zip(*cells, strict=True)), notes)


T1 = Target(
    name="T1",
    title="Rounds to a target accuracy",
    papers=DATASETS,
    methods=SEVEN,
    requests=lambda setting: each_once(*(_both_lines(setting, paper) for paper in setting.datasets(*DATASETS))),
    show=_show_both,
)
T6 = Target(
    name="T6",
    title="Rounds to the early and the middle stage",
    papers=DATASETS,
    methods=SEVEN,
    requests=lambda setting: each_once(*(stage_lines(setting, paper) for paper in setting.datasets(*DATASETS))),
    show=_show_stages,
    full_seeds=5,
)
