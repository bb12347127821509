"""The one table of methods over which every law is tested: a new recipe gets one row here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fedlada import recipes
from fedlada.method import FederatedMethod
from reference import algorithms

COMMON = {"server_lr": 0.7, "weight_decay": 0.02, "clip_norm": 2.5}
SERVER_ADAM = {"beta1": 0.8, "beta2": 0.95, "tau": 0.03, "server_lr": 0.05, "weight_decay": 0.02, "clip_norm": 2.5}
MOMENTS = {"beta1": 0.8, "beta2": 0.95, "v_init": 1e-2}


@dataclass(frozen=True)
class Row:
    """A recipe with hyper-parameters far from its defaults, its reference, and how many vectors travel."""

    recipe: Callable[..., FederatedMethod]
    reference: Callable[..., Any]
    down: int
    up: int
    hyper: dict[str, Any] = field(default_factory=dict)
    variants: tuple[dict[str, Any], ...] = ()

    def method(self, **changes: Any) -> FederatedMethod:
        return self.recipe(**{**self.hyper, **changes})


METHODS: dict[str, Row] = {
    "fedavg": Row(recipes.fedavg, algorithms.fedavg, 1, 1, COMMON, ({"clip_norm": None, "weight_decay": 0.0},)),
    "fedprox": Row(recipes.fedprox, algorithms.fedprox, 1, 1, {**COMMON, "mu": 0.4}),
    "scaffold": Row(
        recipes.scaffold,
        algorithms.scaffold,
        2,
        2,
        COMMON,
        ({"correction": 0.5}, {"correction": 1.5, "clip_norm": None}),
    ),
    "fedcm": Row(recipes.fedcm, algorithms.fedcm, 2, 1, {**COMMON, "alpha": 0.3}),
    "fedadam": Row(recipes.fedadam, algorithms.fedadam, 1, 1, SERVER_ADAM),
    "fedadam_amended": Row(recipes.fedadam_amended, algorithms.fedadam_amended, 2, 1, {**SERVER_ADAM, "alpha": 0.3}),
    "localadam": Row(
        recipes.localadam,
        algorithms.localadam,
        2,
        2,
        {**COMMON, **MOMENTS},
        (
            {"v_start": "server"},
            {"bias_correction": True},
            {"bias_correction": True, "v_start": "server"},
            {"bias_correction": True, "beta1": 0.0},
            {"second_moment": "reset"},
            {"maximum": False, "v_start": "server"},
            {"power": 0.125},
            {"maximum": False, "second_moment": "reset", "bias_correction": True, "v_init": 1e-16},
            {"decoupled": True},
        ),
    ),
    "fedlada": Row(
        recipes.fedlada,
        algorithms.fedlada,
        3,
        2,
        {**COMMON, **MOMENTS, "alpha": 0.3},
        (
            {"v_start": "server"},
            {"decoupled": True},
            {"v_init": 1e-16, "alpha": 0.05},
            {"beta1": 0.0},
            {"beta1": 0.0, "power": 0.25},
        ),
    ),
    "feddyn": Row(recipes.feddyn, algorithms.feddyn, 1, 1, {"mu": 0.4, "weight_decay": 0.02, "clip_norm": 2.5}),
    "fedsam": Row(recipes.fedsam, algorithms.fedsam, 1, 1, {**COMMON, "rho": 0.2}),
}

CASES = [(name, {**row.hyper, **changes}) for name, row in METHODS.items() for changes in ({}, *row.variants)]
"""Every method with each set of hyper-parameters that its reference knows."""
