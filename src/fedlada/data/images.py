"""Images as bytes, normalised where they are used: a quarter of the memory of floats, on the device that trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlada.data.samples import ArraySamples, Placeable
from fedlada.randomness import Ints

Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


@dataclass(frozen=True, eq=False)
class Images(Placeable):
    """Images `[N, C, H, W]` in 0..255 with their class numbers, and the mean and deviation of each channel in 0..1.

    Give it to `simulate` in the place of an `(x, y)` pair: a model sees (x / 255 - mean) / std.
    """

    x: Bytes
    y: Ints
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.x.dtype != np.uint8 or self.x.ndim != 4 or len(self.x) != len(self.y):
            raise ValueError(
                f"images must be uint8 of shape (N, C, H, W) with one label each, got {self.x.dtype} of shape "
                f"{self.x.shape} and {len(self.y)} labels"
            )
        if not len(self.mean) == len(self.std) == self.x.shape[1]:
            raise ValueError(f"mean and std must have one value for each of the {self.x.shape[1]} channels")

    def __len__(self) -> int:
        return len(self.y)

    def samples(self, device: torch.device, dtype: torch.dtype) -> ImageSamples:
        """The images on a device."""
        return ImageSamples(self, device, dtype)


class ImageSamples(ArraySamples):
    """Images held as bytes on the device; a batch is normalised when it is fetched."""

    def __init__(self, images: Images, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(images.x, images.y, device, dtype)
        shape = (1, -1, 1, 1)
        mean, std = (torch.tensor(values, dtype=torch.float64).view(shape) for values in (images.mean, images.std))
        # (x / 255 - mean) / std as one product and one sum, computed once in float64.
        self.scale = (1 / (255 * std)).to(device, dtype)
        self.shift = (-mean / std).to(device, dtype)

    def batch(self, indices: Ints) -> tuple[Tensor, Tensor]:
        x, y = super().batch(indices)
        return x.to(self.scale.dtype) * self.scale + self.shift, y


def channel_statistics(x: Bytes) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel in 0..1, exact, in parts that fit in memory."""
    total, squares = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    for start in range(0, len(x), 4096):
        part = x[start : start + 4096].astype(np.float64) / 255
        total += part.sum(axis=(0, 2, 3))
        squares += (part**2).sum(axis=(0, 2, 3))
    num_pixels = x.size / x.shape[1]
    mean = total / num_pixels
    # A constant channel has no deviation to divide by.
    std = np.sqrt(np.maximum(squares / num_pixels - mean**2, 1e-12))
    return _floats(mean), _floats(std)


def _floats(values: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
