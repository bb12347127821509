"""Random flips and crops, computed on the device that trains, from one random word for each image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlada.methods.validation import not_negative, one_of

CROPS = ("half", "always", "never")

FLIP_BIT, CROP_BIT, ROW_BITS, COLUMN_BITS = 0, 1, 8, 32
"""Bit positions of the choices in a 63-bit word; the two offsets have 24 bits each."""


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """A horizontal flip for every second image, and a random crop of the zero-padded image.

    `crop` says how often: for "half" of the images, as the authors of FedLADA do, "always", as is usual, or "never".
    Padding is zero after normalisation: the mean colour.
    """

    padding: int = 4
    crop: str = "half"
    flip: bool = True

    def __post_init__(self) -> None:
        one_of("crop", self.crop, CROPS)
        not_negative("padding", self.padding)

    def choices(self, draws: Tensor, slack: tuple[int, int] = (0, 0)) -> tuple[Tensor, Tensor, Tensor]:
        """For each word: whether to flip, and the first row and column of the crop, in -padding..padding + slack.

        `slack` is how much larger than the crop the image is; images that are not cropped at random are cropped at the
        centre.
        """
        flipped = _bit(draws, FLIP_BIT) if self.flip else torch.zeros_like(draws, dtype=torch.bool)
        places = zip((ROW_BITS, COLUMN_BITS), slack, strict=True)
        rows, columns = (self._offset(draws, place, more) for place, more in places)
        if self.crop != "always":
            cropped = _bit(draws, CROP_BIT) if self.crop == "half" else torch.zeros_like(flipped)
            rows, columns = (
                torch.where(cropped, one, more // 2) for one, more in zip((rows, columns), slack, strict=True)
            )
        return flipped, rows, columns

    def sources(self, draws: Tensor, height: int, width: int, size: int | None = None) -> tuple[Tensor, Tensor]:
        """For each output pixel `[N, H * W]` the pixel it is read from, and whether that lies inside the image.

        With a `size` the output has so many rows and columns.
        """
        out_height, out_width = (height, width) if size is None else (size, size)
        flipped, first_row, first_column = self.choices(draws, (height - out_height, width - out_width))
        rows = torch.arange(out_height, device=draws.device) + first_row[:, None]
        columns = torch.arange(out_width, device=draws.device) + first_column[:, None]
        inside = _within(rows, height)[:, :, None] & _within(columns, width)[:, None, :]
        # The image is flipped first and cropped then, so a column of the crop is read from the other end.
        columns = torch.where(flipped[:, None], width - 1 - columns, columns)
        places = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
        return places.flatten(1), inside.flatten(1)

    def _offset(self, draws: Tensor, place: int, slack: int) -> Tensor:
        # Fixed-point: 24 random bits times the number of offsets, without the bias of a remainder.
        return (((draws >> place) & 0xFFFFFF) * (2 * self.padding + slack + 1) >> 24) - self.padding


def _bit(draws: Tensor, place: int) -> Tensor:
    return ((draws >> place) & 1).bool()


def _within(places: Tensor, size: int) -> Tensor:
    return (places >= 0) & (places < size)
