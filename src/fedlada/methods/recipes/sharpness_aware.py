"""Sharpness-aware methods: the gradient is taken at a point near the parameters."""

from __future__ import annotations

from fedlada.methods.local import (
    ControlVariate,
    GlobalSharpnessAware,
    SharpnessAware,
    TowardGlobalDirection,
    UphillGlobally,
)
from fedlada.methods.method import FederatedMethod
from fedlada.methods.recipes.chains import dynamic_method, sgd_method
from fedlada.methods.server import SGD


def fedsam(
    *, rho: float = 0.1, server_lr: float = 1.0, weight_decay: float = 0.0, clip_norm: float | None = None
) -> FederatedMethod:
    """FedSAM: sharpness-aware local steps (Qu et al. 2022, Generalized Federated Learning via SAM).

    >>> fedsam().looks_ahead
    True
    """
    return sgd_method("fedsam", (SharpnessAware(rho=rho),), SGD(lr=server_lr), clip_norm, weight_decay)


def mofedsam(
    *,
    rho: float = 0.1,
    alpha: float = 0.1,
    server_lr: float = 1.0,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
) -> FederatedMethod:
    """MoFedSAM: FedSAM with FedCM's client-level momentum (Qu et al. 2022).

    >>> mofedsam().num_vectors()
    (2, 1)
    """
    chain = (SharpnessAware(rho=rho), TowardGlobalDirection(alpha=alpha))
    return sgd_method("mofedsam", chain, SGD(lr=server_lr), clip_norm, weight_decay)


def fedgamma(
    *,
    rho: float = 0.01,
    correction: float = 1.0,
    server_lr: float = 1.0,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
) -> FederatedMethod:
    """FedGAMMA: FedSAM with SCAFFOLD's control variates (Dai et al. 2023, FedGAMMA).

    >>> fedgamma().num_vectors()
    (2, 2)
    """
    chain = (SharpnessAware(rho=rho), ControlVariate(correction=correction))
    return sgd_method("fedgamma", chain, SGD(lr=server_lr), clip_norm, weight_decay)


def fedspeed(
    *,
    rho: float = 0.1,
    mu: float = 0.1,
    clip_pull: bool = True,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
) -> FederatedMethod:
    """FedSpeed: FedSAM with FedDyn's regularizer (Sun et al. 2023, FedSpeed).

    >>> fedspeed().num_vectors()
    (1, 1)
    """
    options = dict(locals())
    return dynamic_method("fedspeed", (SharpnessAware(rho=options.pop("rho")),), **options)


def fedsmoo(
    *,
    rho: float = 0.1,
    mu: float = 0.1,
    clip_pull: bool = True,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
) -> FederatedMethod:
    """FedSMOO: FedSpeed whose perturbations agree across clients (Sun et al. 2023, Dynamic Regularized SAM).

    >>> fedsmoo().num_vectors()
    (2, 2)
    """
    options = dict(locals())
    return dynamic_method("fedsmoo", (GlobalSharpnessAware(rho=options.pop("rho")),), **options)


def fedlesam(
    *, rho: float = 0.1, server_lr: float = 1.0, weight_decay: float = 0.0, clip_norm: float | None = None
) -> FederatedMethod:
    """FedLESAM: one gradient, taken uphill along the global direction (Fan et al. 2024, Locally Estimated SAM).

    >>> fedlesam().num_vectors(), fedlesam().gradients_per_step
    ((2, 1), 1)
    """
    return sgd_method("fedlesam", (UphillGlobally(rho=rho),), SGD(lr=server_lr), clip_norm, weight_decay)
