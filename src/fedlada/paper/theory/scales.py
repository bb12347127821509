"""The whole study, in three sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedlada.methods.validation import one_of, whole_number
from fedlada.paper.theory import amendment, speedup
from fedlada.plots.chart import Chart
from fedlada.plots.interval import scipy_special
from fedlada.workbench.report.table import Table


@dataclass(frozen=True)
class Scale:
    """The size of the study."""

    target: float
    """Target of the mean squared gradient norm: the lower, the more the theorem's first term dominates."""
    cohort_sizes: tuple[int, ...]
    step_counts: tuple[int, ...]
    most_rounds: int
    alphas: tuple[float, ...]
    alpha_rounds: int
    consistency_rounds: int
    papers_moments: tuple[int, ...] = ()
    """Numbers of steps for the paper's own b1 and b2."""


SCALES = {
    "smoke": Scale(0.2, (4, 16), (4, 16), 128, (0.02, 0.2, 1.0), 4, 1),
    "quick": Scale(0.05, (2, 4, 8, 16), (4, 8, 16, 32), 2**13, (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0), 200, 50),
    "full": Scale(
        0.025,
        (2, 4, 8, 16, 32),
        (4, 8, 16, 32, 64),
        2**15,
        (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
        1000,
        200,
        (16, 32, 64),
    ),
}


def study(
    scale: str, seeds: Sequence[int], progress: Callable[[str], None] | None = None
) -> tuple[Sequence[Table], Sequence[Chart]]:
    """The theorem in practice: linear speed-up with its controls, the best alpha, consistency.

    `progress` is called with a description of what is being computed.
    """
    one_of("scale", scale, tuple(SCALES))
    own = [whole_number("seeds", seed) for seed in seeds]
    if len(set(own)) < max(len(own), 2):
        raise ValueError(f"the study needs at least two seeds, all different, to say how sure it is; got {own}")
    scipy_special()  # a missing package is reported before minutes are spent
    size, tell = SCALES[scale], progress or (lambda _: None)
    planned = speedup.plans(
        cohort_sizes=size.cohort_sizes,
        step_counts=size.step_counts,
        target=size.target,
        papers_moments=size.papers_moments,
    )
    lines = [speedup.carry_out(plan, own, most_rounds=size.most_rounds, progress=tell) for plan in planned]
    sweep = amendment.sweep_alpha(own, alphas=size.alphas, num_rounds=size.alpha_rounds, progress=tell)
    measured = amendment.measure_consistency(own, alphas=size.alphas, num_rounds=size.consistency_rounds, progress=tell)
    tables = (
        speedup.slopes_table(lines, len(own)),
        speedup.rounds_table(lines, len(own)),
        *amendment.alpha_tables(sweep, len(own)),
        amendment.consistency_table(measured, len(own)),
    )
    charts = (
        speedup.rounds_chart(lines, "S"),
        speedup.rounds_chart(lines, "K"),
        speedup.collapse_chart(lines),
        amendment.alpha_chart(sweep),
        amendment.consistency_chart(measured),
    )
    return tables, charts
