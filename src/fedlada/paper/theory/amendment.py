"""The amended weight alpha: its best value, and its effect on the consistency of clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlada import recipes
from fedlada.methods.method import FederatedMethod
from fedlada.paper.theory.fits import slope_over_seeds
from fedlada.paper.theory.horizon import gradient_norms
from fedlada.paper.theory.problem import Problem, make_problem
from fedlada.paper.theory.trajectory import rounds
from fedlada.plots.chart import Chart, Series
from fedlada.plots.interval import interval
from fedlada.workbench.report.table import Table

NUM_CLIENTS, COHORT_SIZE, NUM_STEPS = 32, 8, 32
RATE_SCALES = (0.25, 0.5, 1.0, 2.0)
"""Factors on the theorem's local rate, whose constant is free; the best alpha depends on it."""
STEP_COUNTS = (4, 8, 16, 32)
CONSISTENCY_RATE = 0.01
CONSISTENCY_ALPHA = 0.1


def _fedlada(alpha: float, server_rate: float = 1.0) -> FederatedMethod:
    return recipes.fedlada(alpha=alpha, beta1=0.5, beta2=0.9, v_init=0.25, server_lr=server_rate)


@dataclass(frozen=True)
class AlphaSweep:
    """Squared gradient norms for each alpha: `[rate, seed]` tensors."""

    alphas: tuple[float, ...]
    num_rounds: int
    of_auxiliary: tuple[Tensor, ...]
    """Mean of ||grad F(z^t)||^2 over the run, which the theorem bounds."""
    of_model: tuple[Tensor, ...]
    """Mean of ||grad F(x^t)||^2 over the last quarter: the final model's."""


@torch.inference_mode()
def sweep_alpha(
    seeds: Sequence[int], *, alphas: Sequence[float], num_rounds: int, progress: Callable[[str], None]
) -> AlphaSweep:
    """FedLADA with the theorem's step sizes on clients with different minima and different linear terms."""
    problem = make_problem(seeds, num_clients=NUM_CLIENTS, noise=0.5, shift=1.0, tilt=1.0)
    rates = [scale / math.sqrt(NUM_STEPS * num_rounds) for scale in RATE_SCALES]
    of_auxiliary, of_model = [], []
    for alpha in alphas:
        progress(f"amended weight: alpha = {alpha:g}")
        method = _fedlada(alpha, server_rate=math.sqrt(COHORT_SIZE))
        early, late = _gradients(problem, method, alpha, seeds, num_rounds, rates)
        of_auxiliary.append(early)
        of_model.append(late)
    return AlphaSweep(tuple(alphas), num_rounds, tuple(of_auxiliary), tuple(of_model))


