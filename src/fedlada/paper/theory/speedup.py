"""Linear speed-up: rounds to a target against the number of active clients and of local steps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedlada.paper.theory.fits import slope, slope_over_seeds
from fedlada.paper.theory.horizon import SCALES, THEOREM, Search, Setting, search
from fedlada.paper.theory.problem import Problem, make_problem
from fedlada.plots.chart import Chart, Series
from fedlada.workbench.report.table import NEVER, Table, spread

NUM_CLIENTS = 64
"""m where only some take part."""
FEW = 4
"""S where K varies."""
RULES = {False: "the theorem's", True: "best scale"}
"""The names of both rules for the step sizes."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One series of experiments: the sizes S or K that vary, and all that is fixed."""

    label: str
    varied: str
    """"S" or "K"."""
    sizes: tuple[int, ...]
    other: int
    """K where S varies, S where K varies."""
    num_clients: int
    tilt: float
    target: float
    noise: float = 1.0
    expected: tuple[str, str] = ("-1", "-1")
    """The slope that the theory predicts, with the theorem's step sizes and with the best ones."""
    moments: tuple[float, float] = (0.5, 0.9)

    def setting(self, size: int) -> Setting:
        """The run of one size."""
        active, steps = (size, self.other) if self.varied == "S" else (self.other, size)
        return Setting(cohort_size=active, num_steps=steps, beta1=self.moments[0], beta2=self.moments[1])


@dataclass(frozen=True)
class Line:
    """The results of a plan."""

    plan: Plan
    problem: Problem
    searches: tuple[Search, ...]

    def points(self, *, best: bool) -> list[tuple[int, tuple[float, ...]]]:
        """Each size that reached the target, with the rounds of every seed."""
        pairs = zip(self.plan.sizes, (one.rounds(best=best) for one in self.searches), strict=True)
        return [(size, needed) for size, needed in pairs if needed is not None]


def plans(
    *, cohort_sizes: tuple[int, ...], step_counts: tuple[int, ...], target: float, papers_moments: tuple[int, ...]
) -> list[Plan]:
    """Each claim with its control: without noise, more clients or steps have nothing to average out."""
    label = f"S of {NUM_CLIENTS}, noise"
    clients = Plan(
        label=label, varied="S", sizes=cohort_sizes, other=8, num_clients=NUM_CLIENTS, tilt=0.1, target=target
    )
    label = "K, all clients active, noise"
    steps = Plan(label=label, varied="K", sizes=step_counts, other=FEW, num_clients=FEW, tilt=1.0, target=target)
    exact: dict[str, Any] = {"noise": 0.0, "tilt": 0.0, "expected": ("-1 (step-size formula)", "0")}
    sampled = f"K, {FEW} of {NUM_CLIENTS} heterogeneous clients, noise"
    listed = [
        clients,
        replace(clients, label=f"S of {NUM_CLIENTS}, no noise", **exact),
        steps,
        replace(steps, label="K, all clients active, no noise", **exact),
        replace(steps, label=sampled, num_clients=NUM_CLIENTS, target=2 * target),
    ]
    if papers_moments:
        label = "K, all active, noise, b1 0.9, b2 0.99"
        listed.append(replace(steps, label=label, sizes=papers_moments, moments=(0.9, 0.99)))
    return listed


def carry_out(plan: Plan, seeds: Sequence[int], *, most_rounds: int, progress: Callable[[str], None]) -> Line:
    """Search the rounds to the target for each size."""
    problem = make_problem(seeds, num_clients=plan.num_clients, noise=plan.noise, tilt=plan.tilt)
    searches = []
    for size in plan.sizes:
        progress(f"{plan.label}: {plan.varied} = {size}")
        searches.append(search(problem, plan.setting(size), seeds, target=plan.target, most_rounds=most_rounds))
    return Line(plan, problem, tuple(searches))


def rounds_table(lines: Sequence[Line], num_seeds: int) -> Table:
    """How many rounds each setting needs."""
    rows = [_rounds_row(line, one) for line in lines for one in line.searches]
    return Table(
        "Rounds to the target",
        (
            "experiment",
            "target",
            "S",
            "K",
            "rounds T",
            "S K T",
            "power of T",
            "conditions",
            "rounds, best scale",
            "scale",
        ),
        tuple(rows),
        (
            f"Mean ± standard deviation over {num_seeds} seeds. A run of T rounds uses the theorem's step sizes of "
            "that T, eta_l = 1/sqrt(KT) and K eta_g eta_l = sqrt(SK/T); T is the least from which on the mean of "
            "||grad F(z^t)||^2 over the whole run is at most the target (horizons are doubled, with a power law "
            "between two of them).",
            "Power of T: how the mean falls with the horizon at the last doubling; -0.5 where 1/sqrt(SKT) dominates, "
            "-1 where 1/T does. Conditions: whether the theorem's bounds on step sizes hold at that T.",
            "Best scale: the theorem's eta_l times the best of " + ", ".join(f"{one:g}" for one in SCALES) + "; where "
            "it is the first or the last of them, a better one may lie outside.",
        ),
    )


