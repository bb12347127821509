"""What SCAFFOLD and FedLADA do to a client's steps, computed on a problem with two clients and two parameters."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fedlada.methods.method import FederatedMethod
from fedlada.methods.recipes import fedavg, fedlada, scaffold
from fedlada.methods.state import Kept, Server
from fedlada.plots.chart import Chart, Series

OPTIMA = (torch.tensor([2.0, 0.5], dtype=torch.float64), torch.tensor([0.5, 2.0], dtype=torch.float64))
CURVATURES = (torch.tensor([3.0, 0.6], dtype=torch.float64), torch.tensor([0.6, 3.0], dtype=torch.float64))
START = torch.zeros(2, dtype=torch.float64)
SHARED = torch.tensor([0.8, 0.8], dtype=torch.float64)
NUM_STEPS, WARM_ROUNDS = 4, 3
METHODS: dict[str, tuple[FederatedMethod, float]] = {
    "FedAvg": (fedavg(), 0.08),
    "SCAFFOLD": (scaffold(), 0.08),
    "FedLADA, alpha 0.3": (fedlada(alpha=0.3, v_init=1.0), 0.32),  # AMSGrad's steps are shorter at first
}


def corrections() -> Chart:
    """Both clients' local steps in one round, after a few in which the corrections were learnt."""
    series = [
        Series("clients' optima", *_columns(list(OPTIMA)), style="points"),
        Series("common optimum", *_columns([_optimum()]), style="points"),
    ]
    for name, (method, lr) in METHODS.items():
        for client, path in enumerate(_paths(method, lr)):
            series.append(Series(f"{name}, client {client + 1}", *_columns(path), style="arrows"))
    note = f"Two quadratic objectives, {NUM_STEPS} local steps; the methods' own code, not a drawing."
    return Chart("F7: the two corrections", "first parameter", "second parameter", tuple(series), note=note)


def _paths(method: FederatedMethod, lr: float) -> list[list[Tensor]]:
    """The iterates of each client in the round after the warm-up, from a point that all methods share."""
    server, kept = method.init(START.clone()), [method.init_kept(START) for _ in OPTIMA]
    for _ in range(WARM_ROUNDS):
        server, kept, _ = _round(method, server, kept, lr)
    return _round(method, replace(server, params=SHARED.clone()), kept, lr)[2]


def _round(
    method: FederatedMethod, server: Server, kept: list[Kept], lr: float
) -> tuple[Server, list[Kept], list[list[Tensor]]]:
    uploads, memories, paths = [], [], []
    for client, memory in enumerate(kept):
        local = method.begin(server.broadcast, memory, lr=lr)
        path = [local.params]
        for _ in range(NUM_STEPS):
            local = method.step(local, partial(_gradient, client))
            path.append(local.params)
        upload, memory = method.finish(local, NUM_STEPS)
        uploads.append(upload)
        memories.append(memory)
        paths.append(path)
    server = method.aggregate(server, method.combine(uploads), lr=lr, num_steps=NUM_STEPS, participation=1.0)
    return server, memories, paths


def _gradient(client: int, point: Tensor) -> Tensor:
    return CURVATURES[client] * (point - OPTIMA[client])


def _optimum() -> Tensor:
    """Where the mean of the objectives is lowest."""
    weighted = sum(curvature * optimum for curvature, optimum in zip(CURVATURES, OPTIMA, strict=True))
    return torch.as_tensor(weighted / sum(CURVATURES))


def _columns(points: list[Tensor]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    x, y = zip(*(point.tolist() for point in points), strict=True)
    return x, y
