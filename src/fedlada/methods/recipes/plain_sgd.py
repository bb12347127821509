"""Methods whose clients take plain SGD steps on a corrected gradient."""

from __future__ import annotations

from dataclasses import replace

from fedlada.methods.combine import Extrapolated, Normalized
from fedlada.methods.local import ControlVariate, Proximal, StepCount, TowardGlobalDirection
from fedlada.methods.method import FederatedMethod
from fedlada.methods.recipes.chains import dynamic_method, sgd_method
from fedlada.methods.server import SGD


def fedavg(*, server_lr: float = 1.0, weight_decay: float = 0.0, clip_norm: float | None = None) -> FederatedMethod:
    """FedAvg: local SGD, then the mean (McMahan et al. 2017, Communication-Efficient Learning of Deep Networks).

    >>> fedavg().num_vectors()
    (1, 1)
    """
    return sgd_method("fedavg", (), SGD(lr=server_lr), clip_norm, weight_decay)


def fedprox(
    *, mu: float = 0.1, server_lr: float = 1.0, weight_decay: float = 0.0, clip_norm: float | None = None
) -> FederatedMethod:
    """FedProx: a pull towards the broadcast model (Li et al. 2020, Federated Optimization in Heterogeneous Networks).

    >>> fedprox(mu=0.01).local
    (Proximal(mu=0.01),)
    """
    return sgd_method("fedprox", (Proximal(mu=mu),), SGD(lr=server_lr), clip_norm, weight_decay)


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
    return sgd_method("scaffold", chain, SGD(lr=server_lr), clip_norm, weight_decay)


def fedcm(
    *, alpha: float = 0.1, server_lr: float = 1.0, weight_decay: float = 0.0, clip_norm: float | None = None
) -> FederatedMethod:
    """FedCM: client-level momentum (Xu et al. 2021, FedCM: Federated Learning with Client-level Momentum).

    >>> fedcm(alpha=0.1).num_vectors()
    (2, 1)
    """
    chain = (TowardGlobalDirection(alpha=alpha),)
    return sgd_method("fedcm", chain, SGD(lr=server_lr), clip_norm, weight_decay)


def feddyn(
    *, mu: float = 0.1, clip_pull: bool = True, weight_decay: float = 0.0, clip_norm: float | None = None
) -> FederatedMethod:
    """FedDyn: dynamic regularization (Acar et al. 2021, Federated Learning Based on Dynamic Regularization).

    >>> feddyn().num_vectors(), feddyn().keeps_memory
    ((1, 1), True)
    """
    return dynamic_method("feddyn", (), **locals())


def fedexp(*, eps: float = 1e-3, weight_decay: float = 0.0, clip_norm: float | None = None) -> FederatedMethod:
    """FedExP: a longer server step the more clients disagree (Jhunjhunwala et al. 2023, FedExP).

    >>> fedexp().combiner
    Extrapolated(eps=0.001)
    """
    return replace(sgd_method("fedexp", (), SGD(), clip_norm, weight_decay), combiner=Extrapolated(eps=eps))


def fednova(*, server_lr: float = 1.0, weight_decay: float = 0.0, clip_norm: float | None = None) -> FederatedMethod:
    """FedNova: each update is divided by its number of steps (Wang et al. 2020, Tackling the Objective Inconsistency).

    >>> fednova().num_vectors()
    (1, 1)
    """
    averaged = sgd_method("fednova", (StepCount(),), SGD(lr=server_lr), clip_norm, weight_decay)
    return replace(averaged, combiner=Normalized())
