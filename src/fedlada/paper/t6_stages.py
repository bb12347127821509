"""T6: rounds to the targets of the early and of the middle stage."""

from __future__ import annotations

import math

from fedlada.paper.main_runs import by_method, main_runs, stands_for
from fedlada.paper.published import DATASETS, SEVEN, STAGE_TARGETS, STAGES
from fedlada.paper.rules import NEVER_RULE, RATIO_RULE, rounds_rule
from fedlada.paper.setting import Setting, name_of
from fedlada.paper.target import Results, Shown, Target, printed, ratios
from fedlada.workbench.campaign.curves import outcome_curves
from fedlada.workbench.campaign.over_seeds import Value, over_seeds, rounds_to
from fedlada.workbench.campaign.request import Outcome, Request
from fedlada.workbench.report.table import Table


def requests(setting: Setting) -> list[Request]:
    """Every method on every data set until it has reached both targets."""
    return [request for paper in setting.datasets(*DATASETS) for request in stage_runs(setting, paper)]


def stage_runs(setting: Setting, paper: str) -> list[Request]:
    """The runs on one data set."""
    milestones = [setting.milestone(target) for target in stage_targets(setting, paper)]
    return main_runs(setting, paper, SEVEN, setting.goal(setting.scale.curve, *milestones))


def stage_targets(setting: Setting, paper: str) -> tuple[float, float]:
    """The accuracies of the two stages."""
    wanted = setting.accuracies(paper)
    return wanted.early, wanted.middle


def show(setting: Setting, results: Results) -> Shown:
    """One table and one chart for each data set."""
    tables, charts = [], []
    unit, size = setting.scale.bytes_unit
    for paper in setting.datasets(*DATASETS):
        lines = by_method(setting, results, paper, SEVEN)
        methods = setting.methods(*SEVEN)
        columns, cells = ["method"], [[name_of(method)] for method in methods]
        for stage, target in enumerate(stage_targets(setting, paper)):
            theirs = [STAGES[method][paper][stage] for method in methods]
            value = rounds_to(setting.milestone(target))
            ours = [over_seeds(outcomes, value) for outcomes in lines.values()]
            travelled = [over_seeds(outcomes, travelled_to(value, size)) for outcomes in lines.values()]
            columns += [f"paper, {STAGE_TARGETS[paper][stage]:g} %", f"ours, {100 * target:g} %"]
            columns += ["paper's ratio", "our ratio", f"our {unit}"]
            shown = [[printed(one) for one in theirs], [one.text() for one in ours]]
            shown += [ratios(theirs), ratios([one.mean for one in ours]), [one.text() for one in travelled]]
            for row, more in zip(cells, zip(*shown, strict=True), strict=True):
                row.extend(more)
        title = f"T6: rounds to the early and the middle stage on {stands_for(setting, paper)}"
        notes = (
            rounds_rule(setting),
            NEVER_RULE,
            RATIO_RULE,
            f"{unit}: the vectors that travelled up and down until then, without their envelopes.",
        )
        tables.append(Table(title, tuple(columns), tuple(map(tuple, cells)), notes))
        targets = stage_targets(setting, paper)
        charts.append(outcome_curves(f"{setting.title(paper)}: test accuracy", lines, "test_accuracy", targets=targets))
    return Shown(tuple(tables), tuple(charts))


def travelled_to(reached: Value, size: float) -> Value:
    """The vectors that travelled until a round, in both directions and for all clients, in units of so many bytes."""

    def count(outcome: Outcome) -> float | None:
        round = reached(outcome)
        if round is None or math.isnan(round):
            return round
        return float(sum(row["bytes_up"] + row["bytes_down"] for row in outcome.history[: int(round)])) / size

    return count


TARGET = Target(
    name="T6",
    title="Rounds to the early and the middle stage",
    papers=DATASETS,
    methods=SEVEN,
    requests=requests,
    show=show,
    full_seeds=5,
)
