"""F8, the "matching dislocation": the effect of an adaptive server on clients amended by the last direction.

The paper draws it for two clients and K = 3 and gives no numbers; here it is computed. Both servers start from the same
model x^t, direction and moments, and their clients do the same local work. The server's step alone differs, and with
it the point at which the direction that the clients have just measured will be used.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedlada import recipes
from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import GradientAt, Kept, Server, Upload, map_tensors
from fedlada.paper.setting import Setting
from fedlada.paper.target import Results, Shown, Target
from fedlada.plots.chart import Chart, Series
from fedlada.workbench.report.table import Table

NUM_STEPS = 3
LOCAL_RATE = 0.1
ALPHA = 0.1
SGD_RATE, ADAM_RATE = 1.0, 0.1
"""eta_g of the paper's experiments; its sketch has both servers use the same."""
SHARED_ROUNDS = 4
"""Rounds before the fork, all with server SGD, which build up the direction and the moments."""
FORKS = range(1, 9)
"""Other rounds of the fork, so that the result does not depend on the one that is drawn."""
LATER_ROUNDS = 50
SGD, SAME_RATE = "SGD", "Adam, same eta_g"
PAPER_RATE, SAME_LENGTH = "Adam, the paper's eta_g", "Adam, SGD's step length"

START = torch.tensor([0.0, 1.0], dtype=torch.float64)
OPTIMA = torch.tensor([[4.0, 5.0], [5.0, 0.0]], dtype=torch.float64)
CURVATURES = torch.tensor([[0.4, 2.0], [0.6, 1.6]], dtype=torch.float64)
"""h_i in F_i(x) = 1/2 sum_j h_ij (x_j - x*_ij)^2: flat on the way to x*, steep where the clients disagree."""


def optimum(curvatures: Tensor = CURVATURES, optima: Tensor = OPTIMA) -> Tensor:
    """x*, where the mean of both gradients is zero."""
    return (curvatures * optima).sum(0) / curvatures.sum(0)


def gradients(params: Tensor) -> Tensor:
    """Each client's gradient at its own point, `[2, 2]`."""
    return CURVATURES * (params - OPTIMA)


def global_gradient(params: Tensor) -> Tensor:
    """The gradient of F at one point."""
    return gradients(params.expand(2, -1)).mean(0)


def excess(params: Tensor) -> float:
    """F at a point, minus its minimum."""
    return float((CURVATURES.mean(0) * (params - optimum()) ** 2).sum() / 2)


@dataclass(frozen=True)
class Played:
    """One round: both clients' paths `[K + 1, 2, 2]`, the mean upload, the server and the memories afterwards."""

    paths: Tensor
    mean: Upload
    after: Server
    kept: Kept

    @property
    def pseudo_gradient(self) -> Tensor:
        """D / (eta_l K): the clients' mean step, which the next round takes for the gradient of F."""
        return self.mean.delta / (LOCAL_RATE * NUM_STEPS)


def play(
    method: FederatedMethod,
    server: Server,
    kept: Kept | None = None,
    *,
    gradients: GradientAt = gradients,
    lr: float = LOCAL_RATE,
    num_steps: int = NUM_STEPS,
) -> Played:
    """Both clients take K exact gradient steps, each corrected by the method, and the server takes its own."""
    broadcast = map_tensors(lambda vector: vector.expand(2, -1), server.broadcast)
    local = method.begin(broadcast, kept or method.init_kept(broadcast.params), lr=lr)
    path = [local.params]
    for _ in range(num_steps):
        local = method.step(local, gradients)
        path.append(local.params)
    uploads, kept = method.finish(local, num_steps)
    mean = map_tensors(lambda vector: vector.mean(0), uploads)
    after = method.aggregate(server, mean, lr=lr, num_steps=num_steps, participation=1.0)
    return Played(torch.stack(path), mean, after, kept)


@dataclass(frozen=True)
class Fork:
    """The same round with server SGD and with server Adam, from the same state."""

    start: Server
    methods: dict[str, FederatedMethod]
    played: dict[str, Played]


def fork(alpha: float, shared_rounds: int = SHARED_ROUNDS) -> Fork:
    """Play the shared rounds, then the one in which the servers diverge."""
    plain = recipes.fedcm(alpha=alpha, server_lr=SGD_RATE)
    moments = _adam(alpha, ADAM_RATE).init(START).optimizer
    server = plain.init(START)
    for _ in range(shared_rounds):
        shared = play(plain, server)
        # Adam's moments see the same deltas; its own step is not taken.
        known = replace(server, optimizer=moments)
        adam = _adam(alpha, ADAM_RATE)
        moments = adam.aggregate(known, shared.mean, lr=LOCAL_RATE, num_steps=NUM_STEPS, participation=1.0).optimizer
        server = shared.after
    start = replace(server, optimizer=moments)
    length = _norm(play(plain, start).after.params - start.params)
    unit_length = _norm(play(_adam(alpha, 1.0), start).after.params - start.params)
    methods = {
        SGD: plain,
        SAME_RATE: _adam(alpha, SGD_RATE),
        PAPER_RATE: _adam(alpha, ADAM_RATE),
        SAME_LENGTH: _adam(alpha, length / unit_length),
    }
    return Fork(start, methods, {name: play(method, start) for name, method in methods.items()})


