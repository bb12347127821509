"""The convolutional net of pfl-research's image benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedlada.models.image_shape import image_shape


def pfl_cnn(num_classes: int = 10, *, input_shape: Sequence[int] = (3, 32, 32)) -> nn.Sequential:
    """Two 3x3 convolutions of 32 and 64 channels without padding, a 2x2 max-pool and a layer of 128.

    Dropout of 0.25 follows the pool, of 0.5 the layer; the initialisation is Glorot uniform.
    """
    channels, height, width = image_shape("pfl_cnn", input_shape)
    height, width = (height - 4) // 2, (width - 4) // 2
    if min(height, width) < 1:
        raise ValueError(f"pfl_cnn needs images of at least 6x6, got {input_shape[1]}x{input_shape[2]}")
    model = nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * height * width, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, num_classes),
    )
    for layer in model:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(layer.weight)
    return model
