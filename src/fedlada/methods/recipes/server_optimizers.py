"""Methods with momentum or an adaptive optimizer on the server (Reddi et al. 2021)."""

from __future__ import annotations

from fedlada.methods.local import TowardGlobalDirection
from fedlada.methods.method import FederatedMethod
from fedlada.methods.recipes.chains import sgd_method
from fedlada.methods.server import Adagrad, Adam, Momentum, Yogi


def fedavgm(
    *, momentum: float = 0.9, server_lr: float = 1.0, weight_decay: float = 0.0, clip_norm: float | None = None
) -> FederatedMethod:
    """FedAvgM: momentum on the server (Hsu et al. 2019, Measuring the Effects of Non-Identical Data Distribution).

    >>> fedavgm().server
    Momentum(lr=1.0, momentum=0.9)
    """
    return sgd_method("fedavgm", (), Momentum(lr=server_lr, momentum=momentum), clip_norm, weight_decay)


def fedadagrad(
    *, tau: float = 1e-2, server_lr: float = 0.1, weight_decay: float = 0.0, clip_norm: float | None = None
) -> FederatedMethod:
    """FedAdagrad: Adagrad on the server.

    >>> fedadagrad().server
    Adagrad(lr=0.1, tau=0.01)
    """
    return sgd_method("fedadagrad", (), Adagrad(lr=server_lr, tau=tau), clip_norm, weight_decay)


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
    return sgd_method("fedadam", (), server, clip_norm, weight_decay)


def fedyogi(
    *,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-2,
    server_lr: float = 0.1,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
) -> FederatedMethod:
    """FedYogi: Yogi on the server, whose second moment changes additively.

    >>> fedyogi().num_vectors()
    (1, 1)
    """
    server = Yogi(lr=server_lr, beta1=beta1, beta2=beta2, tau=tau)
    return sgd_method("fedyogi", (), server, clip_norm, weight_decay)


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
    return sgd_method("fedadam_amended", chain, server, clip_norm, weight_decay)
