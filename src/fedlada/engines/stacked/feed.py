"""The work of a stack of clients as arrays: which sample each reads at each step."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedlada.data.samples import ArraySamples, Samples
from fedlada.engines.dropout import step_keys
from fedlada.federation.plan import Assignment

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Feed:
    """For K steps of C clients with batches of at most B: sample indices, random words, weights, steps of each."""

    rows: Array
    """`[K, C, B]`; padding reads the client's own first sample, never another client's."""
    draws: Array
    """`[K, C, B]`, 63 bits each."""
    weights: Array
    """`[K, C, B]`: 1 / (size of the batch), 0 for padding."""
    keys: Array
    """`[K, C]`, those of dropout; zeros where nothing is dropped."""
    num_steps: Array
    """`[C]`; 0 for a place that no client takes."""

    @property
    def is_even(self) -> bool:
        """Whether every place is active in every step."""
        return bool((self.num_steps == len(self.rows)).all())

    @staticmethod
    def of(work: Sequence[Assignment], places: int, batch_size: int, *, has_dropout: bool = False) -> Feed:
        """The work of these clients, on a stack with this many places."""
        steps = max(one.num_steps for one in work)
        rows = np.zeros((steps, places, batch_size), dtype=np.int64)
        draws = np.zeros_like(rows)
        weights = np.zeros(rows.shape, dtype=np.float64)
        keys = np.zeros(rows.shape[:2], dtype=np.int64)
        for client in range(places):
            rows[:, client] = work[min(client, len(work) - 1)].batches[0][0]
        for client, one in enumerate(work):
            if has_dropout:
                keys[: one.num_steps, client] = step_keys(one)
            for step, (batch, words) in enumerate(zip(one.batches, one.words, strict=True)):
                rows[step, client, : len(batch)] = batch
                draws[step, client, : len(batch)] = (words >> np.uint64(1)).astype(np.int64)
                weights[step, client, : len(batch)] = 1 / len(batch)
        num_steps = np.zeros(places, dtype=np.int64)
        num_steps[: len(work)] = [one.num_steps for one in work]
        return Feed(rows, draws, weights, keys, num_steps)


def floats_as(x: Any, dtype: torch.dtype) -> Any:
    """Inputs with their floating-point numbers in that precision."""
    return tree_map(lambda one: one.to(dtype) if one.is_floating_point() else one, x)


def taken(
    samples: ArraySamples, dtype: torch.dtype, *, compiles: bool
) -> Callable[[Tensor, Tensor], tuple[Any, Tensor]]:
    """How a batch is gathered on the device: by one kernel, where there is one for these samples."""
    if compiles and importlib.util.find_spec("triton") is not None:
        from fedlada.engines.stacked import triton_images  # needs a torch build with Triton

        if triton_images.supports(samples):
            return lambda rows, draws: triton_images.fetch(samples, rows, draws, dtype)

    def take(rows: Tensor, draws: Tensor) -> tuple[Any, Tensor]:
        x, y = samples.take(rows, draws)
        return floats_as(x, dtype), y

    return take


def fetch_batch(samples: Samples, feed: Feed, step: int, work: Sequence[Assignment]) -> tuple[Any, Tensor]:
    """One step's batches from samples that are read on the host; padding repeats a client's first sample."""
    parts = []
    for client in range(feed.rows.shape[1]):
        own = work[min(client, len(work) - 1)]
        number = min(step, own.num_steps - 1)
        x, y = samples.batch(own.batches[number], own.words[number])
        missing = feed.rows.shape[2] - len(y)
        parts.append(tree_map(lambda one: torch.cat([one, one[:1].expand(missing, *one.shape[1:])]), (x, y)))  # noqa: B023
    x, y = tree_map(lambda *same: torch.cat(same), *parts)
    return x, y
