"""A small LeNet for the study of activations on grey images of any size, with ten classes."""

from __future__ import annotations

from torch import nn

from fedlada.models.lenet import ACTIVATIONS


def gelu() -> nn.Sequential:
    """With GeLU (its tanh form)."""
    return _lenet("gelu")


def smu() -> nn.Sequential:
    """With SMU."""
    return _lenet("smu")


def _lenet(activation: str) -> nn.Sequential:
    act = ACTIVATIONS[activation]
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, stride=2, padding=2),
        act(),
        nn.Conv2d(6, 16, 5, stride=2, padding=2),
        act(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 48),
        act(),
        nn.Linear(48, 10),
    )