def _adam(alpha: float, server_rate: float) -> FederatedMethod:
    return recipes.fedadam_amended(alpha=alpha, server_lr=server_rate)


def matching_dislocation() -> tuple[Table, Chart]:
    """The measured gaps with and without the amendment, and the picture of the amended round."""
    rows = []
    for alpha in (ALPHA, 1.0):
        clients = f"alpha {alpha:g}" + ("" if alpha < 1 else " (not amended)")
        drawn, forks = fork(alpha), [fork(alpha, place) for place in FORKS]
        rows += [(clients, name, *_measure(drawn, forks, name)) for name in drawn.methods]
    return Table(
        f"F8: matching dislocation, two clients, K = {NUM_STEPS}",
        (
            "clients",
            "server",
            "step length",
            "step to mean",
            "gap at x^(t+1)",
            "angle at x^(t+1)",
            "gap a round later",
            f"angle, mean of {len(FORKS)} forks",
            f"F - F* after {LATER_ROUNDS} rounds",
        ),
        tuple(rows),
        (
            "Step to mean: the angle between the server's step and the clients' mean step. Gap at x^(t+1): "
            "||g_a - grad F(x^(t+1))|| / ||grad F(x^(t+1))||, with g_a the clients' mean step of round t, which amends "
            "round t+1; angle: between these two. Gap a round later: the same with the mean step of round t+1. Angles "
            "in degrees.",
            f"All servers start from the same x^t, g_a and moments, after {SHARED_ROUNDS} rounds with server SGD "
            f"(forks: after {FORKS[0]} to {FORKS[-1]}); eta_l {LOCAL_RATE:g}, eta_g {SGD_RATE:g}, the paper's for Adam "
            f"{ADAM_RATE:g}.",
        ),
    ), _picture(fork(ALPHA))


def _measure(own: Fork, forks: Sequence[Fork], name: str) -> tuple[str, ...]:
    method, played = own.methods[name], own.played[name]
    there, step = played.after.params, own.start.params - played.after.params
    later = play(method, played.after)
    server = played.after
    for _ in range(LATER_ROUNDS):
        server = play(method, server).after
    return (
        f"{_norm(step):.3f}",
        f"{_angle(step, played.pseudo_gradient):.1f}",
        f"{_gap(played.pseudo_gradient, there):.2f}",
        f"{_misled(played):.1f}",
        f"{_gap(later.pseudo_gradient, there):.2f}",
        f"{statistics.fmean(_misled(other.played[name]) for other in forks):.1f}",
        f"{excess(server.params):.3g}",
    )


def _misled(played: Played) -> float:
    """The angle between the direction that the clients will be pulled in and the gradient where they start."""
    return _angle(played.pseudo_gradient, global_gradient(played.after.params))


def _gap(direction: Tensor, params: Tensor) -> float:
    truth = global_gradient(params)
    return _norm(direction - truth) / _norm(truth)


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))


def _angle(one: Tensor, other: Tensor) -> float:
    cosine = float(one @ other) / (_norm(one) * _norm(other))
    return math.degrees(math.acos(max(-1.0, min(1.0, cosine))))


def _picture(own: Fork) -> Chart:
    paths = own.played[SGD].paths
    here = own.start.params
    series = [series_of(f"client {client + 1}", paths[:, client], "arrows") for client in range(2)]
    for name in (SGD, SAME_RATE):
        played = own.played[name]
        there = played.after.params
        series.append(series_of(f"step of {name}", torch.stack([here, there]), "arrows"))
        # Both arrows show the way down for one round's worth of local steps.
        for label, vector in (("g_a", played.pseudo_gradient), ("grad F", global_gradient(there))):
            end = there - LOCAL_RATE * NUM_STEPS * vector
            series.append(series_of(f"{label} after {name}", torch.stack([there, end]), "arrows"))
    series.append(series_of("x*", optimum()[None], "points"))
    series += [series_of(f"x*_{client + 1}", OPTIMA[client : client + 1], "points") for client in range(2)]
    note = f"alpha {ALPHA:g}; g_a is the clients' mean step of round t. Where it and grad F diverge, it misleads."
    return Chart("Matching dislocation, computed", "x_1", "x_2", tuple(series), note=note)


def series_of(name: str, points: Tensor, style: str) -> Series:
    """Points `[N, 2]` of the plane."""
    return Series(name, x=tuple(points[:, 0].tolist()), y=tuple(points[:, 1].tolist()), style=style)


def _show(setting: Setting, results: Results) -> Shown:
    table, chart = matching_dislocation()
    return Shown((table,), (chart,))


F8 = Target(name="F8", title="Matching dislocation", show=_show)
