"""LeNet with smooth activations, for the paper's study of activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from fedlada.methods.validation import one_of
from fedlada.models.image_shape import image_shape


class SMU(nn.Module):
    """The smooth maximum unit (x + x erf(mu x)) / 2; the paper does not give mu, and 1 is close to GeLU's 1/sqrt(2)."""

    def __init__(self, mu: float = 1.0) -> None:
        super().__init__()
        self.mu = mu

    def forward(self, x: Tensor) -> Tensor:
        """The activation, elementwise."""
        return (x + x * torch.erf(self.mu * x)) / 2


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": partial(nn.GELU, approximate="tanh"),
    "smu": SMU,
}


def lenet(
    num_classes: int = 10, *, input_shape: Sequence[int] = (3, 32, 32), activation: str = "relu", width: int = 64
) -> nn.Sequential:
    """Two 5x5 convolutions of `width` channels, each followed by a 2x2 max-pool, and layers of 384 and 192.

    The paper does not give its widths; the authors' simulator has two convolutions of 64 channels.
    """
    one_of("activation", activation, tuple(ACTIVATIONS))
    act = ACTIVATIONS[activation]
    channels, height, columns = image_shape("lenet", input_shape)
    for _ in range(2):
        height, columns = (height - 4) // 2, (columns - 4) // 2
    if min(height, columns) < 1:
        raise ValueError(f"lenet needs images of at least 16x16, got {input_shape[1]}x{input_shape[2]}")
    return nn.Sequential(
        nn.Conv2d(channels, width, 5),
        act(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, width, 5),
        act(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(width * height * columns, 384),
        act(),
        nn.Linear(384, 192),
        act(),
        nn.Linear(192, num_classes),
    )
