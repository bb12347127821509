"""Rows of the table of methods, each beside the transcription of its method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fedlada import FederatedMethod

COMMON = {"server_lr": 0.7, "weight_decay": 0.02, "clip_norm": 2.5}
SERVER_ADAM = {"beta1": 0.8, "beta2": 0.95, "tau": 0.03, "server_lr": 0.05, "weight_decay": 0.02, "clip_norm": 2.5}
MOMENTS = {"beta1": 0.8, "beta2": 0.95, "v_init": 1e-2}


@dataclass(frozen=True)
class Row:
    """A recipe with hyperparameters far from its defaults, its reference, and how many vectors travel."""

    recipe: Callable[..., FederatedMethod]
    reference: Callable[..., Any]
    down: int
    up: int
    hyper: dict[str, Any] = field(default_factory=dict)
    variants: tuple[dict[str, Any], ...] = ()

    def method(self, **changes: Any) -> FederatedMethod:
        return self.recipe(**{**self.hyper, **changes})


METHODS: dict[str, Row] = {}


def transcribes(recipe, down, up, hyper, variants=()):
    """Put the function below into the table, as the transcription of this recipe."""

    def put(function):
        METHODS[function.__name__] = Row(recipe, function, down, up, hyper, variants)
        return function

    return put