def _rounds_row(line: Line, one: Search) -> tuple[str, ...]:
    setting, theorem, best = one.setting, one.rounds(), one.rounds(best=True)
    size = setting.cohort_size * setting.num_steps
    horizon = math.ceil(statistics.fmean(theorem)) if theorem else one.horizons[-1]
    return (
        line.plan.label,
        f"{one.target:g}",
        str(setting.cohort_size),
        str(setting.num_steps),
        spread(theorem, ".0f") if theorem else NEVER,
        f"{size * statistics.fmean(theorem):.0f}" if theorem else NEVER,
        f"{one.decay():.2f}",
        "hold" if setting.meets_conditions(line.problem, horizon) else "violated",
        spread(best, ".0f") if best else NEVER,
        f"{one.best_scale():g}",
    )


def slopes_table(lines: Sequence[Line], num_seeds: int) -> Table:
    """The slope of log rounds against log S or log K, for each line and both rules for the step sizes."""
    rows = [
        (line.plan.label, RULES[best], *_slope_cells(line.points(best=best)), expected)
        for line in lines
        for best, expected in zip(RULES, line.plan.expected, strict=True)
    ]
    return Table(
        "Slope of log rounds against log S or log K",
        ("experiment", "step sizes", "slope", "95 % interval", "between adjacent sizes", "expected"),
        tuple(rows),
        (
            f"A least-squares slope for each of {num_seeds} seeds (each has a problem, cohorts and noise of its own), "
            "then Student's t-interval of their mean. It covers chance, not curvature: see the slopes between "
            "adjacent sizes.",
            "The theorem's step sizes grow with S and K, so rounds fall as 1/(SK) even where there is no noise to "
            "average. The best scale decides: with noise it should follow 1/(SK) as well, without noise it should not.",
        ),
    )


def _slope_cells(points: list[tuple[int, tuple[float, ...]]]) -> tuple[str, str, str]:
    if len(points) < 2:
        return "-", "-", "-"
    sizes, needed = [size for size, _ in points], [rounds for _, rounds in points]
    fitted = slope_over_seeds(sizes, needed)
    means = [statistics.fmean(rounds) for rounds in needed]
    local = [slope(sizes[i : i + 2], means[i : i + 2]) for i in range(len(sizes) - 1)]
    return f"{fitted.mean:.2f}", f"{fitted.low:.2f} to {fitted.high:.2f}", ", ".join(f"{one:.2f}" for one in local)


def rounds_chart(lines: Sequence[Line], varied: str) -> Chart:
    """Rounds against one size, both axes logarithmic; bands reach from the fastest to the slowest seed."""
    series = [
        _series(f"{line.plan.label}, {rule}", points)
        for line in lines
        for best, rule in RULES.items()
        if line.plan.varied == varied and (points := line.points(best=best))
    ]
    what = "active clients S" if varied == "S" else "local steps K"
    return Chart(f"Rounds to the target against {what}", what, "rounds", tuple(series), log_x=True, log_y=True)


def _series(name: str, points: list[tuple[int, tuple[float, ...]]]) -> Series:
    needed = [rounds for _, rounds in points]
    return Series(
        name,
        x=tuple(float(size) for size, _ in points),
        y=tuple(statistics.fmean(rounds) for rounds in needed),
        low=tuple(min(rounds) for rounds in needed),
        high=tuple(max(rounds) for rounds in needed),
    )


def collapse_chart(lines: Sequence[Line]) -> Chart:
    """The mean squared gradient norm of every run against S K T: one curve where the theorem's first term dominates."""
    series = []
    labelled = [(line.plan.label, one) for line in lines if line.plan.noise for one in line.searches]
    for label, one in labelled:
        active, steps = one.setting.cohort_size, one.setting.num_steps
        x = tuple(float(active * steps * horizon) for horizon in one.horizons)
        y = tuple(float(means[THEOREM].mean()) for means in one.means)
        series.append(Series(f"{label}: S {active}, K {steps}", x, y))
    note = "Runs of different S and K lie on one line of slope -1/2 where 1/sqrt(SKT) dominates."
    title = "Mean squared gradient norm against all local steps"
    return Chart(title, "S K T", "mean of ||grad F(z^t)||^2", tuple(series), log_x=True, log_y=True, note=note)
