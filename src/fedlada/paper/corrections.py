"""The corrections of SCAFFOLD and FedLADA, computed on a problem with two clients and two parameters."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedlada.methods.method import FederatedMethod
from fedlada.methods.recipes import fedavg, fedlada, scaffold
from fedlada.paper.dislocation import optimum, play, series_of
from fedlada.plots.chart import Chart

OPTIMA = torch.tensor([[2.0, 0.5], [0.5, 2.0]], dtype=torch.float64)
CURVATURES = torch.tensor([[3.0, 0.6], [0.6, 3.0]], dtype=torch.float64)
START = torch.zeros(2, dtype=torch.float64)
SHARED = torch.tensor([0.8, 0.8], dtype=torch.float64)
NUM_STEPS, WARM_ROUNDS = 4, 3
METHODS: dict[str, tuple[FederatedMethod, float]] = {
    "FedAvg": (fedavg(), 0.08),
    "SCAFFOLD": (scaffold(), 0.08),
    "FedLADA, alpha 0.3": (fedlada(alpha=0.3, v_init=1.0), 0.32),  # AMSGrad's steps are shorter at first
}


def corrections() -> Chart:
    """Both clients' local steps in one round, after a few rounds that build up the corrections."""
    series = [
        series_of("clients' optima", OPTIMA, "points"),
        series_of("common optimum", optimum(CURVATURES, OPTIMA)[None], "points"),
    ]
    for name, (method, lr) in METHODS.items():
        paths = _paths(method, lr)
        series += [series_of(f"{name}, client {client + 1}", paths[:, client], "arrows") for client in range(2)]
    note = f"Two quadratic objectives, {NUM_STEPS} local steps; the methods' own code, not a drawing."
    return Chart("F7: the two corrections", "first parameter", "second parameter", tuple(series), note=note)


def _paths(method: FederatedMethod, lr: float) -> Tensor:
    """The iterates of both clients in the round after the warm-up, from a point that all methods share."""
    server, kept = method.init(START.clone()), None
    for _ in range(WARM_ROUNDS):
        played = play(method, server, kept, gradients=_gradients, lr=lr, num_steps=NUM_STEPS)
        server, kept = played.after, played.kept
    shared = replace(server, params=SHARED.clone())
    return play(method, shared, kept, gradients=_gradients, lr=lr, num_steps=NUM_STEPS).paths


def _gradients(points: Tensor) -> Tensor:
    return CURVATURES * (points - OPTIMA)
