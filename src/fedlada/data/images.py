"""Images stored as bytes and normalised on the device: a quarter of the memory of floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlada.data.augment import Augmentation
from fedlada.data.samples import ArraySamples, Placeable
from fedlada.federation.randomness import Ints
from fedlada.methods.validation import one_of

STANDARDIZE = ("channels", "image")
Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


@dataclass(frozen=True, eq=False)
class Images(Placeable):
    """Images `[N, C, H, W]` in 0..255 with their class indices, and the mean and deviation of each channel in 0..1.

    Give it to `simulate` in the place of an `(x, y)` pair: a model sees (x / 255 - mean) / std, in training changed
    at random where there is an `augmentation`, in evaluation never. Without `mean` and `std` they are the images' own;
    a test set takes those of the training images.
    """

    x: Bytes
    y: Ints
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augmentation: Augmentation | None = None
    crop_size: int | None = None
    """Crop images to this many pixels: by the augmentation in training, otherwise at the centre."""
    class_names: tuple[str, ...] = ()
    standardize: str = "channels"
    """"channels": by `mean` and `std`; "image": each by the mean and deviation of its own pixels, after the crop."""

    def __post_init__(self) -> None:
        if self.x.dtype != np.uint8 or self.x.ndim != 4 or len(self.x) != len(self.y):
            raise ValueError(
                f"images must be uint8 of shape (N, C, H, W) with one label each, got {self.x.dtype} of shape "
                f"{self.x.shape} and {len(self.y)} labels"
            )
        if not self.mean and not self.std and self.x.size:
            for name, values in zip(("mean", "std"), channel_statistics(self.x), strict=True):
                object.__setattr__(self, name, values)
        if not len(self.mean) == len(self.std) == self.x.shape[1]:
            raise ValueError(f"mean and std must have one value for each of the {self.x.shape[1]} channels")
        one_of("standardize", self.standardize, STANDARDIZE)
        if self.crop_size is not None and not 1 <= self.crop_size <= min(self.x.shape[2:]):
            raise ValueError(f"crop_size must be in 1..{min(self.x.shape[2:])}, the images' size, got {self.crop_size}")

    def __len__(self) -> int:
        return len(self.y)

    def samples(self, device: torch.device, dtype: torch.dtype) -> ImageSamples:
        """The images on a device."""
        return ImageSamples(self, device, dtype)


class ImageSamples(ArraySamples):
    """Images held as bytes on the device; a batch is augmented and normalised when it is fetched."""

    def __init__(self, images: Images, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(images.x, images.y, device, dtype, images.class_names)
        self.augmentation, self.crop_size = images.augmentation, images.crop_size
        self.by_image = images.standardize == "image"
        self.mean, self.std, self.standardize = images.mean, images.std, images.standardize
        shape = (1, -1, 1, 1)
        mean, std = (torch.tensor(values, dtype=torch.float64).view(shape) for values in (images.mean, images.std))
        # (x / 255 - mean) / std as one product and one sum, computed once in float64.
        self.scale = (1 / (255 * std)).to(device, dtype)
        self.shift = (-mean / std).to(device, dtype)

    def take(self, rows: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x, y = super().take(rows)
        if self.augmentation is None or draws is None:
            return self._normalised(self._from_the_middle(x)), y
        places, inside = self.augmentation.sources(draws, x.shape[2], x.shape[3], self.crop_size)
        shape = x.shape[2:] if self.crop_size is None else (self.crop_size, self.crop_size)
        moved = x.flatten(2).gather(2, places[:, None].expand(-1, x.shape[1], -1)).view(len(x), -1, *shape)
        inside = inside.view(len(x), 1, *shape)
        return self._normalised(moved, inside) * inside, y

    def _from_the_middle(self, x: Tensor) -> Tensor:
        if self.crop_size is None:
            return x
        top, left = ((size - self.crop_size) // 2 for size in x.shape[2:])
        return x[:, :, top : top + self.crop_size, left : left + self.crop_size]

    def _normalised(self, x: Tensor, inside: Tensor | None = None) -> Tensor:
        x = x.to(self.scale.dtype)
        return _by_its_own(x, inside) if self.by_image else x * self.scale + self.shift


def _by_its_own(x: Tensor, inside: Tensor | None) -> Tensor:
    """Each image minus its mean, divided by its deviation; pixels outside the image do not count.

    As TensorFlow's `per_image_standardization`, the deviation is at least one over the root of the number of pixels.
    """
    counts = torch.ones_like(x) if inside is None else inside.to(x.dtype).expand_as(x)
    number = counts.sum(dim=(1, 2, 3), keepdim=True).clamp(min=1)  # a crop may lie beside its image
    centred = x - (x * counts).sum(dim=(1, 2, 3), keepdim=True) / number
    deviation = ((centred * counts).square().sum(dim=(1, 2, 3), keepdim=True) / number).sqrt()
    return centred / torch.maximum(deviation, number.rsqrt())


def are_images(x: Any) -> bool:
    """Whether an array or a tensor can be images: bytes (N, H, W), (N, H, W, C) or (N, C, H, W)."""
    return x.dtype in (np.uint8, torch.uint8) and x.ndim in (3, 4)


def channels_first(x: Bytes) -> Bytes:
    """Images as (N, C, H, W)."""
    if x.ndim == 3:
        return x[:, None]
    channels_last = x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4)
    return np.ascontiguousarray(np.moveaxis(x, 3, 1)) if channels_last else x


def channel_statistics(x: Bytes) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel in 0..1, exact, in parts that fit in memory."""
    counts = np.zeros((x.shape[1], 256), dtype=np.int64)
    for start in range(0, len(x), 4096):
        part = x[start : start + 4096]
        counts += np.stack([np.bincount(part[:, channel].ravel(), minlength=256) for channel in range(x.shape[1])])
    values, total = np.arange(256) / 255, counts.sum(axis=1)
    mean = counts @ values / total
    deviation = (counts * (values - mean[:, None]) ** 2).sum(axis=1) / total
    # A constant channel has no deviation to divide by.
    return _floats(mean), _floats(np.sqrt(np.maximum(deviation, 1e-12)))


def _floats(values: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
