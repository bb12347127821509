"""T5: test accuracy when training has converged, and after the rounds of the curves."""

from __future__ import annotations

from collections.abc import Callable

from fedlada.paper.main_runs import by_method, main_runs, stands_for
from fedlada.paper.published import AT_1500, CONVERGED, DATASETS
from fedlada.paper.rules import NEVER_RULE, accuracy_rule, rounds_rule
from fedlada.paper.setting import Setting, name_of
from fedlada.paper.target import Results, Shown, Target, percent, printed
from fedlada.training.history import History
from fedlada.workbench.campaign.curves import outcome_curves
from fedlada.workbench.campaign.goal import moving_average
from fedlada.workbench.campaign.over_seeds import Value, over_seeds, rounds_to
from fedlada.workbench.campaign.request import Outcome, Request
from fedlada.workbench.report.table import Table

METHODS = tuple(CONVERGED)


def requests(setting: Setting) -> list[Request]:
    """Every method until it has converged on the training data, and at least as long as the curves."""
    needed = []
    for paper in setting.datasets(*DATASETS):
        converged = setting.milestone(setting.accuracies(paper).train, "full_train_accuracy")
        needed += main_runs(setting, paper, METHODS, setting.goal(setting.scale.longest, converged))
        needed += main_runs(setting, paper, METHODS, setting.goal(setting.scale.curve))
    return needed


def show(setting: Setting, results: Results) -> Shown:
    """One table and one chart for each data set."""
    tables, charts = [], []
    curve = setting.goal(setting.scale.curve).rounds
    for paper in setting.datasets(*DATASETS):
        target = setting.accuracies(paper).train
        converged = setting.milestone(target, "full_train_accuracy")
        waiting, fixed = _halves(by_method(setting, results, paper, METHODS))
        rows = tuple(
            (
                name_of(method),
                printed(CONVERGED[method][paper][0]),
                percent(over_seeds(waiting[name_of(method)], _accuracy_when(converged.round_in, setting.smooth))),
                printed(CONVERGED[method][paper][1], 0),
                over_seeds(waiting[name_of(method)], rounds_to(converged)).text(),
                printed(AT_1500[method][paper]),
                percent(over_seeds(fixed[name_of(method)], _accuracy_when(lambda _: curve, setting.smooth))),
            )
            for method in setting.methods(*METHODS)
        )
        columns = ("method", "paper, converged %", "ours %", "paper's round", "our round", "paper, round 1500 %")
        notes = (
            f"Training has converged when {100 * target:g} % of the clients' training data are classified rightly (the "
            "paper does not say what it takes for that; 98 % is its target elsewhere).",
            rounds_rule(setting),
            NEVER_RULE,
            accuracy_rule(setting, "Accuracies are those of the last evaluation up to that round"),
        )
        tables.append(
            Table(
                f"T5: accuracy at convergence on {stands_for(setting, paper)}",
                (*columns, f"ours, round {curve} %"),
                rows,
                notes,
            )
        )
        charts.append(
            outcome_curves(
                f"{setting.title(paper)}: training accuracy", waiting, "full_train_accuracy", targets=[target]
            )
        )
    return Shown(tuple(tables), tuple(charts))


def _halves(results: Results) -> tuple[Results, Results]:
    """The outcomes of those that wait for convergence, and of those that run for a fixed time."""
    waiting = {name: [one for one in outcomes if one.request.goal.until] for name, outcomes in results.items()}
    fixed = {name: [one for one in outcomes if not one.request.goal.until] for name, outcomes in results.items()}
    return waiting, fixed


def _accuracy_when(round_of: Callable[[History], int | None], smooth: int) -> Value:
    """The test accuracy at a round that is found in the history, as the mean of the last evaluations up to it."""

    def find(outcome: Outcome) -> float | None:
        round = round_of(outcome.history)
        if round is None or len(outcome.history) < round:
            return None
        values = moving_average(outcome.history[:round].measured("test_accuracy")[1], smooth)
        return values[-1] if values else None

    return find


TARGET = Target(
    name="T5",
    title="Accuracy at convergence",
    papers=DATASETS,
    methods=METHODS,
    requests=requests,
    show=show,
)
