"""A non-convex federated problem for which all constants of the theorem's assumptions are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedlada.federation.randomness import generator
from fedlada.methods.validation import count, not_negative

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

WEIGHT = 0.25
"""w: steepness of the valley, relative to gradient noise of about one."""
START = 2.5
"""How far the start lies from the valley in each direction: beyond 1, where the curvature is negative."""


@dataclass(frozen=True)
class Problem:
    """Client i has F_i(x) = w sum_j phi(q_j . x - c_ij) + h_i . x with phi(u) = log(1 + u^2); the h_i sum to 0.

    L = 2 w: phi''(u) = 2 (1 - u^2) / (1 + u^2)^2 lies in [-1/4, 2], and the Hessian of F_i is w Q^T diag(phi'') Q.
    Q is orthogonal, so the Hessian's eigenvalues are the w phi'' themselves; the negative ones make F non-convex.

    |phi'| <= 1 bounds every gradient, and the noise is uniform, so stochastic gradients are bounded too. One problem
    for each of R seeds; m clients, P parameters.
    """

    basis: Tensor
    """Q, `[P, P]`."""
    start: Tensor
    """x^0, `[R, P]`."""
    shifts: Tensor
    """c_i, `[R, m, P]`, or `[R, 1, P]` where all are the same: where each client's valley lies."""
    tilts: Tensor
    """h_i, `[R, m, P]`: by how much each client's gradient differs everywhere; F does not see it."""
    noise: Tensor
    """Standard deviation of the gradient noise in each coordinate, `[R, P]`."""

    smoothness = 2 * WEIGHT
    """L."""

    @property
    def num_clients(self) -> int:
        """How many clients there are: m."""
        return self.tilts.shape[1]

    @property
    def num_params(self) -> int:
        """How many parameters there are: P, the paper's d."""
        return self.start.shape[-1]

    def loss(self, params: Tensor) -> Tensor:
        """F at points `[..., R, P]`; the tilts cancel in it."""
        return WEIGHT * self._offsets(params).square().log1p().sum(-1).mean(-1)

    def gradient(self, params: Tensor) -> Tensor:
        """The gradient of F at points `[..., R, P]`."""
        return _slope(self._offsets(params)).mean(-2) @ self.basis

    def client_gradient(self, params: Tensor, shifts: Tensor, tilts: Tensor) -> Tensor:
        """Gradients of S clients with these shifts and tilts `[R, S, P]`, each at its own point `[..., R, S, P]`."""
        return _slope(params @ self.basis.T - shifts) @ self.basis + tilts

    def _offsets(self, params: Tensor) -> Tensor:
        return (params @ self.basis.T).unsqueeze(-2) - self.shifts


def _slope(offset: Tensor) -> Tensor:
    return 2 * WEIGHT * offset / (1 + offset * offset)


def make_problem(
    seeds: Sequence[int],
    *,
    num_clients: int,
    noise: float,
    shift: float = 0.0,
    tilt: float = 0.0,
    num_params: int = 8,
) -> Problem:
    """One problem for each seed; `noise`, `shift` and `tilt` are root mean squares over coordinates."""
    count("num_clients", num_clients)
    count("num_params", num_params)
    for name, size in (("noise", noise), ("shift", shift), ("tilt", tilt)):
        not_negative(name, size)
    basis = _cosines(num_params)
    starts, shifts, tilts, noises = [], [], [], []
    for seed in seeds:
        random = generator(seed, "theory problem")
        away = START * random.uniform(0.8, 1.2, num_params) * np.sign(random.uniform(-1, 1, num_params))
        starts.append(away @ basis)
        # Equal valleys are stored once: the gradient of F then costs as much as one client's.
        shifts.append(_centred(random, num_clients if shift else 1, num_params, shift))
        tilts.append(_centred(random, num_clients, num_params, tilt))
        # Coordinates are noisy to different degrees, so that the second moments have something to adapt to.
        spread = np.exp(random.uniform(-0.5, 0.5, num_params))
        noises.append(noise * spread / math.sqrt(np.mean(spread**2)))
    return Problem(*(torch.from_numpy(np.array(part)) for part in (basis, starts, shifts, tilts, noises)))


def _centred(random: np.random.Generator, num_clients: int, num_params: int, size: float) -> Floats:
    """Vectors whose mean over the clients is zero and whose root mean square is `size`."""
    vectors = random.uniform(-1, 1, (num_clients, num_params))
    vectors -= vectors.mean(axis=0)
    scale = math.sqrt(np.mean(vectors**2))
    return vectors * (size / scale) if scale > 0 else vectors


def _cosines(size: int) -> Floats:
    """The orthonormal discrete cosine transform: an orthogonal matrix that mixes all coordinates."""
    row, column = np.arange(size)[:, None], np.arange(size)
    basis = np.cos(math.pi * (column + 0.5) * row / size) * math.sqrt(2 / size)
    basis[0] /= math.sqrt(2)
    return basis
