"""A small non-convex federated problem with a known gradient, and a history of rounds that spares no special case."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Vector = np.ndarray


@dataclass(frozen=True)
class RoundSpec:
    """One round: the rate, and each active client's number of steps."""

    lr: float
    steps: dict[int, int]


@dataclass(frozen=True)
class Problem:
    """Client i has the loss sum log cosh(A_i x - b_i) + 0.1 sum cos(3 x); gradients are noisy, but repeatable."""

    num_clients: int
    x0: Vector
    matrices: np.ndarray
    offsets: np.ndarray
    rounds: tuple[RoundSpec, ...]
    noise: float = 0.3

    def grad(self, client: int, x: Vector, round: int, step: int) -> Vector:
        a, b = self.matrices[client], self.offsets[client]
        noise = np.random.default_rng([round, client, step]).standard_normal(x.shape)
        return a.T @ np.tanh(a @ x - b) - 0.3 * np.sin(3 * x) + self.noise * noise


def make_problem(
    *,
    seed: int = 0,
    num_params: int = 7,
    num_clients: int = 6,
    num_rounds: int = 12,
    equal_steps: bool = False,
    decay: float = 0.96,
    full_participation: bool = False,
    lr: float = 0.05,
) -> Problem:
    """Partial participation, unequal numbers of steps and a decaying rate, unless told otherwise."""
    random = np.random.default_rng(seed)
    rounds = []
    for round in range(num_rounds):
        size = num_clients if full_participation else int(random.integers(1, num_clients))
        active = sorted(random.permutation(num_clients)[:size].tolist())
        steps = {client: 4 if equal_steps else int(random.integers(1, 7)) for client in active}
        rounds.append(RoundSpec(lr * decay**round, steps))
    return Problem(
        num_clients=num_clients,
        x0=random.standard_normal(num_params),
        matrices=random.standard_normal((num_clients, num_params, num_params)),
        offsets=2 * random.standard_normal((num_clients, num_params)),
        rounds=tuple(rounds),
    )
