"""Label flipping by malicious clients: y -> number of classes - 1 - y."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlada.data.samples import ArraySamples, Samples
from fedlada.federation.randomness import Ints, Words


def with_flipped_labels(
    samples: Samples, clients: Sequence[Ints], attackers: Collection[int]
) -> tuple[Samples, list[Ints]]:
    """The samples, followed by all of them with flipped labels; attackers use the second half.

    So an honest client that shares a sample with an attacker keeps the true label. Nothing is copied.
    """
    labels = samples.labels()
    if labels.dtype.kind not in "iu" or labels.min() < 0:
        raise ValueError(
            "LabelFlip needs class indices from 0 on as targets: use an attack on updates, such as sign-flip"
        )
    kind = FlippedOnDevice if isinstance(samples, ArraySamples) else FlippedSamples
    own = [one + len(samples) if client in attackers else one for client, one in enumerate(clients)]
    return kind(samples, int(labels.max()) + 1), own  # type: ignore[arg-type]


class FlippedOnDevice(ArraySamples):
    """Samples on the device, followed by all of them with flipped labels."""

    def __init__(self, samples: ArraySamples, num_classes: int) -> None:
        self.samples, self.x, self.y, self.num_classes = samples, samples.x, samples.y, num_classes
        self.dtype, self.class_names = samples.dtype, samples.class_names

    def __len__(self) -> int:
        return 2 * len(self.samples)

    def take(self, rows: Tensor, draws: Tensor | None = None) -> tuple[Any, Tensor]:
        x, y = self.samples.take(rows % len(self.samples), draws)
        return x, _flipped(y, rows >= len(self.samples), self.num_classes)

    def targets(self, rows: Tensor) -> Tensor:
        y = self.samples.targets(rows % len(self.samples))
        return _flipped(y, rows >= len(self.samples), self.num_classes)

    def labels(self) -> np.ndarray[Any, Any]:
        return _both(self.samples.labels(), self.num_classes)


class FlippedSamples(Samples):
    """The same for samples read one by one."""

    def __init__(self, samples: Samples, num_classes: int) -> None:
        self.samples, self.num_classes = samples, num_classes
        self.class_names = samples.class_names

    def __len__(self) -> int:
        return 2 * len(self.samples)

    def batch(self, indices: Ints, words: Words | None = None) -> tuple[Any, Any]:
        x, y = self.samples.batch(indices % len(self.samples), words)
        return x, _flipped(y, torch.from_numpy(indices >= len(self.samples)).to(y.device), self.num_classes)

    def labels(self) -> np.ndarray[Any, Any]:
        return _both(self.samples.labels(), self.num_classes)


def _flipped(y: Tensor, is_flipped: Tensor, num_classes: int) -> Tensor:
    return torch.where(is_flipped.view(-1, *[1] * (y.ndim - 1)), num_classes - 1 - y, y)


def _both(labels: np.ndarray[Any, Any], num_classes: int) -> np.ndarray[Any, Any]:
    return np.concatenate([labels, num_classes - 1 - labels])
