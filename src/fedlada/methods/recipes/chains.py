"""Chains that recipes share: the order of clipping, weight decay and the local optimizer."""

from __future__ import annotations

from typing import Any

from fedlada.methods.local import AMSGrad, ClipNorm, DynamicRegularizer, LocalTransform, WeightDecay
from fedlada.methods.method import FederatedMethod
from fedlada.methods.server import SGD, Dynamic, ServerOptimizer
from fedlada.methods.validation import not_negative, positive

Chain = tuple[LocalTransform, ...]


def clip_and_decay(clip_norm: float | None, weight_decay: float) -> Chain:
    """Clipping and L2, each left out where it would do nothing."""
    not_negative("weight_decay", weight_decay)
    if clip_norm is not None:
        positive("clip_norm", clip_norm)
    clip: Chain = () if clip_norm is None else (ClipNorm(max_norm=clip_norm),)
    decay: Chain = () if weight_decay == 0 else (WeightDecay(strength=weight_decay),)
    return clip + decay


def sgd_method(
    name: str, correction: Chain, server: ServerOptimizer, clip_norm: float | None, weight_decay: float
) -> FederatedMethod:
    """Local SGD: the gradient is corrected, then clipped, then L2 is added."""
    local = correction + clip_and_decay(clip_norm, weight_decay)
    return FederatedMethod(name=name, local=local, server=server)


def dynamic_method(
    name: str, look: Chain, *, mu: float, clip_pull: bool, weight_decay: float, clip_norm: float | None
) -> FederatedMethod:
    """FedDyn after a perturbation. Its mu x is clipped with the gradient, or added after clipping like weight decay."""
    regularizer = DynamicRegularizer(mu=mu, with_params=clip_pull)
    decay = weight_decay if clip_pull else weight_decay + mu
    return sgd_method(name, (*look, regularizer), Dynamic(), clip_norm, decay)


def amsgrad_method(
    name: str,
    amendment: Chain,
    *,
    look: Chain = (),
    server_lr: float,
    weight_decay: float,
    decoupled: bool,
    clip_norm: float | None,
    **others: Any,
) -> FederatedMethod:
    """AMSGrad with the other options; decoupled decay comes last, so that the second moment does not scale it.

    The global direction carries past decay on, so that in steady state decay acts 1/alpha times as strongly.
    """
    optimizer = AMSGrad(**others)
    l2, behind = (0.0, weight_decay) if decoupled else (weight_decay, 0.0)
    local = (*look, *clip_and_decay(clip_norm, l2), optimizer, *amendment, *clip_and_decay(None, behind))
    return FederatedMethod(name=name, local=local, server=SGD(lr=server_lr))
