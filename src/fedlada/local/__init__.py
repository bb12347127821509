"""What a client does between two broadcasts: the links of its chain."""

from fedlada.local.amsgrad import AMSGrad
from fedlada.local.clip_norm import ClipNorm
from fedlada.local.control_variate import ControlVariate
from fedlada.local.dynamic_regularizer import DynamicRegularizer
from fedlada.local.global_direction import TowardGlobalDirection
from fedlada.local.proximal import Proximal
from fedlada.local.sharpness_aware import SharpnessAware
from fedlada.local.transform import LocalTransform
from fedlada.local.weight_decay import WeightDecay

__all__ = [
    "AMSGrad",
    "ClipNorm",
    "ControlVariate",
    "DynamicRegularizer",
    "LocalTransform",
    "Proximal",
    "SharpnessAware",
    "TowardGlobalDirection",
    "WeightDecay",
]
