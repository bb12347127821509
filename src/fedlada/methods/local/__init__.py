"""Local transforms: the links of the chain that a client applies in each local step."""

from fedlada.methods.local.amsgrad import AMSGrad
from fedlada.methods.local.clip_norm import ClipNorm
from fedlada.methods.local.control_variate import ControlVariate
from fedlada.methods.local.dynamic_regularizer import DynamicRegularizer
from fedlada.methods.local.global_direction import TowardGlobalDirection
from fedlada.methods.local.global_sharpness_aware import GlobalSharpnessAware
from fedlada.methods.local.proximal import Proximal
from fedlada.methods.local.sharpness_aware import SharpnessAware
from fedlada.methods.local.step_count import StepCount
from fedlada.methods.local.transform import LocalTransform
from fedlada.methods.local.uphill_globally import UphillGlobally
from fedlada.methods.local.weight_decay import WeightDecay

__all__ = [
    "AMSGrad",
    "ClipNorm",
    "ControlVariate",
    "DynamicRegularizer",
    "GlobalSharpnessAware",
    "LocalTransform",
    "Proximal",
    "SharpnessAware",
    "StepCount",
    "TowardGlobalDirection",
    "UphillGlobally",
    "WeightDecay",
]
