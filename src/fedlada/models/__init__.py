"""Models without running statistics, and a converter for models that have them."""

from collections.abc import Callable
from functools import partial

from torch import nn

from fedlada.models.char_lstm import char_lstm
from fedlada.models.cnn_gn import cnn_gn
from fedlada.models.group_norm import group_norm
from fedlada.models.layers import GroupNorm
from fedlada.models.lenet import lenet
from fedlada.models.mlp import mlp
from fedlada.models.pfl_cnn import pfl_cnn
from fedlada.models.resnet_gn import resnet18_gn
from fedlada.models.resnet_v2_gn import resnet18_v2_gn
from fedlada.models.text_transformer import text_transformer

MODELS: dict[str, Callable[..., nn.Module]] = {
    "cnn-gn": cnn_gn,
    "mlp": mlp,
    "lenet": lenet,
    "lenet-gelu": partial(lenet, activation="gelu"),
    "lenet-smu": partial(lenet, activation="smu"),
    "pfl-cnn": pfl_cnn,
    "resnet18-gn": resnet18_gn,
    "resnet18-gn-cifar": partial(resnet18_gn, stem="cifar"),
    "resnet18-v2-gn": resnet18_v2_gn,
    "text-transformer": text_transformer,
    "char-transformer": partial(text_transformer, causal=True, width=128, depth=3),
    "char-lstm": char_lstm,
}
"""Factories by the name that `--model` takes; each is called with the number of classes and `input_shape=`."""

TEXT_MODELS = ("text-transformer", "char-transformer", "char-lstm")
"""Those that read codes of characters."""

__all__ = [
    "MODELS",
    "TEXT_MODELS",
    "GroupNorm",
    "char_lstm",
    "cnn_gn",
    "group_norm",
    "lenet",
    "mlp",
    "pfl_cnn",
    "resnet18_gn",
    "resnet18_v2_gn",
    "text_transformer",
]
