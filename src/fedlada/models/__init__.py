"""Models that federate (no running statistics), and the converter for those that do not."""

from collections.abc import Callable

from torch import nn

from fedlada.models.cnn_gn import cnn_gn
from fedlada.models.group_norm import group_norm
from fedlada.models.lenet import lenet
from fedlada.models.mlp import mlp
from fedlada.models.resnet_gn import resnet18_gn

MODELS: dict[str, Callable[..., nn.Module]] = {
    "cnn-gn": cnn_gn,
    "mlp": mlp,
    "lenet": lenet,
    "resnet18-gn": resnet18_gn,
}
"""Factories by the name that `--model` takes; each is called with the number of classes and `input_shape=`."""

__all__ = ["MODELS", "cnn_gn", "group_norm", "lenet", "mlp", "resnet18_gn"]
