"""T5: test accuracy when training has converged, and after the rounds of the curves."""

from __future__ import annotations

from collections.abc import Callable

from fedlada.paper.published import AT_1500, CONVERGED, DATASETS
from fedlada.paper.rules import NEVER_RULE, accuracy_rule, rounds_rule
from fedlada.paper.setting import Setting, main_lines, name_of, stands_for
from fedlada.paper.target import Lines, Results, Shown, Target, of_lines, percent, printed
from fedlada.training.history import History
from fedlada.workbench.campaign.curves import outcome_curves
from fedlada.workbench.campaign.over_seeds import Value, over_seeds, rounds_to
from fedlada.workbench.campaign.request import Milestone, Outcome, Request, moving_average
from fedlada.workbench.report.table import Table

METHODS = tuple(CONVERGED)


def _converged(setting: Setting, paper: str) -> Milestone:
    return setting.milestone(setting.accuracies(paper).train, "full_train_accuracy")


def _lines(setting: Setting, paper: str) -> list[Lines]:
    """Every method until it has converged on the training data, and as long as the curves."""
    goals = (setting.goal(setting.scale.longest, _converged(setting, paper)), setting.goal(setting.scale.curve))
    return [main_lines(setting, paper, METHODS, goal) for goal in goals]


def _requests(setting: Setting) -> list[Request]:
    lines = [one for paper in setting.datasets(*DATASETS) for one in _lines(setting, paper)]
    return [request for one in lines for own in one.values() for request in own]


def _show(setting: Setting, results: Results) -> Shown:
    """One table and one chart for each data set."""
    tables, charts = [], []
    curve = setting.goal(setting.scale.curve).rounds
    for paper in setting.datasets(*DATASETS):
        converged = _converged(setting, paper)
        # Both kinds of runs have the same groups.
        lines = of_lines(_lines(setting, paper)[0], results)
        waiting = {name: [one for one in outcomes if one.request.goal.until] for name, outcomes in lines.items()}
        fixed = {name: [one for one in outcomes if not one.request.goal.until] for name, outcomes in lines.items()}
        rows = tuple(
            (
                name,
                printed(CONVERGED[method][paper][0]),
                percent(over_seeds(waiting[name], _accuracy_when(converged.round_in, setting.smooth))),
                printed(CONVERGED[method][paper][1], 0),
                over_seeds(waiting[name], rounds_to(converged)).text(),
                printed(AT_1500[method][paper]),
                percent(over_seeds(fixed[name], _accuracy_when(lambda _: curve, setting.smooth))),
            )
            for method in setting.methods(*METHODS)
            for name in [name_of(method)]
        )
        columns = ("method", "paper, converged %", "ours %", "paper's round", "our round", "paper, round 1500 %")
        notes = (
            f"Training has converged when {100 * converged.target:g} % of the clients' training data are classified "
            "correctly (the paper does not define convergence; 98 % is its target elsewhere).",
            rounds_rule(setting),
            NEVER_RULE,
            accuracy_rule(setting, "Accuracies are those of the last evaluation up to that round"),
        )
        title = f"T5: accuracy at convergence on {stands_for(setting, paper)}"
        tables.append(Table(title, (*columns, f"ours, round {curve} %"), rows, notes))
        title = f"{setting.title(paper)}: training accuracy"
        charts.append(outcome_curves(title, waiting, "full_train_accuracy", targets=[converged.target]))
    return Shown(tuple(tables), tuple(charts))


def _accuracy_when(round_of: Callable[[History], int | None], smooth: int) -> Value:
    """The test accuracy at a round that is found in the history, as the mean of the last evaluations up to it."""

    def find(outcome: Outcome) -> float | None:
        round = round_of(outcome.history)
        if round is None or len(outcome.history) < round:
            return None
        values = moving_average(outcome.history[:round].measured("test_accuracy")[1], smooth)
        return values[-1] if values else None

    return find


T5 = Target(
    name="T5", title="Accuracy at convergence", papers=DATASETS, methods=METHODS, requests=_requests, show=_show
)
