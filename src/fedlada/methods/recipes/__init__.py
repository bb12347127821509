"""The methods, one function each: a chain of local transforms and a server optimizer.

Order in the chains: recipes on plain SGD correct the gradient, then clip, then add L2, as the authors' simulator
does; adaptive ones clip, add L2, then AMSGrad, then the amendment. A look comes first. `docs/methods.md` shows the
equations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fedlada.methods.method import FederatedMethod
from fedlada.methods.recipes.local_adaptive import fedlada, fedlada_sam, localadam
from fedlada.methods.recipes.plain_sgd import fedavg, fedcm, feddyn, fedexp, fednova, fedprox, scaffold
from fedlada.methods.recipes.server_optimizers import fedadagrad, fedadam, fedadam_amended, fedavgm, fedyogi
from fedlada.methods.recipes.sharpness_aware import fedgamma, fedlesam, fedsam, fedsmoo, fedspeed, mofedsam

RECIPES: dict[str, Callable[..., FederatedMethod]] = {
    recipe.__name__: recipe
    for recipe in (
        fedavg,
        fedprox,
        scaffold,
        feddyn,
        fedcm,
        fedexp,
        fednova,
        fedavgm,
        fedadagrad,
        fedadam,
        fedyogi,
        fedadam_amended,
        fedsam,
        mofedsam,
        fedgamma,
        fedspeed,
        fedsmoo,
        fedlesam,
        localadam,
        fedlada_sam,
        fedlada,
    )
}
"""Every recipe by its name, FedLADA last."""

__all__ = [
    "HYPER_PARAMETERS",
    "RECIPES",
    "fedadagrad",
    "fedadam",
    "fedadam_amended",
    "fedavg",
    "fedavgm",
    "fedcm",
    "feddyn",
    "fedexp",
    "fedgamma",
    "fedlada",
    "fedlada_sam",
    "fedlesam",
    "fednova",
    "fedprox",
    "fedsam",
    "fedsmoo",
    "fedspeed",
    "fedyogi",
    "hyper_parameters",
    "localadam",
    "mofedsam",
    "scaffold",
]


def hyper_parameters(method: str) -> dict[str, Any]:
    """A method's hyperparameters with the recipe's defaults."""
    return {name: one.default for name, one in inspect.signature(RECIPES[method]).parameters.items()}


HYPER_PARAMETERS: dict[str, str] = {
    "alpha": "Weight of the client's own update relative to the global direction, in (0, 1].",
    "beta1": "Decay rate of the first moment: weight of its old value.",
    "beta2": "Decay rate of the second moment: weight of its old value.",
    "bias_correction": "Correct the moments for their start at zero, as Adam does.",
    "clip_norm": "Clip gradients to this norm; none switches clipping off.",
    "clip_pull": "Clip the regularizer's mu x with the gradient, or add it after clipping.",
    "correction": "Scale of the control variates' correction.",
    "decoupled": "Weight decay after the adaptive step (AdamW) instead of L2 in the gradient.",
    "eps": "Added to the squared norm of the mean update, by which the server step is divided.",
    "maximum": "Keep the running maximum of the second moment (AMSGrad), or not (Adam).",
    "momentum": "Server momentum: weight of its old value.",
    "mu": "Strength of the proximal term, or of the dynamic regularizer.",
    "power": "Exponent of the second moment in the denominator of a step: 0.5 is Adam's, less adapts less.",
    "rho": "Radius of the SAM perturbation.",
    "second_moment": "Second moment from round to round: averaged by the server, or reset.",
    "server_lr": "Server learning rate (eta_g).",
    "tau": "Adaptivity of the server optimizer: added to the root of its second moment.",
    "v_init": "Initial second moment, and its lower bound.",
    "v_start": "Second moment at the start of a round: zero, or server to continue from the server's mean.",
    "weight_decay": "Strength of weight decay.",
}
"""The meaning of each hyperparameter of any recipe, in a short sentence."""
