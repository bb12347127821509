"""Models by name, or a user's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from torch import nn

from fedlada.methods.imported import check_written, imported, refuse_stored
from fedlada.methods.validation import one_of
from fedlada.models import MODELS

OWN_FACTORIES = ("fedlada.paper.small_lenet:gelu", "fedlada.paper.small_lenet:smu")
"""Factories of this package that reproductions name by their path."""


def is_built_in(name: str) -> bool:
    """Whether a model of that name comes with this library."""
    return name in MODELS or name in OWN_FACTORIES


def check_model_name(name: str) -> None:
    """Refuse anything but a model's name or `package.module:factory`; import nothing."""
    if ":" not in name:
        one_of("model", name, tuple(MODELS))
    else:
        check_written("model", name)


def trusted_factory(
    name: str, place: Path, *, named: str | None = None, trust: bool = False
) -> Callable[..., nn.Module]:
    """The factory of a model that a stored configuration names: built in, named by the user too, or trusted."""
    is_own = not is_built_in(name)
    refuse_stored("model", name, place, named=named, trust=trust, is_own=is_own, by_hand="--model, model=")
    return model_factory(name)


def model_factory(name: str) -> Callable[..., nn.Module]:
    """A model's factory by its name, or a user's own by `package.module:factory`, which is imported."""
    check_model_name(name)
    if name in MODELS:
        return MODELS[name]
    module, _, attribute = name.partition(":")
    if is_built_in(name):
        return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]
    return imported("model", name)
