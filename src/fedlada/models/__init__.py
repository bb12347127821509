"""Models that federate (no running statistics), and the converter for those that do not."""

from collections.abc import Callable

from torch import nn

from fedlada.models.cnn_gn import cnn_gn
from fedlada.models.group_norm import group_norm
from fedlada.models.mlp import mlp

MODELS: dict[str, Callable[..., nn.Module]] = {"cnn-gn": cnn_gn, "mlp": mlp}
"""Factories by the name that `--model` takes; each is called with the number of classes and `input_shape=`."""

__all__ = ["MODELS", "cnn_gn", "group_norm", "mlp"]
