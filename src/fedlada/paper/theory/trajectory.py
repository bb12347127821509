"""A method on the problem: its five calls, for all clients of a cohort, all seeds and several rates at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedlada.federation.randomness import bits
from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import Kept, Server, map_tensors
from fedlada.paper.theory.problem import Problem

WORD_PARTS = 4
"""Random numbers of 16 bits per word of 64 bits: precise enough for noise, at a quarter of the cost."""


@dataclass(frozen=True)
class Visit:
    """One round: the server before and after it, and where each client of the cohort ended.

    Server vectors are `[G, R, P]`: G rates, R seeds. `ends` is x_{i,K}, `[G, R, S, P]`.
    """

    before: Server
    ends: Tensor
    after: Server


def rounds(
    problem: Problem,
    method: FederatedMethod,
    *,
    seeds: Sequence[int],
    cohort_size: int,
    num_steps: int,
    num_rounds: int,
    rates: Sequence[float],
) -> Iterator[Visit]:
    """Run `num_rounds` rounds of S clients and K steps, once for each seed and each local rate.

    The rates share cohorts and noise, so that they differ by nothing else.
    """
    draws = _Draws(problem, seeds, cohort_size, num_steps, num_rounds)
    server = method.init(problem.start.expand(len(rates), -1, -1))
    kept = method.init_kept(server.params.unsqueeze(2).expand(-1, -1, problem.num_clients, -1))
    lr = torch.tensor(rates, dtype=torch.float64)[:, None, None]
    all_shifts = problem.shifts.expand_as(problem.tilts)
    for _ in range(num_rounds):
        cohort = draws.cohort()
        rows, noise = (draws.rows, cohort), draws.noise()
        shifts, tilts = all_shifts[rows], problem.tilts[rows]
        broadcast = map_tensors(lambda vector: vector.unsqueeze(2).expand(-1, -1, cohort_size, -1), server.broadcast)
        local = method.begin(broadcast, _of_cohort(kept, rows), lr=lr[..., None])
        for step in range(num_steps):
            local = method.step(local, partial(_noisy_gradient, problem, shifts, tilts, noise[step]))
        uploads, new_kept = method.finish(local, num_steps)
        before, mean = server, map_tensors(lambda vector: vector.mean(2), uploads)
        share = cohort_size / problem.num_clients
        server = method.aggregate(before, mean, lr=lr, num_steps=num_steps, participation=share)
        kept = _with_cohort(kept, rows, new_kept)
        yield Visit(before, local.params, server)


def _noisy_gradient(problem: Problem, shifts: Tensor, tilts: Tensor, noise: Tensor, point: Tensor) -> Tensor:
    return problem.client_gradient(point, shifts, tilts) + noise


class _Draws:
    """Cohorts and noise, each read from front to back from one stream for each seed."""

    def __init__(
        self, problem: Problem, seeds: Sequence[int], cohort_size: int, num_steps: int, num_rounds: int
    ) -> None:
        # The run's sizes are part of the key: runs of one seed are independent of each other.
        sizes = f"{cohort_size} {num_steps} {num_rounds}"
        self._who = [bits(seed, f"theory cohorts {sizes}") for seed in seeds]
        self._what = [bits(seed, f"theory noise {sizes}") for seed in seeds]
        self._num_clients = problem.num_clients
        self._shape = (len(seeds), num_steps, cohort_size, problem.num_params)
        # A uniform number in (-1, 1) has the variance 1/3.
        self._width = (problem.noise * 3**0.5 / 2**15)[:, None, None, :]
        self.rows = torch.arange(len(seeds))[:, None]

    def cohort(self) -> Tensor:
        """The numbers of the S active clients, `[R, S]`, drawn without replacement."""
        order = np.argsort(np.stack([stream.random_raw(self._num_clients) for stream in self._who]), axis=1)
        return torch.from_numpy(np.sort(order[:, : self._shape[2]], axis=1))

    def noise(self) -> Tensor:
        """The noise of each step's gradients, `[K, R, S, P]`: uniform, symmetric about zero."""
        size = int(np.prod(self._shape[1:]))
        words = [stream.random_raw(-(-size // WORD_PARTS)) for stream in self._what]
        parts = np.stack([word.view(np.int16)[:size] for word in words]).reshape(self._shape)
        # Half a step up makes the 2^16 values symmetric.
        uniform = torch.from_numpy(parts.astype(np.float64)).add_(0.5).mul_(self._width)
        return uniform.transpose(0, 1)


Rows = tuple[Tensor, Tensor]


def _of_cohort(kept: Kept, rows: Rows) -> Kept:
    return map_tensors(lambda memory: memory[:, rows[0], rows[1]], kept)


def _with_cohort(kept: Kept, rows: Rows, new: Kept) -> Kept:
    """All clients' memories, with the cohort's in their places."""
    memories = []
    for old_vectors, new_vectors in zip(kept.memory, new.memory, strict=True):
        merged = {name: old.clone() for name, old in old_vectors.items()}
        for name, vector in new_vectors.items():
            merged[name][:, rows[0], rows[1]] = vector
        memories.append(merged)
    return Kept(tuple(memories))
