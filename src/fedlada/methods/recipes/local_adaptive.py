"""Methods whose clients run AMSGrad."""

from __future__ import annotations

from fedlada.methods.local import SharpnessAware, TowardGlobalDirection
from fedlada.methods.method import FederatedMethod
from fedlada.methods.recipes.chains import amsgrad_method


def localadam(
    *,
    beta1: float = 0.9,
    beta2: float = 0.99,
    v_init: float = 1e-8,
    v_start: str = "zero",
    maximum: bool = True,
    bias_correction: bool = False,
    power: float = 0.5,
    second_moment: str = "averaged",
    server_lr: float = 1.0,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    clip_norm: float | None = None,
) -> FederatedMethod:
    """LocalAdam: AMSGrad on the clients, second moments averaged (Sun et al. 2023, Algorithm 2; Chen et al. 2020).

    >>> localadam().num_vectors()
    (2, 2)
    >>> localadam(second_moment="reset").num_vectors()
    (1, 1)
    """
    options = dict(locals())
    return amsgrad_method("localadam", (), **options)


def fedlada(
    *,
    alpha: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.99,
    v_init: float = 1e-8,
    v_start: str = "zero",
    maximum: bool = True,
    bias_correction: bool = False,
    power: float = 0.5,
    second_moment: str = "averaged",
    server_lr: float = 1.0,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    clip_norm: float | None = None,
) -> FederatedMethod:
    """FedLADA: AMSGrad on the clients, amended towards the last global direction (Sun et al. 2023, Algorithm 3).

    >>> fedlada(alpha=0.05).num_vectors()
    (3, 2)
    """
    options = dict(locals())
    return amsgrad_method("fedlada", (TowardGlobalDirection(alpha=options.pop("alpha")),), **options)


def fedlada_sam(
    *,
    rho: float = 0.03,
    alpha: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.99,
    v_init: float = 1e-8,
    v_start: str = "zero",
    maximum: bool = True,
    bias_correction: bool = False,
    power: float = 0.5,
    second_moment: str = "averaged",
    server_lr: float = 1.0,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    clip_norm: float | None = None,
) -> FederatedMethod:
    """FedLADA whose gradients are sharpness-aware: two gradients a step, the same vectors.

    >>> fedlada_sam().num_vectors()
    (3, 2)
    """
    options = dict(locals())
    look, amendment = SharpnessAware(rho=options.pop("rho")), TowardGlobalDirection(alpha=options.pop("alpha"))
    return amsgrad_method("fedlada_sam", (amendment,), look=(look,), **options)
