"""Tables about variants of one method: T3 (local epochs), T4 (alpha of FedLADA), T7 (SCAFFOLD's correction scaled)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedlada.paper.published import AMENDED_WEIGHT, LOCAL_INTERVAL, SCALED_SCAFFOLD
from fedlada.paper.rules import accuracy_rule, best_and_last_rule
from fedlada.paper.setting import Setting, main_group, stands_for
from fedlada.paper.target import Results, Shown, Target, each_once, of_lines, percent, printed
from fedlada.plots.chart import Chart, Series
from fedlada.workbench.campaign.curves import outcome_curves
from fedlada.workbench.campaign.over_seeds import OverSeeds, best, best_round, final, over_seeds
from fedlada.workbench.campaign.request import Outcome, Request
from fedlada.workbench.report.table import Table

TINY, CIFAR = "tinyimagenet", "cifar10"


def by_epochs(setting: Setting) -> tuple[dict[str, list[Request]], dict[str, str]]:
    """FedLADA for each of the paper's numbers of local epochs, and the metrics of both charts by their titles."""
    goal, scale, lines = setting.goal(setting.scale.curve), setting.scale, {}
    for epochs in LOCAL_INTERVAL:
        name = f"FedLADA, K = {epochs}"
        lines[name] = setting.requests(name, TINY, "fedlada", goal, local_epochs=scale.epochs[epochs])
    title = f"FedLADA by local epochs on {setting.title(TINY)}"
    return lines, {f"{title}: test accuracy": "test_accuracy", f"{title}: training loss": "train_loss"}


def by_alpha(setting: Setting, paper: str, alphas: Iterable[float]) -> dict[float, list[Request]]:
    """FedLADA for each alpha."""
    goal, group = setting.goal(setting.scale.curve), main_group(setting, paper, "fedlada")
    return {
        alpha: setting.requests(f"{group}, alpha {alpha:g}", paper, "fedlada", goal, hyper={"alpha": alpha})
        for alpha in alphas
    }


def _by_scale(setting: Setting) -> dict[float, list[Request]]:
    goal = setting.goal(setting.scale.curve)
    return {
        scale: setting.requests(f"SCAFFOLD, scale {scale:g}", CIFAR, "scaffold", goal, hyper={"correction": scale})
        for scale in SCALED_SCAFFOLD
    }


def _local_epochs(setting: Setting, results: Results) -> Shown:
    lines, charts = by_epochs(setting)
    found, rows = of_lines(lines, results), []
    for (epochs, (accuracy, round)), outcomes in zip(LOCAL_INTERVAL.items(), found.values(), strict=True):
        ours = over_seeds(outcomes, best("test_accuracy", setting.smooth))
        when = over_seeds(outcomes, best_round("test_accuracy", setting.smooth))
        local = str(setting.scale.epochs[epochs])
        rows.append((str(epochs), local, printed(accuracy), percent(ours), str(round), when.text(without="-")))
    rule = accuracy_rule(setting, f"Best test accuracy within {setting.goal(setting.scale.curve).rounds} rounds")
    columns = ("K in the paper", "local epochs here", "paper's best %", "our best %", "paper's round", "our round")
    table = Table(f"T3: local epochs of FedLADA on {stands_for(setting, TINY)}", columns, tuple(rows), (rule,))
    drawn = (outcome_curves(own, found, metric, log_y=metric == "train_loss") for own, metric in charts.items())
    return Shown((table,), tuple(drawn))


def _amended_weight(setting: Setting, results: Results) -> Shown:
    found = of_lines(by_alpha(setting, TINY, AMENDED_WEIGHT), results)
    highest, last = _best_and_last(setting, found)
    table = Table(
        f"T4: alpha of FedLADA on {stands_for(setting, TINY)}",
        ("alpha", "paper %", "our best %", "our last %"),
        _rows(AMENDED_WEIGHT, (highest, last), 1),
        (best_and_last_rule(setting), "alpha = 1 is LocalAdam."),
    )
    known = {alpha: 100 * figure.mean for alpha, figure in highest.items() if figure.mean is not None}
    series = (
        Series("paper, TinyImageNet", tuple(AMENDED_WEIGHT), tuple(AMENDED_WEIGHT.values())),
        Series(f"ours, {setting.title(TINY)}", tuple(known), tuple(known.values())),
    )
    by_value = Chart("T4: accuracy by alpha", "alpha", "best test accuracy, %", series, log_x=True)
    title, lines = f"T4: FedLADA by alpha on {setting.title(TINY)}", {f"alpha {one:g}": found[one] for one in found}
    return Shown((table,), (by_value, outcome_curves(title, lines, "test_accuracy")))


def _scaled_scaffold(setting: Setting, results: Results) -> Shown:
    found = of_lines(_by_scale(setting), results)
    highest, last = _best_and_last(setting, found)
    table = Table(
        f"T7: scaled corrections of SCAFFOLD on {stands_for(setting, CIFAR)}",
        ("scale", "paper %", "our last %", "our best %"),
        _rows(SCALED_SCAFFOLD, (last, highest), 2),
        (best_and_last_rule(setting), "Scale 0 is FedAvg, scale 1 SCAFFOLD."),
    )
    lines = {f"SCAFFOLD, scale {scale:g}": outcomes for scale, outcomes in found.items()}
    return Shown((table,), (outcome_curves("T7: SCAFFOLD by the scale of its correction", lines, "test_accuracy"),))


Figures = Mapping[float, OverSeeds]


def _best_and_last(setting: Setting, found: Mapping[float, Sequence[Outcome]]) -> tuple[Figures, Figures]:
    values = (best("test_accuracy", setting.smooth), final("test_accuracy", setting.smooth))
    highest, last = ({one: over_seeds(outcomes, value) for one, outcomes in found.items()} for value in values)
    return highest, last


def _rows(published: Mapping[float, float], ours: Sequence[Figures], digits: int) -> tuple[tuple[str, ...], ...]:
    """A row for each value that was varied: the paper's accuracy and ours."""
    return tuple(
        (f"{value:g}", printed(paper, digits), *(percent(figures[value], digits) for figures in ours))
        for value, paper in published.items()
    )


T3 = Target(
    name="T3",
    title="Local epochs of FedLADA",
    papers=(TINY,),
    requests=lambda setting: each_once(by_epochs(setting)[0]),
    show=_local_epochs,
    quick_seeds=1,
)
T4 = Target(
    name="T4",
    title="The amended weight alpha of FedLADA",
    papers=(TINY,),
    requests=lambda setting: each_once(by_alpha(setting, TINY, AMENDED_WEIGHT)),
    show=_amended_weight,
    quick_seeds=2,
)
T7 = Target(
    name="T7",
    title="Scaled corrections of SCAFFOLD",
    papers=(CIFAR,),
    requests=lambda setting: each_once(_by_scale(setting)),
    show=_scaled_scaffold,
    quick_seeds=2,
)
