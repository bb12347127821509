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
from fedlada.methods.recipes.plain_sgd import fedavg, fedcm, feddyn, fedexp, fedprox, scaffold
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
    "alpha": "weight of the client's own update relative to the global direction, in (0, 1]",
    "beta1": "weight of the old first moment",
    "beta2": "weight of the old second moment",
    "bias_correction": "correct the moments for their start at zero",
    "clip_norm": "clip gradients to this norm; none switches it off",
    "clip_pull": "clip the regularizer's mu x with the gradient, or add it after the clipping",
    "correction": "scale of the control variates' correction",
    "decoupled": "weight decay after the adaptive step (AdamW) instead of L2",
    "eps": "added to the squared norm of the mean update, where the server's step is divided by it",
    "maximum": "keep the running maximum of the second moment (AMSGrad), or not (Adam)",
    "momentum": "weight of the server's old momentum",
    "mu": "strength of the proximal term, or of the dynamic regularizer",
    "power": "exponent of the second moment that a step is divided by: 0.5 is Adam's, less adapts less",
    "rho": "radius of the SAM perturbation",
    "second_moment": "averaged by the server, or reset in each round",
    "server_lr": "eta_g: the server's learning rate",
    "tau": "the server optimizer's degree of adaptivity",
    "v_init": "initial second moment, and its lower bound",
    "v_start": "initial v in each round: zero, or server to continue from the mean",
    "weight_decay": "strength of weight decay",
}
"""The meaning of each hyperparameter of any recipe, in a few words."""
