"""The methods, each a chain of local transforms and a server optimizer: one function a method.

Order in the chains: recipes on plain SGD correct the gradient, then clip, then add L2, as the authors' simulator
does; adaptive ones clip, add L2, then AMSGrad, then the amendment. `docs/methods.md` shows the equations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fedlada.methods.local import (
    AMSGrad,
    ClipNorm,
    ControlVariate,
    DynamicRegularizer,
    LocalTransform,
    Proximal,
    SharpnessAware,
    TowardGlobalDirection,
    WeightDecay,
)
from fedlada.methods.method import FederatedMethod
from fedlada.methods.server import SGD, Adam, Dynamic, ServerOptimizer
from fedlada.methods.validation import not_negative

Chain = tuple[LocalTransform, ...]


def _clip_and_decay(clip_norm: float | None, weight_decay: float) -> Chain:
    """Clipping and L2, each left out where it would do nothing."""
    not_negative("weight_decay", weight_decay)
    clip: Chain = () if clip_norm is None else (ClipNorm(max_norm=clip_norm),)
    decay: Chain = () if weight_decay == 0 else (WeightDecay(strength=weight_decay),)
    return clip + decay


def _on_gradients(
    name: str, correction: Chain, server: ServerOptimizer, clip_norm: float | None, weight_decay: float
) -> FederatedMethod:
    local = correction + _clip_and_decay(clip_norm, weight_decay)
    return FederatedMethod(name=name, local=local, server=server)


def _adaptive(
    name: str,
    amendment: Chain,
    *,
    server_lr: float,
    weight_decay: float,
    decoupled: bool,
    clip_norm: float | None,
    **others: Any,
) -> FederatedMethod:
    """AMSGrad with the other options; decoupled decay stands last, so that neither it nor the amendment scales it."""
    optimizer = AMSGrad(**others)
    l2, behind = (0.0, weight_decay) if decoupled else (weight_decay, 0.0)
    local = (*_clip_and_decay(clip_norm, l2), optimizer, *amendment, *_clip_and_decay(None, behind))
    return FederatedMethod(name=name, local=local, server=SGD(lr=server_lr))


def fedavg(*, server_lr: float = 1.0, weight_decay: float = 0.0, clip_norm: float | None = None) -> FederatedMethod:
    """FedAvg: local SGD, then the mean (McMahan et al. 2017, Communication-Efficient Learning of Deep Networks).

    >>> fedavg().num_vectors()
    (1, 1)
    """
    return _on_gradients("fedavg", (), SGD(lr=server_lr), clip_norm, weight_decay)


def fedprox(
    *, mu: float = 0.1, server_lr: float = 1.0, weight_decay: float = 0.0, clip_norm: float | None = None
) -> FederatedMethod:
    """FedProx: a pull towards the broadcast model (Li et al. 2020, Federated Optimization in Heterogeneous Networks).

    >>> fedprox(mu=0.01).local
    (Proximal(mu=0.01),)
    """
    return _on_gradients("fedprox", (Proximal(mu=mu),), SGD(lr=server_lr), clip_norm, weight_decay)


def scaffold(
    *,
    correction: float = 1.0,
    server_lr: float = 1.0,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
) -> FederatedMethod:
    """SCAFFOLD: control variates against client drift (Karimireddy et al. 2020, SCAFFOLD), option II.

    >>> scaffold().keeps_memory
    True
    """
    chain = (ControlVariate(correction=correction),)
    return _on_gradients("scaffold", chain, SGD(lr=server_lr), clip_norm, weight_decay)


def fedcm(
    *, alpha: float = 0.1, server_lr: float = 1.0, weight_decay: float = 0.0, clip_norm: float | None = None
) -> FederatedMethod:
    """FedCM: client-level momentum (Xu et al. 2021, FedCM: Federated Learning with Client-level Momentum).

    >>> fedcm(alpha=0.1).num_vectors()
    (2, 1)
    """
    chain = (TowardGlobalDirection(alpha=alpha),)
    return _on_gradients("fedcm", chain, SGD(lr=server_lr), clip_norm, weight_decay)


def fedadam(
    *,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-2,
    server_lr: float = 0.1,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
) -> FederatedMethod:
    """FedAdam: Adam on the server (Reddi et al. 2021, Adaptive Federated Optimization).

    >>> fedadam().server
    Adam(lr=0.1, beta1=0.9, beta2=0.99, tau=0.01)
    """
    server = Adam(lr=server_lr, beta1=beta1, beta2=beta2, tau=tau)
    return _on_gradients("fedadam", (), server, clip_norm, weight_decay)


def fedadam_amended(
    *,
    alpha: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-2,
    server_lr: float = 0.1,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
) -> FederatedMethod:
    """FedAdam(*): FedAdam whose local gradients are amended (Sun et al. 2023, Table "combinations").

    >>> fedadam_amended().num_vectors()
    (2, 1)
    """
    server = Adam(lr=server_lr, beta1=beta1, beta2=beta2, tau=tau)
    chain = (TowardGlobalDirection(alpha=alpha),)
    return _on_gradients("fedadam_amended", chain, server, clip_norm, weight_decay)


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
    return _adaptive("localadam", (), **options)


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
    return _adaptive("fedlada", (TowardGlobalDirection(alpha=options.pop("alpha")),), **options)


def feddyn(*, mu: float = 0.1, weight_decay: float = 0.0, clip_norm: float | None = None) -> FederatedMethod:
    """FedDyn: dynamic regularization (Acar et al. 2021, Federated Learning Based on Dynamic Regularization).

    >>> feddyn().num_vectors(), feddyn().keeps_memory
    ((1, 1), True)
    """
    return _on_gradients("feddyn", (DynamicRegularizer(mu=mu),), Dynamic(), clip_norm, weight_decay)


def fedsam(
    *, rho: float = 0.1, server_lr: float = 1.0, weight_decay: float = 0.0, clip_norm: float | None = None
) -> FederatedMethod:
    """FedSAM: sharpness-aware local steps (Qu et al. 2022, Generalized Federated Learning via SAM).

    >>> fedsam().looks_ahead
    True
    """
    return _on_gradients("fedsam", (SharpnessAware(rho=rho),), SGD(lr=server_lr), clip_norm, weight_decay)


RECIPES: dict[str, Callable[..., FederatedMethod]] = {
    recipe.__name__: recipe
    for recipe in (
        fedavg,
        fedprox,
        scaffold,
        feddyn,
        fedcm,
        fedsam,
        fedadam,
        fedadam_amended,
        localadam,
        fedlada,
    )
}
"""Every recipe by its name, FedLADA last."""


def hyper_parameters(method: str) -> dict[str, Any]:
    """A method's hyper-parameters with the recipe's defaults."""
    return {name: one.default for name, one in inspect.signature(RECIPES[method]).parameters.items()}


HYPER_PARAMETERS: dict[str, str] = {
    "alpha": "weight of the client's own update beside the global direction, in (0, 1]",
    "beta1": "weight of the old first moment",
    "beta2": "weight of the old second moment",
    "bias_correction": "correct the moments for their start at zero",
    "clip_norm": "clip gradients to this norm; none switches it off",
    "correction": "scale of the control variates' correction",
    "decoupled": "weight decay behind the adaptive optimizer (AdamW) instead of L2",
    "maximum": "keep the running maximum of second moments (AMSGrad), or not (Adam)",
    "mu": "strength of the proximal term, or of the dynamic regularizer",
    "power": "of the second moment that a step is divided by: 0.5 is Adam's root, less adapts less",
    "rho": "how far uphill the gradient is taken",
    "second_moment": "averaged by the server, or reset in each round",
    "server_lr": "eta_g: the server's learning rate",
    "tau": "the server Adam's degree of adaptivity",
    "v_init": "first second moment, and its floor",
    "v_start": "where v starts in each round: zero, or server to go on from the mean",
    "weight_decay": "strength of weight decay",
}
"""The meaning of each hyper-parameter of any recipe, in a few words."""
