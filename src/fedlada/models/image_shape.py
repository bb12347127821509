"""The input check of image models."""

from __future__ import annotations

from collections.abc import Sequence


def image_shape(model: str, input_shape: Sequence[int]) -> tuple[int, int, int]:
    """Channels, height and width; refuses other shapes."""
    if len(input_shape) != 3:
        raise ValueError(f"{model} needs images of shape (channels, height, width), got inputs of {tuple(input_shape)}")
    channels, height, width = input_shape
    return channels, height, width
