"""Runs a method's five calls on a reference problem, one client at a time or stacked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import Broadcast, Kept, Server, map_tensors
from reference.problem import Problem


def run_method(
    method: FederatedMethod | Callable[[int], FederatedMethod],
    problem: Problem,
    kept: dict[int, Kept] | None = None,
) -> list[Server]:
    """The server after each round; the method may be another in each round (1, 2, ...). `kept` gets the memories."""
    method_of = method if callable(method) else lambda _: method
    server = method_of(1).init(torch.from_numpy(problem.x0))
    kept = {} if kept is None else kept
    servers = []
    for t, spec in enumerate(problem.rounds):
        method, uploads = method_of(t + 1), []
        for client, num_steps in spec.steps.items():
            memory = kept.get(client, method.init_kept(server.params))
            local = method.begin(server.broadcast, memory, lr=spec.lr)
            for step in range(num_steps):
                local = method.step(local, partial(gradient, problem, client, t, step))
            upload, kept[client] = method.finish(local, num_steps)
            uploads.append(upload)
        server = method.aggregate(
            server,
            method.combine(uploads),
            lr=spec.lr,
            num_steps=sum(spec.steps.values()) / len(spec.steps),
            participation=len(spec.steps) / problem.num_clients,
        )
        servers.append(server)
    return servers


def gradient(problem: Problem, client: int, t: int, step: int, point: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(problem.grad(client, point.numpy(), t, step))


def _gradients(problem: Problem, clients: list[int], t: int, step: int, points: torch.Tensor) -> torch.Tensor:
    return torch.stack([gradient(problem, client, t, step, points[row]) for row, client in enumerate(clients)])


def stack(states: list):
    """States of C clients as one state whose vectors are `[C, P]`."""
    iterators = [iter(_tensors(state)) for state in states]
    return map_tensors(lambda _: torch.stack([next(tensors) for tensors in iterators]), states[0])


def unstack(state, index: int):
    return map_tensors(lambda tensor: tensor[index], state)


def _tensors(state):
    from fedlada.methods.state import named_tensors

    return [tensor for _, tensor in named_tensors(state)]


def run_method_stacked(method: FederatedMethod, problem: Problem) -> list[Server]:
    """The same on `[C, P]`; needs equal numbers of steps."""
    server = method.init(torch.from_numpy(problem.x0))
    kept = {client: method.init_kept(server.params) for client in range(problem.num_clients)}
    servers = []
    for t, spec in enumerate(problem.rounds):
        clients = list(spec.steps)
        (num_steps,) = set(spec.steps.values())
        count = len(clients)
        broadcast: Broadcast = map_tensors(lambda v, n=count: v.expand(n, -1), server.broadcast)
        local = method.begin(broadcast, stack([kept[client] for client in clients]), lr=spec.lr)
        for step in range(num_steps):
            local = method.step(local, partial(_gradients, problem, clients, t, step))
        upload, new_kept = method.finish(local, num_steps)
        for row, client in enumerate(clients):
            kept[client] = unstack(new_kept, row)
        mean = method.combine([unstack(upload, row) for row in range(count)])
        server = method.aggregate(
            server, mean, lr=spec.lr, num_steps=num_steps, participation=count / problem.num_clients
        )
        servers.append(server)
    return servers