def _gradients(
    problem: Problem, method: FederatedMethod, alpha: float, seeds: Sequence[int], num_rounds: int, rates: list[float]
) -> tuple[Tensor, Tensor]:
    quarter = num_rounds - max(num_rounds // 4, 1)
    whole = torch.zeros(len(rates), len(seeds), dtype=torch.float64)
    late = torch.zeros_like(whole)
    sizes = {"cohort_size": COHORT_SIZE, "num_steps": NUM_STEPS, "num_rounds": num_rounds}
    for number, (norm, now) in enumerate(gradient_norms(problem, method, alpha, seeds, rates=rates, **sizes)):
        whole += norm
        if number >= quarter:
            late += problem.gradient(now).square().sum(-1)
    return whole / num_rounds, late / (num_rounds - quarter)


def alpha_tables(sweep: AlphaSweep, num_seeds: int) -> tuple[Table, Table]:
    """One table for the quantity that the theorem bounds, one for the model itself."""
    sizes = f"{COHORT_SIZE} of {NUM_CLIENTS} clients, {NUM_STEPS} local steps"
    run = f"{sizes}, {sweep.num_rounds} rounds, {num_seeds} seeds."
    return (
        _alpha_table("Amended weight: mean of ||grad F(z^t)||^2 over the run", sweep.alphas, sweep.of_auxiliary, run),
        _alpha_table("Amended weight: ||grad F(x^t)||^2 in the last quarter", sweep.alphas, sweep.of_model, run),
    )


def _alpha_table(title: str, alphas: tuple[float, ...], values: tuple[Tensor, ...], run: str) -> Table:
    rows = [
        (f"{alpha:g}", *(f"{float(rate.mean()):.4f}" for rate in own))
        for alpha, own in zip(alphas, values, strict=True)
    ]
    rows.append(("best alpha", *(optimum(alphas, [own[rate] for own in values]) for rate in range(len(RATE_SCALES)))))
    return Table(
        title,
        ("alpha", *(f"{scale:g} x the theorem's eta_l" for scale in RATE_SCALES)),
        tuple(rows),
        (
            run,
            "Interior: better than both the smallest and the largest alpha, by 95 % t-intervals of the paired "
            "differences, corrected for the choice of the best (Bonferroni).",
        ),
    )


def optimum(alphas: Sequence[float], values: Sequence[Tensor]) -> str:
    """The best alpha, and whether it beats both ends of the range significantly."""
    best = min(range(len(alphas)), key=lambda index: float(values[index].mean()))
    if best in (0, len(alphas) - 1):
        return f"{alphas[best]:g} (at the boundary)"
    ends = [interval((values[end] - values[best]).tolist(), choices=len(alphas)) for end in (0, -1)]
    return f"{alphas[best]:g} ({'interior' if all(one.low > 0 for one in ends) else 'not significant'})"


def alpha_chart(sweep: AlphaSweep) -> Chart:
    """The theorem's bounded mean against alpha, for each rate."""
    series = []
    for rate, scale in enumerate(RATE_SCALES):
        own = [interval(values[rate].tolist()) for values in sweep.of_auxiliary]
        y, low, high = zip(*((one.mean, one.low, one.high) for one in own), strict=True)
        series.append(Series(f"{scale:g} x the theorem's eta_l", sweep.alphas, y, low, high))
    title, y_label = "The amended weight has a best value", "mean of ||grad F(z^t)||^2"
    return Chart(title, "alpha", y_label, tuple(series), log_x=True, note="Bands: 95 % t-intervals over seeds.")


@dataclass(frozen=True)
class Consistency:
    """E||x_iK - x^{t+1}||^2 of each method and number of steps, for every seed."""

    alphas: tuple[float, ...]
    by_alpha: tuple[tuple[float, ...], ...]
    by_steps: tuple[tuple[float, ...], ...]
    others: dict[str, tuple[float, ...]]


@torch.inference_mode()
def measure_consistency(
    seeds: Sequence[int], *, alphas: Sequence[float], num_rounds: int, progress: Callable[[str], None]
) -> Consistency:
    """With eta_g = 1, so that x^{t+1} is the mean of the clients, and one constant local rate for all."""
    problem = make_problem(seeds, num_clients=NUM_CLIENTS, noise=0.5, shift=1.0, tilt=1.0)

    def spread(method: FederatedMethod, num_steps: int) -> tuple[float, ...]:
        progress(f"consistency: {method.name}, K = {num_steps}")
        total = torch.zeros(len(seeds), dtype=torch.float64)
        sizes = {"cohort_size": COHORT_SIZE, "num_steps": num_steps, "num_rounds": num_rounds}
        for visit in rounds(problem, method, seeds=seeds, rates=[CONSISTENCY_RATE], **sizes):
            total += (visit.ends - visit.after.params.unsqueeze(2)).square().sum(-1).mean(-1)[0]
        return tuple((total / num_rounds).tolist())

    return Consistency(
        tuple(alphas),
        by_alpha=tuple(spread(_fedlada(alpha), NUM_STEPS) for alpha in alphas),
        by_steps=tuple(spread(_fedlada(CONSISTENCY_ALPHA), steps) for steps in STEP_COUNTS),
        others={method.name: spread(method, NUM_STEPS) for method in (recipes.fedavg(), recipes.scaffold())},
    )


def consistency_table(measured: Consistency, num_seeds: int) -> Table:
    """The mean squared distance of the clients from their mean."""
    rows = [
        (f"fedlada, alpha {alpha:g}", str(NUM_STEPS), *_spread_cells(own))
        for alpha, own in zip(measured.alphas, measured.by_alpha, strict=True)
    ]
    rows += [
        (f"fedlada, alpha {CONSISTENCY_ALPHA:g}", str(steps), *_spread_cells(own))
        for steps, own in zip(STEP_COUNTS, measured.by_steps, strict=True)
        if steps != NUM_STEPS
    ]
    rows += [(name, str(NUM_STEPS), *_spread_cells(own)) for name, own in measured.others.items()]
    against_alpha = slope_over_seeds(measured.alphas, measured.by_alpha)
    against_steps = slope_over_seeds(STEP_COUNTS, measured.by_steps)
    return Table(
        "Consistency: E||x_iK - x^(t+1)||^2",
        ("method", "K", "mean", "95 % interval"),
        tuple(rows),
        (
            f"{COHORT_SIZE} of {NUM_CLIENTS} clients, eta_l {CONSISTENCY_RATE:g}, eta_g 1, {num_seeds} seeds; alpha 1 "
            "is LocalAdam.",
            f"It grows with alpha to the power {against_alpha} (2 where the pull is the same for all clients: only "
            f"alpha m / sqrt(v_hat) differs between them) and with K to the power {against_steps} (1 where noise "
            "drives clients apart, 2 where their objectives do).",
        ),
    )


def _spread_cells(values: tuple[float, ...]) -> tuple[str, str]:
    own = interval(values)
    return f"{own.mean:.3g}", f"{own.low:.3g} to {own.high:.3g}"


def consistency_chart(measured: Consistency) -> Chart:
    """Consistency against alpha, with methods without alpha as horizontal lines."""
    own = [interval(values) for values in measured.by_alpha]
    series = [Series("fedlada", measured.alphas, tuple(one.mean for one in own))]
    ends = (measured.alphas[0], measured.alphas[-1])
    for name, values in measured.others.items():
        series.append(Series(name, ends, (interval(values).mean,) * 2))
    title, y_label = f"Consistency after {NUM_STEPS} local steps", "E||x_iK - x^(t+1)||^2"
    return Chart(title, "alpha", y_label, tuple(series), log_x=True, log_y=True)
