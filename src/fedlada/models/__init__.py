"""Models that federate (no running statistics), and the converter for those that do not."""

from fedlada.models.cnn_gn import cnn_gn
from fedlada.models.group_norm import group_norm
from fedlada.models.mlp import mlp

__all__ = ["cnn_gn", "group_norm", "mlp"]
