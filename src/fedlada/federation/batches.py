"""The amount of local work of a client in a round, and its batches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedlada.federation.randomness import Ints, permutation
from fedlada.methods.validation import count


@dataclass(frozen=True, kw_only=True)
class LocalWork:
    """Local work in epochs, or in steps if `steps` is given; a client with fewer samples has smaller batches."""

    batch_size: int = 50
    epochs: int = 1
    steps: int | None = None

    def __post_init__(self) -> None:
        count("batch_size", self.batch_size)
        count("local_epochs", self.epochs)
        if self.steps is not None:
            count("local_steps", self.steps)

    def num_steps(self, num_samples: int) -> int:
        """K_i of a client with this many samples."""
        if num_samples == 0:
            return 0
        return self.steps or self.epochs * math.ceil(num_samples / self.batch_size)

    def batches(self, samples: Ints, stream: np.random.Philox, num_steps: int) -> list[Ints]:
        """The first `num_steps` batches of a round: each epoch is reshuffled, its last batch may be short."""
        batches: list[Ints] = []
        while len(batches) < num_steps:
            order = samples[permutation(stream, len(samples))]
            batches += np.array_split(order, range(self.batch_size, len(order), self.batch_size))
        return batches[:num_steps]
