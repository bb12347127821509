"""The local adaptive optimizer: Adam's moments with AMSGrad's running maximum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlada.methods.local.transform import LocalTransform
from fedlada.methods.state import ClientRound, Round, Step, Vectors
from fedlada.methods.validation import at_most_half, decay_of_old, not_vanishing, one_of


@dataclass(frozen=True, kw_only=True)
class AMSGrad(LocalTransform):
    """Turns a gradient g into m / sqrt(v_hat), as Algorithm 3 of the FedLADA paper does inside its amendment.

    A `power` of v_hat below 1/2 makes the step less adaptive (Padam, Chen et al. 2018).

    Each round begins with m = 0 and v_hat = v^t, the mean that the server keeps (`second_moment="averaged"`), or
    with v_hat = `v_init` (`"reset"`, and then no second moment is sent).
    """

    elementwise: ClassVar[bool] = True

    beta1: float = 0.9
    """Weight of the old first moment; with 0 there is none, and no client keeps a vector for it."""
    beta2: float = 0.99
    """Weight of the old second moment."""
    v_init: float = 1e-8
    """Initial value of v_hat, and its lower bound."""
    v_start: str = "zero"
    """v_{i,0}, which the paper does not specify: "zero", or "server" to continue from v^t."""
    maximum: bool = True
    """The mapping h of v to v_hat: the running maximum (AMSGrad), or without it v itself above the floor (Adam)."""
    bias_correction: bool = False
    """Divide m by 1 - beta1^tau, and v by 1 - beta2^tau where it started from zero."""
    power: float = 0.5
    """Exponent of v_hat; 1/2 is the square root. The smaller it is, the less steps differ between coordinates."""
    second_moment: str = "averaged"
    """"averaged" by the server over the cohort, or "reset" by each client in each round."""

    positive: ClassVar[frozenset[str]] = frozenset({"v"})

    def __post_init__(self) -> None:
        decay_of_old("beta1", self.beta1)
        decay_of_old("beta2", self.beta2)
        not_vanishing("v_init", self.v_init)
        at_most_half("power", self.power)
        one_of("v_start", self.v_start, ("zero", "server"))
        one_of("second_moment", self.second_moment, ("averaged", "reset"))
        if not self.maximum and self.second_moment == "averaged" and self.v_start == "zero":
            raise ValueError(
                "maximum=False with v_start='zero' would ignore the averaged second moment: "
                "use v_start='server' or second_moment='reset'"
            )

    def init_shared(self, params: Tensor) -> Vectors:
        return {"v": torch.full_like(params, self.v_init)} if self.second_moment == "averaged" else {}

    def begin(self, shared: Vectors, kept: Vectors, like: Tensor) -> Vectors:
        v_received = shared["v"] if self.second_moment == "averaged" else torch.full_like(like, self.v_init)
        state = {} if self.beta1 == 0 else {"m": torch.zeros_like(like)}
        state["v"] = torch.zeros_like(like) if self.v_start == "zero" else v_received
        # Without the maximum v_hat is not carried from step to step; it is kept only for the upload.
        state["v_max"] = v_received
        if self.bias_correction:
            state["tau"] = like.new_zeros((*like.shape[:-1], 1))
        return state

    def apply(self, update: Tensor, local: Vectors, step: Step) -> tuple[Tensor, Vectors]:
        v = self.beta2 * local["v"] + (1 - self.beta2) * update * update
        state, m = {"v": v}, update
        if self.beta1 != 0:
            state["m"] = m = self.beta1 * local["m"] + (1 - self.beta1) * update
        if self.bias_correction:
            state["tau"] = tau = local["tau"] + 1
            m = m / _sum_of_weights(self.beta1, tau)
            if self.v_start == "zero":
                v = v / _sum_of_weights(self.beta2, tau)
        # The lower bound keeps Adam from dividing by a vanishing second moment.
        state["v_max"] = torch.maximum(v, local["v_max"]) if self.maximum else v.clamp(min=self.v_init)
        if self.power == 0.5:  # the paper's; `pow` would differ in the last bits
            return m / state["v_max"].sqrt(), state
        return m / state["v_max"] ** self.power, state

    def finish(self, local: Vectors, done: ClientRound, step: Step) -> tuple[Vectors, Vectors]:
        return ({"v": local["v_max"]} if self.second_moment == "averaged" else {}), step.kept

    def merge(self, shared: Vectors, mean: Vectors, round: Round) -> Vectors:
        return mean


def _sum_of_weights(beta: float, tau: Tensor) -> Tensor:
    """1 - beta^tau, whose digits a subtraction in float32 would lose for a beta near 1."""
    return -torch.expm1(tau * math.log(beta)) if beta > 0 else torch.ones_like(tau)
