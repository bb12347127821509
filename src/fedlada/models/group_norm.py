"""Conversion of BatchNorm to GroupNorm, for models with running statistics."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from fedlada.models.flat import copied


def group_norm(model: nn.Module, num_groups: int = 2) -> nn.Module:
    """A copy in which every BatchNorm (and every InstanceNorm with running statistics) is a GroupNorm.

    Scales and shifts are copied. If `num_groups` does not divide the number of channels, the largest smaller number
    that does is used.
    """
    if num_groups < 1:
        raise ValueError(f"num_groups must be at least 1, got {num_groups}")
    converted = copied(model)
    if isinstance(converted, _NormBase):
        return _converted(converted, num_groups)
    done: dict[nn.Module, nn.GroupNorm] = {}  # a module used in two places stays one
    for parent in list(converted.modules()):
        for name, child in list(parent._modules.items()):
            if isinstance(child, _NormBase) and child.running_mean is not None:
                done.setdefault(child, _converted(child, num_groups))
                setattr(parent, name, done[child])
    return converted


def _converted(norm: _NormBase, num_groups: int) -> nn.GroupNorm:
    groups = next(groups for groups in range(num_groups, 0, -1) if norm.num_features % groups == 0)
    result = nn.GroupNorm(groups, norm.num_features, eps=norm.eps, affine=norm.affine)
    if norm.affine:
        result.weight, result.bias = norm.weight, norm.bias
    return result.train(norm.training)
