"""T8: communication cost, in the paper's unit and in bytes."""

from __future__ import annotations

from fedlada.methods.recipes import RECIPES
from fedlada.paper.published import COST_RATIOS, COST_TOTALS, SEVEN, STAGE_TARGETS, VECTORS
from fedlada.paper.rules import NEVER_RULE, rounds_rule
from fedlada.paper.setting import Setting, name_of, stands_for
from fedlada.paper.speed import stage_lines, stage_targets, travelled_to
from fedlada.paper.target import Results, Shown, Target, each_once, of_lines, printed
from fedlada.plots.chart import Chart, Series
from fedlada.workbench.campaign.over_seeds import Value, over_seeds, rounds_to
from fedlada.workbench.campaign.request import Outcome
from fedlada.workbench.report.table import Table

PAPER = "cifar10"


def _show(setting: Setting, results: Results) -> Shown:
    """A round's cost, and the total to each target."""
    lines = of_lines(stage_lines(setting, PAPER), results)
    totals = tuple(_totals(setting, lines, stage) for stage in (0, 1))
    return Shown((_per_round(setting, lines), *totals), (_chart(setting, lines),))


def _per_round(setting: Setting, lines: Results) -> Table:
    rows = []
    unit, size = setting.scale.bytes_unit
    for method in setting.methods(*SEVEN):
        down, up = RECIPES[method]().num_vectors()
        ours = over_seeds(lines[name_of(method)], _a_round(size))
        rows.append((name_of(method), f"{VECTORS[method]} Nd", str(down), str(up), ours.text(3, without="-")))
    notes = (
        "Nd: a vector of the model's size for each active client. The paper does not count FedLADA's global direction, "
        "which must be sent to the clients too.",
    )
    columns = ("method", "paper's count", "vectors down", "vectors up", f"{unit} per round, ours")
    return Table(f"T8: cost of a round on {stands_for(setting, PAPER)}", columns, tuple(rows), notes)


def _a_round(size: float) -> Value:
    """The mean size of a round's messages, in units of so many bytes."""

    def count(outcome: Outcome) -> float | None:
        rows = outcome.history
        return sum(row["bytes_up"] + row["bytes_down"] for row in rows) / size / len(rows) if len(rows) else None

    return count


def _totals(setting: Setting, lines: Results, stage: int) -> Table:
    target = stage_targets(setting, PAPER)[stage]
    value = rounds_to(setting.milestone(target))
    methods = setting.methods(*SEVEN)
    rounds = {method: over_seeds(lines[name_of(method)], value) for method in methods}
    unit, size = setting.scale.bytes_unit
    travelled = {method: over_seeds(lines[name_of(method)], travelled_to(value, size)) for method in methods}
    base = travelled["fedavg"].mean if "fedavg" in methods else None
    counted = {method: None if (mean := rounds[method].mean) is None else VECTORS[method] * mean for method in methods}
    rows = tuple(
        (
            name_of(method),
            printed(COST_TOTALS[method][stage], 0),
            printed(COST_RATIOS[method][stage], 2),
            rounds[method].text(),
            printed(counted[method], 0),
            _ratio(counted[method], counted.get("fedavg")),
            travelled[method].text(),
            _ratio(travelled[method].mean, base),
        )
        for method in methods
    )
    columns = ("method", "paper, Nd", "paper's ratio", "our rounds", "ours, Nd", "our ratio in Nd", f"our {unit}")
    reached = f"{100 * target:g} % (the paper's {STAGE_TARGETS[PAPER][stage]:g} %)"
    title = f"T8: cost to {reached} on {stands_for(setting, PAPER)}"
    notes = (
        f"Ratios are to FedAvg; the paper's are cut, not rounded. Nd by the paper's count of vectors; {unit}: the "
        "vectors as they travel, without their envelopes.",
        rounds_rule(setting),
        NEVER_RULE,
    )
    return Table(title, (*columns, f"our ratio in {unit}"), rows, notes)


def _ratio(value: float | None, base: float | None) -> str:
    return "-" if value is None or not base else f"{value / base:.2f}"


def _chart(setting: Setting, lines: Results) -> Chart:
    """Accuracy against communication, for each method's first seed."""
    series = []
    unit, size = setting.scale.bytes_unit
    for name, outcomes in lines.items():
        sent, points = 0.0, []
        for row in outcomes[0].history:
            sent += (row["bytes_up"] + row["bytes_down"]) / size
            if row.get("test_accuracy") is not None:
                points.append((sent, row["test_accuracy"]))
        if points:
            x, y = zip(*points, strict=True)
            series.append(Series(name, x, y))
    note = f"Seed {setting.seeds[0]}."
    return Chart("T8: accuracy by what has travelled", unit, "test accuracy", tuple(series), note=note)


T8 = Target(
    name="T8",
    title="Communication cost",
    papers=(PAPER,),
    methods=SEVEN,
    requests=lambda setting: each_once(stage_lines(setting, PAPER)),
    show=_show,
    full_seeds=5,
)
